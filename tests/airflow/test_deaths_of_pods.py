"""Pods that die, or cannot begin: what the task's log says of it, before the verdict."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import REGISTRY

from tests.cluster.machine import kill_everything_of

pytestmark = pytest.mark.airflow

IMAGE_TYPE = "application/vnd.oci.image"


def registry(method: str, path: str, content: bytes = b"", kind: str = "") -> Mapping[str, str]:
    """The headers of the registry's answer."""
    address = path if path.startswith("http") else f"{REGISTRY}/v2/{path}"
    request = urllib.request.Request(address, content, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request) as answer:
        found: Mapping[str, str] = answer.headers
    return found


def blob(name: str, kind: str, content: bytes) -> dict[str, Any]:
    """Store it; what a manifest says of it."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    place = registry("POST", f"{name}/blobs/uploads/")["Location"]
    registry(
        "PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", content, "application/octet-stream"
    )
    return {"mediaType": f"{IMAGE_TYPE}.{kind}", "digest": digest, "size": len(content)}


@contextmanager
def broken_image(name: str) -> Iterator[None]:
    """An image whose one layer is none, which may be mended; in the end there is no image of that name."""
    layers = {"type": "layers", "diff_ids": [f"sha256:{'0' * 64}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": layers}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{IMAGE_TYPE}.manifest.v1+json",
        "config": blob(name, "config.v1+json", json.dumps(config).encode()),
        "layers": [blob(name, "layer.v1.tar+gzip", b"no layer")],
    }
    content = json.dumps(manifest).encode()
    told = registry("PUT", f"{name}/manifests/1", content, f"{IMAGE_TYPE}.manifest.v1+json")
    try:
        yield
    finally:
        registry("DELETE", f"{name}/manifests/{told['Docker-Content-Digest']}")


def in_order(log: str, *signs: str) -> None:
    """Each is there, after the one before."""
    place = 0
    for sign in signs:
        place = log.index(sign, place)


@pytest.fixture(scope="module")
def deaths(cases: Any, cluster: Any) -> Any:
    """The image is broken until the task, deferred, has said so; then it is no more. One container is killed
    when it is nearly full. Other pods, which nobody disturbs, are started meanwhile.
    """
    name = f"kinetic-tests/{cases.airflow.environment['KINETIC_BUCKET'].replace('/', '-')}"
    with broken_image(name):
        cases.start("pod_deaths")
        cases.start("on_cluster")

        def is_full(instance: dict[str, Any]) -> Any:
            return re.search(r"(job-\w{16}) is RUNNING.*nearly full", log_of(cases, "killed"), re.DOTALL)

        full = cases.reach("pod_deaths", "killed", is_full, "to be nearly full")
        kill_everything_of(full[1])

        def waits(instance: dict[str, Any]) -> Any:
            _, _, told = log_of(cases, "unpacked").partition("no worker is held")
            return instance["state"] == "deferred" and re.search(r"is PENDING \((Err)?ImagePull", told)

        cases.reach("pod_deaths", "unpacked", waits, "to be deferred for its image")
    cases.end("pod_deaths")
    return cases


def log_of(cases: Any, task_id: str) -> str:
    told: str = cases.log("pod_deaths", task_id)
    return told


@pytest.mark.promise("airflow: Failure evidence before the exception: class, code, last lines, remedy")
@pytest.mark.parametrize(
    ("task_id", "what", "how", "last"),
    [
        (
            "greedy",
            "the process was killed because the job's memory ran out (the limit was 160 MiB",
            "",
            "begun",
        ),
        ("killed", "the container was killed ", ", exit code 137", "nearly full"),
    ],
)
def test_a_pod_out_of_memory_leaves_its_evidence_first(
    deaths: Any, task_id: str, what: str, how: str, last: str
) -> None:
    """Of one, the kernel kills the function's process alone. The other is killed as a whole, as on GKE."""
    assert deaths.instance("pod_deaths", task_id)["state"] == "failed"
    evidence = f"failed: out of memory: {what}", f"signal 9{how})", f"the last lines of its log:\n{last}"
    in_order(
        log_of(deaths, task_id), last, *evidence, "what to do: ask for more with memory=", "JobOutOfMemory: "
    )


@pytest.mark.promise("airflow: A waiting task's log says why, at each change")
def test_a_task_whose_image_cannot_be_pulled_says_so_early(deaths: Any) -> None:
    assert deaths.instance("pod_deaths", "unpacked")["state"] == "failed"
    log = log_of(deaths, "unpacked")
    in_order(
        log,
        "Pausing task as DEFERRED",
        "no worker is held",
        "ImagePull",
        "failed: image: the container image cannot be pulled",
        "not found (attempt 1",
        "what to do: look at the image's name",
        "AirflowFailException: ",
    )
    assert "it runs" not in log
