"""Attempts that may have died of memory, as a whole: with cgroup v2 the runner dies with user code.

Kubernetes says of the killed container only that it was killed, as of one whose machine died and came back,
so it repeats both at no cost. Whoever observes the job sees which it was. In case nobody does, an attempt
that comes near its limit leaves a note, and few deaths without a word after a note are taken for chance.
"""

from __future__ import annotations

import json
import sys
import threading

from . import memory, wire
from .job import Job
from .outcome import Outcome
from .store import MissingObject, Store, exists, open_store

NEAR = 0.75
"""The share of the limit from which an attempt leaves its note."""
_BELIEVED = 2
"""So many deaths with a note, beyond the user's retries, may have been something else."""


def remember(job: Job, limit: int, peak: int) -> None:
    """Leave the note, from a thread: the memory may be used up before the store has answered."""

    def write() -> None:
        note = json.dumps({"memory_limit": limit, "memory_peak": peak}).encode()
        try:
            open_store(job.store_uri).create(wire.memory_object(job.job_id, job.attempt), note)
        except (OSError, LookupError) as exc:
            sys.stderr.write(f"kinetic: that memory is nearly used up could not be noted: {exc}\n")

    threading.Thread(target=write, daemon=True).start()


def exhausted(job: Job, store: Store) -> Outcome | None:
    """The end of a job whose attempts die again and again when their memory is nearly used up."""
    notes = [each for each in (_note(job, store, attempt) for attempt in range(job.attempt)) if each]
    if job.failed_count + len(notes) <= job.retries + _BELIEVED:
        return None
    text = memory.ran_out(f"{len(notes)} attempts: the container", *memory.noted(notes[-1]))
    failure = wire.Failure(wire.FailureClass.OUT_OF_MEMORY, text, "function")
    return Outcome("failed", "none", {}, failure, retry=False)


def _note(job: Job, store: Store, attempt: int) -> str:
    """The note of an attempt that left nothing else."""
    if exists(store, wire.attempt_outcome_object(job.job_id, attempt)):
        return ""
    try:
        return store.read(wire.memory_object(job.job_id, attempt)).decode()
    except MissingObject:
        return ""
