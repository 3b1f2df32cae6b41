"""Batches of task instances on the local backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider.batch_of_task import StartedBatch, start_or_adopt_batch
from airflow_provider.job_of_task import Announce, Origin, TaskIdentity
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.batches.submit import attach_stored
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions

OPTIONS = RunOptions.checked(accelerator="cpu")
WARM = RunOptions.checked(accelerator="cpu", warm=60)
PLAN = Plan("", False, "kwargs", 64, False, False, "square", {})


def square(number: int, folder: str) -> int:
    """Note the call; fail for an odd number unless the folder says that it may succeed."""
    with Path(folder, f"calls-{number}").open("a") as calls:
        calls.write("x")
    if number % 2 and not Path(folder, "go").exists():
        raise ValueError("odd")
    return number * number


def until_told(number: int, folder: str) -> int:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return number


def start(
    identity: TaskIdentity,
    numbers: Sequence[int],
    folder: Path,
    *,
    function: Any = square,
    plan: Plan = PLAN,
    options: RunOptions = OPTIONS,
    all_again: bool = False,
    announce: Announce = lambda _place: None,
) -> StartedBatch:
    """The batch of a try."""
    items = [{"number": number, "folder": str(folder)} for number in numbers]
    return start_or_adopt_batch(
        Call(function, (), {}),
        items,
        options,
        default_connections(),
        identity,
        plan,
        all_again=all_again,
        origin=Origin.of(identity, "ours"),
        announce=announce,
    )


def cleared(identity: TaskIdentity, try_number: int) -> TaskIdentity:
    """The try after somebody has cleared the task, whose run had ended."""
    return replace(
        identity,
        run_began=f"{identity.run_began} again",
        try_number=try_number,
        first_try=try_number,
        clear_number=identity.clear_number + 1,
    )


def home(reference: JobReference) -> Backend:
    return backend_of(reference, default_connections())


def ended(started: StartedBatch) -> StoredBatch:
    """The batch once all its inputs have ended."""
    batch = attach_stored(home(started.reference), started.reference.job_id)
    batch.wait(timeout=60)
    batch.close()
    return StoredBatch(home(started.reference), started.reference)


def calls(folder: Path, number: int) -> int:
    """How often the function was called for a number."""
    place = folder / f"calls-{number}"
    return len(place.read_text()) if place.exists() else 0
