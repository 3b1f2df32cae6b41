"""A malformed object of the store is named and left out: it ends no listing, and keeps nobody waiting."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.batches.definition import (
    failure_object,
    manifest_object,
    note_failure,
    noted_failures,
)
from kinetic_core.batches.submit import batches
from kinetic_core.connections import default_connections
from kinetic_core.errors import KineticError, MalformedObject, UnverifiedResult, WaitTimeout
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.garbage_collection import orphans
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.listing import index_metadata, summaries
from kinetic_core.jobs.observe import find
from kinetic_core.store.documents import read_document
from kinetic_core.testing.memory_store import MemoryObjectStore

pytestmark = pytest.mark.attack

HOSTILE = [b"", b"[]", b"7", b"null", b"{", b"\xff", b"[" * 100_000, b'{"at": NaN}', b"{}"]
"""Contents of a document that is expected to have fields."""
ENTRIES: list[dict[str, str]] = [
    {"inputs": "many"},
    {"inputs": "9" * 5000},
    {"inputs": "1000000000000"},
    {"inputs": "-1"},
    {"created_at": "yesterday"},
    {"created_at": ""},
    {"created_at": "9999-99-99"},
    {"namespace": "../../../api/v1/secrets"},
    {"namespace": "N" * 80},
    {"origin": "[" * 100_000},
    {"origin": '{"dag_id": 7}'},
    {"origin": r'{"dag_id": "\ud800"}'},
]


@kinetic_core.run(accelerator="cpu")
def answer() -> int:
    return 42


@pytest.fixture
def finished(local_jobs: object) -> Iterator[JobHandle]:
    handle = answer.run_async()
    assert handle.result(cleanup=False) == 42
    yield handle
    handle.cleanup()


@pytest.fixture
def backend(local_jobs: object) -> Backend:
    return open_backend("local", default_connections())


@pytest.fixture
def index(backend: Backend, finished: JobHandle) -> Iterator[list[str]]:
    """Index entries beside that of a good job, all hostile."""
    name, facts = index_object(finished), index_metadata(finished)
    names = [f"{name.rpartition('-')[0]}-{number:016x}" for number in range(len(ENTRIES))]
    for each, hostile in zip(names, ENTRIES, strict=True):
        backend.store.create_if_absent(each, b"", {**facts, **hostile})
    backend.store.create_if_absent("index/nothing", b"", facts)
    yield names
    backend.store.delete_many([*names, "index/nothing"])


def test_hostile_index_entries_are_named_in_lists(
    backend: Backend, finished: JobHandle, index: list[str]
) -> None:
    found = summaries(backend)
    assert finished.job_id in [job.job_id for job in found if not job.problem]
    told = [job.problem for job in found if job.problem]
    assert (
        len(told) == len(ENTRIES) - 2
    )  # two origins are left out, and the entry that names no job is listed
    assert all(json.dumps(job.origin, ensure_ascii=False).encode() for job in found)
    assert all("malformed" in problem and "index/" in problem for problem in told)


def test_hostile_index_entries_do_not_end_reap(
    backend: Backend, finished: JobHandle, index: list[str]
) -> None:
    found = orphans(backend, finished.namespace, retention=0.0)
    assert finished.job_id in [orphan.job_id for orphan in found]


@pytest.mark.parametrize(
    "handle",
    [
        *HOSTILE,
        *(json.dumps({name: value}).encode() for name, value in {"job_id": 7, "created_at": "x"}.items()),
    ],
)
def test_a_malformed_handle_is_named(handle: bytes, backend: Backend) -> None:
    job_id = "job-00000000000000cc"
    backend.store.create_if_absent(object_names.handle(job_id), handle)
    try:
        with pytest.raises(MalformedObject, match=job_id):
            find(backend, job_id)
    finally:
        backend.store.delete(object_names.handle(job_id))


@pytest.mark.parametrize(
    "changed", [{name: 7} for name in ("job_id", "namespace", "created_at", "group_kind", "debug")]
    + [{"group_index": "1"}, {"created_at": "never"}, {"k8s_name": None}, {"func_name": "\ud800"}]
    + [{"preparation": told} for told in ("pack", "pack=1", "pack=-1.000", "nap=1.0", "pack=1.0upload=2.0")],
    ids=str,
)  # fmt: skip
def test_a_reference_is_of_its_types(changed: dict[str, Any], finished: JobHandle) -> None:
    with pytest.raises(TypeError, match=next(iter(changed))):
        JobHandle.from_dict({**finished.to_dict(), **changed})


@pytest.mark.parametrize(
    "header",
    [
        {"failure": []},
        {"failure": {"failure_class": "x", "message": "y", "last_lines": 5}},
        {"state": "succeeded", "times": {"started": "now"}},
        {"state": "running"},
    ],
    ids=str,
)
def test_a_malformed_outcome_keeps_nobody_waiting(
    header: dict[str, Any], finished: JobHandle, backend: Backend
) -> None:
    key = object_names.result(finished.job_id)
    good = backend.store.read(key)
    described = {"protocol": wire.PROTOCOL, "job_id": finished.job_id, "state": "failed", **header}
    for frame in (wire.encode_frame(described, {"body": b"null"}), b"", b"x" * 100, good[:-1], good[:90]):
        backend.store.delete(key)
        backend.store.create_if_absent(key, frame, {wire.STATE: "succeeded"})
        with pytest.raises(KineticError) as ended:
            kinetic_core.attach(finished.job_id).result(timeout=90, cleanup=False)
        assert not isinstance(ended.value, WaitTimeout)
        assert isinstance(ended.value, UnverifiedResult)


@pytest.mark.parametrize(
    "changed",
    [
        {"total_expected": 10**12},
        {"total_expected": -1},
        {"total_expected": "3"},
        {"created_at": "now"},
        {"group_id": "grp-other"},
        {"submit_fn_name": None},
        {"tags": {"a": 1}},
        {"tags": {"a": "\ud800"}},
        {"tags": {"\ud800": "a"}},
        {"tags": 7},
        {"scheduler": "another"},
        {"scheduler": None},
        {"scheduler": "client_driven", "namespace": None},
        {"scheduler": "client_driven", "namespace": "../../api/v1/secrets"},
        {"scheduler": "client_driven", "spec_digest": []},
        {"namespace": ["default"]},
        {"scheduler": "indexed"},
        {"scheduler": "indexed", "reference": {"job_id": 7}},
        {"scheduler": "indexed", "reference": []},
    ],
    ids=str,
)
def test_a_malformed_manifest_is_left_out(
    changed: dict[str, Any], backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"submit_fn_name": "f", "total_expected": 3, "created_at": 1.5, "namespace": "default"}
    good["scheduler"] = "supervised"
    store = backend.store
    for group_id, more in {"grp-good": {}, "grp-bad": changed}.items():
        content = json.dumps({**good, "group_id": group_id, **more}).encode()
        store.create_if_absent(manifest_object(group_id), content)
    try:
        with caplog.at_level(logging.WARNING):
            names = {one["group_id"] for one in batches(backend)}
        assert "grp-good" in names
        assert "grp-bad" not in names
        assert manifest_object("grp-bad") in caplog.text
        with pytest.raises(MalformedObject, match="grp-bad"):
            read_manifest(store, "grp-bad")
    finally:
        store.delete_many([manifest_object("grp-good"), manifest_object("grp-bad")])


def test_malformed_notes_of_failures_are_left_out(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    store = backend.store
    note_failure(backend, "default", "grp-a", 0, ValueError("no caf\udce9"))
    for number, content in enumerate(HOSTILE, 1):
        store.create_if_absent(failure_object("grp-a", number), content)
    store.create_if_absent(failure_object("grp-a", 0).replace("000000", "x"), b"{}")
    assert _notes(backend) == {0: r"ValueError: no caf\udce9"}
    assert caplog.text.count("malformed") == len(HOSTILE)
    store.delete_all("batches/grp-a/")


def test_forged_notes_of_failures_are_left_out(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever attaches to a batch would show them as the failures of its inputs."""
    store = backend.store
    note_failure(backend, "default", "grp-a", 0, ValueError("no"))
    note_failure(backend, "default", "grp-b", 0, ValueError("another's"))
    genuine = json.loads(store.read(failure_object("grp-a", 0)))
    forgeries = [
        {"type": "Evil", "message": "planted"},
        {**genuine, "message": "planted"},
        {**genuine, "key_id": "grp-a:submission:0"},
        genuine,  # under another index
        json.loads(store.read(failure_object("grp-b", 0))),
    ]
    for number, forgery in enumerate(forgeries, 1):
        store.create_if_absent(failure_object("grp-a", number), json.dumps(forgery).encode())
    assert _notes(backend) == {0: "ValueError: no"}
    assert caplog.text.count("leaving batches/grp-a/failures") == len(forgeries)
    store.delete_all("batches/grp-a/")
    store.delete_all("batches/grp-b/")


def test_a_note_of_a_failure_that_is_put_back_counts_again(backend: Backend) -> None:
    """It names no submission: the batch's later one may have submitted the input."""
    note_failure(backend, "default", "grp-a", 0, ValueError("no"))
    genuine = backend.store.read(failure_object("grp-a", 0))
    backend.store.delete_all("batches/grp-a/")
    assert _notes(backend) == {}
    backend.store.create_if_absent(failure_object("grp-a", 0), genuine)
    assert _notes(backend) == {0: "ValueError: no"}
    backend.store.delete_all("batches/grp-a/")


def _notes(backend: Backend) -> dict[int, str]:
    found = noted_failures(backend, "default", "grp-a")
    return {index: str(error) for index, error in found.items()}


def test_a_document_without_end_is_not_read_to_it() -> None:
    store = MemoryObjectStore()
    store.create_if_absent("big", b" " * (33 << 20))
    with pytest.raises(MalformedObject, match=r"big is malformed.* larger than 32 MiB"):
        read_document(store, "big")
