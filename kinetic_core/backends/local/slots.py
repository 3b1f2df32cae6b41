"""CPU slots: one lock file per core, held by the job that uses it and released by the kernel."""

from __future__ import annotations

import fcntl
import os
import time

from kinetic_core.backends.local.record import take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_LOOK, _LAST_LOOK, _SLOWER = 0.003, 0.1, 1.02
"""Seconds between looks: short jobs follow each other at once, a long wait costs next to nothing."""
_QUICK_SECONDS = 0.02
"""Time that the head of the line may need to take slots that are free."""


def core_count() -> int:
    """Cores this process may use, which is how many slots there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def take_slots(folder: str, count: int, waits: Callable[[], None] = lambda: None) -> list[int]:
    """Wait for `count` free slots; the descriptors that hold them. `waits` is called once if some are taken.

    Waiting jobs form a line: only its head looks for free slots, the others sleep in the kernel.
    """
    os.makedirs(folder, exist_ok=True)
    line = os.open(os.path.join(folder, "line.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        has_waited = not _is_next(line)
        if has_waited:
            waits()
            fcntl.flock(line, fcntl.LOCK_EX)
        held: list[int] = []
        pause = _FIRST_LOOK
        while True:
            for number in range(core_count()):
                if len(held) == count:
                    return held
                descriptor = take_lock(os.path.join(folder, f"cpu-{number}.lock"))
                if descriptor is not None:
                    held.append(descriptor)
            if len(held) == count:
                return held
            if not has_waited:
                has_waited = True
                waits()
            time.sleep(pause)
            pause = min(_LAST_LOOK, pause * _SLOWER)
    finally:
        os.close(line)


def _is_next(line: int) -> bool:
    """Return whether the line's lock is free, or its head is quick to get its slots; then it is held."""
    for pause in (_QUICK_SECONDS, 0.0):
        try:
            fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return True
    return False
