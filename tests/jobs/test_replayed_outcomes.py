"""A genuine, signed outcome of an earlier run of the same call, which a writer of the bucket puts back."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from kinetic_core import JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.connections import default_connections
from kinetic_core.errors import UnverifiedResult
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel, cleanup
from kinetic_core.jobs.collect import collect
from kinetic_core.jobs.observe import observe, wait
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from tests.conftest import wait_for

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("local_jobs")]


def turn(folder: str) -> str:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return Path(folder, "go").read_text()


@pytest.fixture
def backend() -> Backend:
    return open_backend("local", default_connections())


def run(folder: Path) -> JobReference:
    """Start the call under the id that each run of it has."""
    options, job_id = RunOptions.checked(accelerator="cpu"), f"job-{zlib.crc32(bytes(folder)):016x}"
    return submit(prepare(Call(turn, (str(folder),), {}), options, default_connections(), job_id=job_id))


@pytest.fixture
def earlier(tmp_path: Path, backend: Backend) -> bytes:
    """The outcome of a run whose job was then removed."""
    (tmp_path / "go").write_text("first")
    reference = run(tmp_path)
    wait(backend, reference)
    assert collect(backend, reference).value_or_raise() == "first"
    outcome = backend.store.read(object_names.result(reference.job_id))
    cleanup(backend, reference)
    (tmp_path / "go").unlink()
    return outcome


def put_back(backend: Backend, job_id: str, outcome: bytes) -> None:
    backend.store.delete(object_names.result(job_id))
    backend.store.create_if_absent(object_names.result(job_id), outcome, {wire.STATE: "succeeded"})


def test_beside_a_living_job_it_is_no_state(tmp_path: Path, backend: Backend, earlier: bytes) -> None:
    later = run(tmp_path)
    wait_for(lambda: observe(backend, later).status is JobStatus.RUNNING, 90)
    put_back(backend, later.job_id, earlier)
    assert not observe(backend, later).is_terminal
    (tmp_path / "go").write_text("second")
    wait(backend, later)
    assert collect(backend, later).value_or_raise() == "second"
    cancel(backend, later)


def test_while_the_job_of_the_later_run_exists_it_is_no_value(
    tmp_path: Path, backend: Backend, earlier: bytes
) -> None:
    (tmp_path / "go").write_text("second")
    later = run(tmp_path)
    wait(backend, later)
    put_back(backend, later.job_id, earlier)
    with pytest.raises(UnverifiedResult):
        collect(backend, later)


def test_once_the_later_job_is_gone_it_is_as_good(tmp_path: Path, backend: Backend, earlier: bytes) -> None:
    """Nothing is left that tells the two runs apart: their key is the same."""
    (tmp_path / "go").write_text("second")
    later = run(tmp_path)
    wait(backend, later)
    backend.remove(later.namespace, later.job_id)
    put_back(backend, later.job_id, earlier)
    assert collect(backend, later).value_or_raise() == "first"
