"""A name that several machines carry means the one that the cluster has a pool for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.fallbacks import accelerator_of
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, InvalidRequest
from kinetic_core.jobs.dry_run import dry_run
from kinetic_core.jobs.prepare import Call
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from tests.jobs.choices import Place, answer

ONE = "tpu-v6e-8"
TWO = "tpu-v6e-8-4t"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.fake.close()


def has(place: Place, name: str) -> None:
    """Give the cluster a node of that hardware, as GKE labels it."""
    one = parse_accelerator(name)
    labels = {**one.node_selector(), "cloud.google.com/gke-accelerator-count": str(one.chips_per_host)}
    status = {"allocatable": one.device_resources()}
    node = {"metadata": {"name": f"node-{name}", "labels": labels}, "spec": {}, "status": status}
    place.fake.objects.create("Node", "", node)


def asked_for_nodes(place: Place) -> int:
    return place.fake.faults.count("GET /api/v1/nodes")


@pytest.mark.parametrize(
    ("nodes", "asked", "meant"),
    [
        ([], ONE, ONE),
        ([ONE], ONE, ONE),
        ([TWO], ONE, TWO),
        ([TWO], "v6e", TWO),
        ([TWO], "v6e-2x4", TWO),
        ([ONE, TWO], ONE, ONE),
        ([TWO], "v6e-8-8t", ONE),
        (["tpu-v3-4x8"], "v3-32", "tpu-v3-64"),
        (["tpu-v3-4x4"], "v3-32", "tpu-v3-32"),
    ],
)
def test_the_pool_of_the_cluster_decides(
    place: Place, nodes: list[str], asked: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    for node in nodes:
        has(place, node)
    with caplog.at_level(logging.INFO, "kinetic_core"):
        reference = place.submit([asked], backend="gke")
    assert reference.accelerator == meant
    assert place.jobs() == [meant]
    (job,) = place.fake.objects.list("Job", "default")[1]
    told = parse_accelerator(meant).describe()
    assert job["metadata"]["annotations"].get("kinetic.dev/hardware") == (
        told if asked != "v6e-8-8t" else None
    )
    assert (told in caplog.text) is (asked != "v6e-8-8t")


def test_other_names_cost_no_request(place: Place) -> None:
    place.submit(["tpu-v5e-4"])
    assert asked_for_nodes(place) == 0


def test_several_accelerators_have_one_host_each(place: Place) -> None:
    has(place, TWO)
    assert place.submit([ONE, "gpu-l4"]).hardware == f"{ONE},gpu-l4-1"
    assert asked_for_nodes(place) == 0


def test_another_submission_keeps_what_the_first_chose(place: Place) -> None:
    has(place, TWO)
    first = place.submit([ONE], backend="gke")
    has(place, ONE)
    later = place.submit([ONE], backend="gke")
    assert (later.accelerator, place.jobs()) == (first.accelerator, [TWO])


def test_the_stored_reference_says_what_the_job_gets(place: Place) -> None:
    has(place, TWO)
    place.fake.faults.answer("POST .*/jobs", 400, times=1)
    with pytest.raises(ClusterError):
        place.submit([ONE], backend="gke")
    has(place, ONE)
    assert place.submit([ONE], backend="gke").accelerator == TWO
    assert place.jobs() == [TWO]


def test_a_stored_reference_names_no_other_hardware(place: Place) -> None:
    reference = place.submit([ONE], backend="gke")
    wrong = replace(reference, accelerator="gpu-h100-8")
    name = f"jobs/{reference.job_id}/handle.json"
    place.store.delete(name)
    place.store.create_if_absent(name, json.dumps(wrong.to_dict()).encode())
    assert place.submit([ONE], backend="gke").accelerator == ONE


def test_what_two_hosts_cannot_have_is_refused(place: Place) -> None:
    has(place, TWO)
    with pytest.raises(InvalidRequest, match="lease"):
        place.submit([ONE], backend="gke", lease=20)


def test_a_dry_run_says_which(place: Place, tmp_path: Path) -> None:
    has(place, TWO)
    kubeconfig = str(tmp_path / "kubeconfig")
    settings = replace(
        read_settings(),
        kubeconfig=kubeconfig,
        bucket="bucket",
        backend="gke",
        package_root=str(Path(__file__).parent),
    )
    options = RunOptions.checked(ONE, container_image="python:3.11")
    job: dict[str, Any] = dry_run(Call(answer), options, Connections(settings))
    assert accelerator_of(job) == TWO
    assert job["metadata"]["annotations"]["kinetic.dev/hardware"] == parse_accelerator(TWO).describe()
