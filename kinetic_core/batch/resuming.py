"""Running again what a finished batch has no value for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kinetic_core._runner import wire
from kinetic_core.batch.names import resumption_object
from kinetic_core.cluster.names import PART
from kinetic_core.cluster.verdict import observe
from kinetic_core.errors import ObjectExists
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.summaries import state_of
from kinetic_core.lifecycle.whole_batches import stored_of
from kinetic_core.model.job import JobReference
from kinetic_core.storage.protocol import ObjectStore

_TAKE_OVER_SECONDS = 30.0
_POLL_SECONDS = 0.5


def resume(
    backend: Backend,
    whole: JobReference,
    submitted: Sequence[int],
    create: Callable[[int, Sequence[int]], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make another part for the inputs without a value, unless some of the batch still runs.

    `create` makes the part of a number for some inputs. What the store has of those is removed before: they
    begin anew, at attempt 0. Of several who resume at once, one does it and the others wait for that; if it
    takes longer than half a minute, its process is taken to be dead.
    """
    assert backend.parts is not None  # noqa: S101  only there inputs share Jobs
    jobs = backend.parts.parts(whole.namespace, whole.job_id)
    if any(not observe(job, ()).is_terminal for job in jobs):
        return
    states = stored_states(backend.store, whole.job_id)
    rest = [index for index in submitted if states.get(index) != "succeeded"]
    if not rest:
        return
    number = 1 + max((int(job["metadata"]["labels"][PART]) for job in jobs), default=-1)
    if not is_first(backend.store, whole.job_id, number):
        give_up = time.monotonic() + _TAKE_OVER_SECONDS
        while time.monotonic() < give_up:
            if len(backend.parts.parts(whole.namespace, whole.job_id)) > len(jobs):
                return
            sleep(_POLL_SECONDS)
    _forget(backend.store, whole.job_id, set(rest))
    create(number, rest)


def stored_states(store: ObjectStore, group_id: str) -> dict[int, str]:
    """How inputs ended: a request for each thousand, where outcomes carry it."""
    found = stored_of(store, group_id, wire.result_object(f"{group_id}-*"))
    return {index: state_of(store, info) for index, info in found}


def is_first(store: ObjectStore, group_id: str, number: int) -> bool:
    """Whether this caller is the one to do that."""
    try:
        store.create(resumption_object(group_id, number), b"")
    except ObjectExists:
        return False
    return True


def _forget(store: ObjectStore, group_id: str, indexes: set[int]) -> None:
    store.delete(wire.stop_object(group_id))
    store.delete_many([info.name for index, info in stored_of(store, group_id) if index in indexes])
