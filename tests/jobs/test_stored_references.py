"""What a writer of the bucket may put into a handle, and what comes of it: nothing that he chooses."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend, backend_of, open_backend
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, OtherCluster, OtherNamespace, StoreError
from kinetic_core.job import JobReference
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.inputs import children
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.submit import submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import Settings, read_settings
from kinetic_core.testing import MemoryObjectStore
from tests.jobs.choices import ID, Place, answer

pytestmark = pytest.mark.attack
JOB = "job-0123456789abcdef"
SETTINGS = Settings(project="p", zone="z", cluster="c", bucket="b", namespace="ours")
HONEST: dict[str, Any] = {
    "job_id": JOB,
    "backend": "gke",
    "project": "p",
    "zone": "z",
    "cluster_name": "c",
    "namespace": "ours",
    "bucket_name": "b",
    "store_uri": "gs://b",
    "k8s_name": f"kinetic-{JOB}",
    "image_uri": "image",
    "accelerator": "cpu",
    "func_name": "f",
    "display_name": "f",
    "created_at": "2026-11-22T00:00:00Z",
    "output_dir": "gs://b/outputs/x",
}


def gke(settings: Settings = SETTINGS) -> Backend:
    backend = open_backend("gke", Connections(settings))
    backend.store = MemoryObjectStore("gs://b")  # type: ignore[misc]
    return backend


def planted(backend: Backend, /, **changed: object) -> Backend:
    """It, with a handle that somebody has written into its bucket."""
    backend.store.create_if_absent(f"jobs/{JOB}/handle.json", json.dumps({**HONEST, **changed}).encode())
    return backend


def test_an_honest_handle_is_found() -> None:
    assert find(planted(gke()), JOB) == JobReference(**HONEST)


def test_a_stored_handle_cannot_choose_the_namespace() -> None:
    with pytest.raises(OtherNamespace, match="namespace theirs, the settings name ours"):
        find(planted(gke(), namespace="theirs"), JOB)
    named = gke(SETTINGS.with_arguments(namespace="theirs"))
    assert find(planted(named, namespace="theirs"), JOB) is not None


def test_a_handle_in_hand_is_looked_for_in_its_own_namespace() -> None:
    held = JobReference(**{**HONEST, "namespace": "theirs"})
    assert backend_of(held, Connections(SETTINGS)).namespace == "theirs"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job_id", "job-f"),
        ("store_uri", "gs://theirs"),
        ("backend", "local"),
        ("namespace", "../theirs"),
        ("namespace", ""),
        ("k8s_name", "kinetic-job-f"),
        ("group_id", "grp-theirs"),
        ("output_dir", "/home/ada/.ssh"),
        ("output_dir", "javascript:alert(1)"),
        ("func_name", "f\x1b]0;evil\x07"),
        ("display_name", "f\n2026-11-22 INFO all is well"),
        ("image_uri", "x" * 5000),
        ("created_at", "yesterday"),
        ("created_at", 7),
        ("group_index", "7"),
        ("debug", "yes"),
        ("zone", None),
    ],
)
def test_what_no_client_writes_is_not_used(name: str, value: object) -> None:
    with pytest.raises(
        StoreError, match=rf"(?s)the handle of {JOB} in gs://b (names .*; not used|is unreadable: )"
    ):
        find(planted(gke(), **{name: value}), JOB)


@pytest.mark.parametrize("stored", [b"[]", b"{", b"null1", b'{"job_id": {}}', b"[" * 10000, b"\xff"])
def test_what_is_no_handle_is_one_error(stored: bytes) -> None:
    backend = gke()
    backend.store.create_if_absent(f"jobs/{JOB}/handle.json", stored)
    with pytest.raises(StoreError, match=f"the handle of {JOB} in gs://b"):
        find(backend, JOB)


def test_a_batch_cannot_choose_its_place_either() -> None:
    whole = {**HONEST, "job_id": "grp-x", "group_id": "grp-x", "k8s_name": "kinetic-grp-x"}
    for changed, listed in (
        ({}, ["grp-x-0", "grp-x-1"]),
        ({"namespace": "theirs"}, []),
        ({"store_uri": "gs://theirs"}, []),
        ({"cluster_name": "theirs"}, []),
        ({"group_id": "grp-y", "job_id": "grp-y"}, []),
        ({"group_id": None}, []),
    ):
        backend = gke()
        told = {"group_id": "grp-x", "submit_fn_name": "f", "total_expected": 2, "created_at": 1.0}
        manifest = {"scheduler": "indexed", "reference": {**whole, **changed}, **told}
        backend.store.create_if_absent("batches/grp-x/manifest.json", json.dumps(manifest).encode())
        assert [child.job_id for child in children(backend, "grp-x")] == listed
        if not listed:
            with pytest.raises((StoreError, OtherCluster), match="grp-x"):
                find(backend, "grp-x-0")


def test_a_job_is_made_of_nothing_that_was_stored_before(tmp_path: Path) -> None:
    """A handle that was there already, of the same call, but with another image and hardware."""
    place = Place(tmp_path, capacity={"cpu"})
    with closing(place.fake):
        settings = replace(read_settings(), package_root=str(Path(__file__).parent))
        asked = RunOptions.checked("cpu", container_image="python:3.11")
        prepared = address(pack(answer, asked, Connections(settings), backend=place.backend), job_id=ID)
        stored = {
            **prepared.reference.to_dict(),
            "image_uri": "evil.example/image",
            "accelerator": "gpu-h100-8",
            "created_at": "2026-01-01T00:00:00Z",
        }
        place.store.create_if_absent(object_names.handle(ID), json.dumps(stored).encode())
        reference = submit(prepared)
        (job,) = place.fake.objects.list("Job", "default")[1]
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "python:3.11"
    assert "evil" not in json.dumps(job)
    assert reference == replace(prepared.reference, created_at="2026-01-01T00:00:00Z")


def test_a_backend_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no backend 'evil'"):
        backend_of(JobReference(**{**HONEST, "backend": "evil"}), Connections(SETTINGS))
