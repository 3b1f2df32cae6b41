"""How many jobs wait, for what, and how many run, among all that this triggerer watches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from airflow_provider.metrics import RUNNING, WAITING, Stats
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus

_State = tuple[JobStatus, str]


class StateBoard:
    """The last state of every watched job; a gauge is set whenever its number changes."""

    def __init__(self, stats: Stats, hostname: Callable[[], str]) -> None:
        """`hostname` is the tag by which triggerers are told apart, as Airflow's own metrics have it."""
        self._stats, self._hostname = stats, hostname
        self._states: dict[object, _State] = {}
        self._numbers: Counter[_State] = Counter()
        self._lock = threading.Lock()

    def seen(self, watcher: object, observation: JobObservation) -> None:
        """A watcher sees its job in a state; one that has ended is watched no longer."""
        if observation.is_terminal:
            self.gone(watcher)
            return
        is_running = observation.status is JobStatus.RUNNING
        self._move(watcher, (observation.status, "" if is_running else observation.reason or "unknown"))

    def gone(self, watcher: object) -> None:
        """A watcher looks no more."""
        self._move(watcher, None)

    def _move(self, watcher: object, state: _State | None) -> None:
        with self._lock:
            before = self._states.pop(watcher, None)
            if state is not None:
                self._states[watcher] = state
            if before == state:
                return
            for each, change in ((before, -1), (state, 1)):
                if each is not None:
                    self._numbers[each] += change
                    self._set(each, self._numbers[each])

    def _set(self, state: _State, number: int) -> None:
        tags = {"hostname": self._hostname()}
        if state[0] is JobStatus.RUNNING:
            self._stats.set(RUNNING, tags, number)
        else:
            self._stats.set(WAITING, {**tags, "reason": state[1]}, number)
