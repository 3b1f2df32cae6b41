"""What stays in the store when the API server refuses a submission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import KineticError
from kinetic_core.jobs.prepare import address, pack
from kinetic_core.jobs.submit import submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing import MemoryObjectStore
from kinetic_core.testing.fake_cluster import FakeCluster

JOBS = "/apis/batch/"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake


def objects_of_jobs(fake: FakeCluster, folder: Path) -> list[str]:
    """Submit, which is refused; the objects of the job that are stored then."""
    store = MemoryObjectStore("gs://bucket")
    backend = GkeBackend(
        Target(str(fake.write_kubeconfig(folder / "kubeconfig"))), "bucket", default_connections()
    )
    backend.store = store  # type: ignore[assignment]
    settings = replace(read_settings(), package_root=str(Path(__file__).parent))
    options = RunOptions.checked("cpu", container_image="python:3.11")
    with pytest.raises(KineticError, match="to begin with"):
        submit(address(pack(int, options, Connections(settings), backend=backend)))
    return sorted(info.name.split("/")[-1].split("-")[0] for info in store.list("jobs/"))


def test_refused_before_the_job_was_asked_for_nothing_is_left(fake: FakeCluster, tmp_path: Path) -> None:
    """Whether the job exists cannot be asked either, and need not be."""
    fake.faults.answer("GET .*/serviceaccounts/", 401, body=b'{"message": "to begin with"}', times=None)
    fake.faults.answer(f"GET .*{JOBS}", 403, body=b'{"message": "later"}', times=None)
    assert objects_of_jobs(fake, tmp_path) == []
    assert fake.faults.count(f"POST .*{JOBS}") == 0


def test_where_nobody_can_tell_whether_it_exists_it_stays(fake: FakeCluster, tmp_path: Path) -> None:
    """And the error is that of the creation, not of the question."""
    fake.faults.answer(f"POST .*{JOBS}", 403, body=b'{"message": "to begin with"}', times=None)
    fake.faults.answer(f"GET .*{JOBS}", 403, body=b'{"message": "later"}', times=None)
    assert objects_of_jobs(fake, tmp_path) == ["handle.json", "payload"]
