"""Jobs of tasks of which Airflow says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_provider.adoption import start_or_adopt
from airflow_provider.identity import TaskIdentity
from airflow_provider.origin import Origin
from kinetic_core.lifecycle.ending import cancel
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call
from kinetic_core.model.job import JobReference

OPTIONS = RunOptions.checked(accelerator="cpu")


def until_told(folder: str) -> None:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)


@contextmanager
def job(
    folder: Path, run_id: str = "r", map_index: int = -1, deployment: str = "ours"
) -> Iterator[JobReference]:
    """A job that runs, of a task `train` of the DAG `d`."""
    identity = TaskIdentity("d", run_id, "", "train", map_index, 0, 1)
    origin = Origin.of(identity, deployment).to_text()
    reference = start_or_adopt(
        Call(until_told, (str(folder),), {}), OPTIONS, identity, origin=origin
    ).reference
    try:
        yield reference
    finally:
        cancel(reference)


class Told:
    """Airflow's answers, by run and instance; the questions are kept."""

    def __init__(self, states: Mapping[str, Mapping[str, object]]) -> None:
        self.states = states
        self.asked: list[tuple[str, str, list[str]]] = []

    async def __call__(self, dag_id: str, run_id: str, task_ids: list[str]) -> Mapping[str, object]:
        self.asked.append((dag_id, run_id, task_ids))
        return self.states.get(run_id, {})
