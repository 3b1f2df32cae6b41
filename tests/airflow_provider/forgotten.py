"""Jobs of tasks of which Airflow says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider.job_of_task import Origin, TaskIdentity, start_or_adopt
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions

OPTIONS = RunOptions.checked(accelerator="cpu")


def until_told(folder: str) -> None:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)


@contextmanager
def job(
    folder: Path,
    run_id: str = "r",
    map_index: int = -1,
    deployment: str = "ours",
    task_id: str = "train",
) -> Iterator[JobReference]:
    """A job that runs, of a task of the DAG `d`."""
    identity = TaskIdentity("d", run_id, "", task_id, map_index, 1)
    origin = Origin.of(identity, deployment)
    reference = start_or_adopt(
        Call(until_told, (str(folder),), {}), OPTIONS, default_connections(), identity, origin=origin
    ).reference
    try:
        yield reference
    finally:
        cancel(backend_of(reference, default_connections()), reference)


@dataclass
class Opened:
    """A place that can be reached."""

    reference: JobReference

    async def backend(self) -> Backend:
        return backend_of(self.reference, default_connections())


@dataclass
class Broken:
    """A place whose connection is gone."""

    reference: JobReference

    async def backend(self) -> Backend:
        raise PermissionError("no such connection")


class Told:
    """Airflow's answers, by run and instance; the questions are kept."""

    def __init__(self, states: Mapping[str, Mapping[str, object]]) -> None:
        self.states = states
        self.asked: list[tuple[str, str, list[str]]] = []

    async def __call__(self, dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
        self.asked.append((dag_id, run_id, task_ids))
        return self.states.get(run_id, {})
