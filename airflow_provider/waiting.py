"""Waiting for a job in a worker, its log shown meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from airflow_provider.task_logs import LogTail
from kinetic_core.lifecycle.observing import watch
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

_LOOK_SECONDS = 0.5
_LINES_A_LOOK = 1000
_REPEAT_SECONDS = 60.0


class StateLines:
    """A line whenever a job's state or its reason changes; the same one once a minute at most.

    A state that comes back too soon is said when its minute is over, if the job is still in it then: the
    caller asks for it.
    """

    def __init__(
        self,
        reference: JobReference,
        known: JobObservation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known`: what has been said already."""
        self._reference, self._clock = reference, clock
        self._said = None if known is None else (known.status, known.reason)
        self._times: dict[tuple[JobStatus, str], float] = {}
        self._unsaid: JobObservation | None = None

    @property
    def due(self) -> float:
        """Seconds until `late` has something to say; infinite if nothing is left unsaid."""
        return float("inf") if self._unsaid is None else self._pause(self._unsaid)

    def line(self, observation: JobObservation) -> str | None:
        """What to say of it now; None for nothing new, or for later."""
        state = (observation.status, observation.reason)
        self._unsaid = None
        if state == self._said:
            return None
        if self._pause(observation) > 0:
            self._unsaid = observation
            return None
        self._said, self._times[state] = state, self._clock()
        return describe(self._reference, observation)

    def late(self) -> str | None:
        """What was left unsaid, once its time has come."""
        return None if self._unsaid is None else self.line(self._unsaid)

    def _pause(self, observation: JobObservation) -> float:
        """Seconds until its state may be said again."""
        said = self._times.get((observation.status, observation.reason), float("-inf"))
        return max(0.0, said + _REPEAT_SECONDS - self._clock())


def wait_with_log(
    reference: JobReference,
    tail: LogTail,
    say: Callable[[str], object],
    known: JobObservation,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobObservation | None:
    """The final observation of a job, None if it has not ended after `timeout` seconds.

    Its lines, and every change of its state since the `known` one, are given to `say` in this thread; how
    it ended and its last lines are left to the caller.
    """
    deadline = None if timeout is None else clock() + timeout
    news: list[JobObservation] = []
    ended = threading.Event()

    def notice(observation: JobObservation) -> None:
        news.append(observation)
        if observation.is_terminal:
            ended.set()

    states = StateLines(reference, known, clock)
    subscription = watch(reference, notice)
    try:
        while True:
            pause = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - clock())
            over = ended.wait(max(pause, 0))
            while news:
                last = news.pop(0)
                if last.is_terminal:
                    return last
                if line := states.line(last):
                    say(line)
            if line := states.late():
                say(line)
            for line in tail.live(_LINES_A_LOOK):
                say(line)
            if not over and deadline is not None and clock() >= deadline:
                return None
    finally:
        subscription.close()


def show_build_again(build: Mapping[str, str], say: Callable[[str], None]) -> None:
    """The log of an image's build: where Airflow keeps logs itself, the next trigger's is written over it."""
    from airflow.providers.common.compat.sdk import conf

    from kinetic_core.image.cloud_build import Following

    if not conf.getboolean("logging", "remote_logging", fallback=False):
        Following.of(build).tell(say)


def describe(reference: JobReference, observation: JobObservation) -> str:
    """One line on how a job is."""
    reason = f" ({observation.reason})" if observation.reason else ""
    message = f": {observation.message}" if observation.message else ""
    return f"{reference.job_id} is {observation.status.value}{reason}{message}"
