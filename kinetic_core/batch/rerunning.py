"""Starting again what an ended batch has no value for, where each input has a Job of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from kinetic_core._runner import wire
from kinetic_core.batch.handle import in_parallel
from kinetic_core.batch.lines import Line, Waiting
from kinetic_core.batch.names import failure_object, finished_object, resumptions
from kinetic_core.batch.resuming import is_first, stored_states
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.ending import cleanup
from kinetic_core.lifecycle.settling import look

_TAKE_OVER_SECONDS = 30.0
_POLL_SECONDS = 0.5


def run_again(
    backend: Backend, line: Line, group_id: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Let the inputs that have no value wait for their turn again, unless some of the batch still runs.

    What is stored of them is removed, but outputs: they begin anew. Of several who ask for it at once one
    does it, and the others wait for that; if it takes longer than half a minute, its process is taken to be
    dead.
    """
    store, finished = backend.store, finished_object(group_id)
    if store.find(finished) is None:
        return
    states = stored_states(store, group_id)
    rest = [(index, one) for index, one in enumerate(line) if one and states.get(index) != "succeeded"]
    if not rest or any(_lives(backend, one) for _, one in rest):
        return
    number = sum(1 for _ in store.list(resumptions(group_id)))
    if not is_first(store, group_id, number):
        give_up = time.monotonic() + _TAKE_OVER_SECONDS
        while time.monotonic() < give_up:
            if store.find(finished) is None:
                return
            sleep(_POLL_SECONDS)
    for _, error in in_parallel(lambda each: cleanup(each[1].reference), rest):
        if error is not None:
            raise error
    store.delete_many([failure_object(group_id, index) for index, _ in rest])
    store.delete_many([wire.stop_object(group_id), finished])


def _lives(backend: Backend, one: Waiting) -> bool:
    return not look(backend, one.reference).is_terminal
