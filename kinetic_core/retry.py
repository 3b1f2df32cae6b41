"""The retry policy: how long, how often, after which errors a request is repeated, and when somebody is told.

Every request of a client is repeated by `patiently`, but those to the object store, which the runner's client
repeats by the same rule (`runner/gcs.py`; a pod has no library), and what Airflow's tasks and triggers repeat
while Airflow can stop them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")

_RANDOM = random.SystemRandom()
"""Not the module's own generator, whose numbers belong to the user: a seeded program stays reproducible."""


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later, with nobody doing anything about it."""
    return bool(getattr(error, "is_passing", False))


_REMINDER_SECONDS = 60.0
REFUSED_SECONDS = 15.0
"""Seconds for which requests may be refused before whoever waits for their answer is told."""


class Refusals:
    """Refusals of repeated requests since the last answer: somebody may permit the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def end(self) -> None:
        """Note an answer."""
        self._since = None

    def go_on(self, error: BaseException) -> bool:
        """Note one more error; return whether it is a refusal, and the first was REFUSED_SECONDS ago."""
        if is_passing(error):
            return False
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since >= REFUSED_SECONDS


class Reminders:
    """Lines about errors that repeat themselves, of thousands of jobs at once: one a minute of each kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[object, float] = {}

    def are_due(self, kind: object) -> bool:
        """Return whether to say another one of a kind, which can be hashed; note that it is said now."""
        now, last = self._clock(), self._said.get(kind)
        if last is not None and now - last < _REMINDER_SECONDS:
            return False
        self._said[kind] = now
        return True


def pauses(first: float = 0.25, most: float = 8.0) -> Iterator[float]:
    """Yield the seconds to wait before each next attempt: random, so that clients do not come together, and
    about twice as long as before, up to `most`.
    """
    while True:
        yield first * (0.5 + _RANDOM.random())
        first = min(2 * first, most)


def patiently(
    action: Callable[[], Result],
    patience: float,
    *,
    again: Callable[[BaseException], bool] = is_passing,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Return the action's result; repeat the action for `patience` seconds after errors that are for `again`.

    Raises the last error.
    """
    from tenacity import Retrying, retry_if_exception

    give_up, waits = clock() + patience, pauses()
    return Retrying(
        retry=retry_if_exception(again),
        wait=lambda _: next(waits),
        stop=lambda _: clock() >= give_up,
        sleep=sleep,
        reraise=True,
    )(action)
