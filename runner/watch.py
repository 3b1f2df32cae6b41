"""Watch of the child: its output, its end, and signals that arrive meanwhile."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from . import wire
from .log import LogTee
from .memory import MemoryGauge
from .phases import StoredTimes
from .processes import STOPPING

_KILL_RESERVE = 2.0
_TICK = 1.0
_MOST_TOLD = 1 << 20


@dataclass(frozen=True)
class Ending:
    """End of the child: by exit code or by signal; `terminated` when the container was told to stop."""

    exit_code: int | None
    signal: int | None
    terminated: bool


class Watcher(Protocol):
    """Reason to end the child besides a signal: the other hosts, a deadline, or a hang."""

    def look(self, child: int, terminated: bool) -> float | None:
        """Return how many seconds the child still has if it must end, else None; called at every turn."""


class Parent(Protocol):
    """Process that runs the child for this one. `descriptor` becomes readable when the child has ended."""

    @property
    def descriptor(self) -> int: ...

    def status(self, ready: bool) -> int | None:
        """Return the child's status once it has ended, and nothing of it lives."""


class Signals:
    """Signals SIGTERM, SIGINT and SIGCHLD of this process, noted from before the child exists until the end.

    `told` holds the stop signals that have arrived; `descriptor` becomes readable with every signal.
    `leave_after` seconds after the first one the process exits, even from within a request that a silent
    store keeps open: killed by the kubelet it would seem the user's fault. The exit code says that not
    everything is stored, so that who reads the log asks the node for its end.
    """

    def __init__(self, leave_after: float) -> None:
        self.told: list[int] = []
        self._leave_after = leave_after
        self.descriptor, self._waker = os.pipe()
        for descriptor in (self.descriptor, self._waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(wire.EXIT_UNPUBLISHED))
        for number in STOPPING:
            signal.signal(number, self._note)

    def _note(self, received: int, _frame: object) -> None:
        if not self.told:
            signal.setitimer(signal.ITIMER_REAL, self._leave_after)
        self.told.append(received)

    @contextmanager
    def raising(self, exception: type[BaseException]) -> Iterator[None]:
        """Raise the first SIGTERM as `exception` inside the context, besides noting it."""

        def stop(received: int, frame: object) -> None:
            first = not self.told
            self._note(received, frame)
            if first:
                raise exception

        signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._note)

    def release(self) -> None:
        """Reset the handlers to those of a new process: for the child, and at the end."""
        signal.set_wakeup_fd(-1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGCHLD, signal.SIGALRM, *STOPPING):
            signal.signal(number, signal.SIG_DFL)
        os.close(self.descriptor)
        os.close(self._waker)

    def wake(self) -> None:
        """Make `descriptor` readable, from a thread."""
        os.write(self._waker, b"\0")


class OutcomePipe:
    """Pipe by which the child tells its outcome, if not by a file; `writing` is the child's end.

    It is read while the child runs: a pipe may hold no more than a page, and the child ends once it has
    written all. Of more than a megabyte, which no outcome has, the rest is thrown away.
    """

    def __init__(self) -> None:
        self.descriptor, self.writing = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.is_open = True
        self._content = bytearray()

    def pump(self) -> bool:
        """Read a piece; return whether there was one."""
        try:
            piece = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return False
        self.is_open = bool(piece)
        self._content += piece[: _MOST_TOLD - len(self._content)]
        return self.is_open

    def close(self) -> bytes:
        """Return all that the child has told, once it has ended."""
        while len(self._content) < _MOST_TOLD and self.pump():
            pass
        os.close(self.descriptor)
        return bytes(self._content)


def watch_child(
    child: int,
    tee: LogTee,
    grace: float,
    signals: Signals,
    gauge: MemoryGauge,
    times: StoredTimes,
    watchers: Sequence[Watcher],
    give_notice: Callable[[], None],
    parent: Parent | None = None,
    outcome: OutcomePipe | None = None,
) -> Ending:
    """Pump the child's output and its outcome, store its times, and sample the memory, until it is dead.

    `parent`: the process that has forked it, if that was not this one.
    SIGTERM and SIGINT are passed on to the child as SIGTERM, after `give_notice`; if it has not ended `grace`
    seconds later, less the time for publishing, it is killed. It is also killed when one of the `watchers`
    says so, after the time that this watcher leaves.
    """
    deadline: float | None = None
    open_pipe = True
    while True:
        reading = [tee.pipe] if open_pipe and not tee.is_full else []
        reading += [outcome.descriptor] if outcome is not None and outcome.is_open else []
        reading += [each.descriptor for each in (signals, parent) if each is not None]
        ready, _, _ = select.select(reading, [], [], _TICK)
        if signals.descriptor in ready:
            os.read(signals.descriptor, 1 << 10)
        if tee.pipe in ready:
            open_pipe = tee.pump()
        if outcome is not None and outcome.descriptor in ready:
            outcome.pump()
        tee.tick()
        times.tick()
        gauge.sample()
        status = _reap(child) if parent is None else parent.status(parent.descriptor in ready)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return Ending(code if code >= 0 else None, -code if code < 0 else None, bool(signals.told))
        if signals.told and deadline is None:
            deadline = time.monotonic() + max(1.0, grace - _KILL_RESERVE)
            give_notice()
            _send(child, signal.SIGTERM)
        told = [left for each in watchers if (left := each.look(child, bool(signals.told))) is not None]
        if told and deadline is None:
            deadline = time.monotonic() + min(told)
            _send(child, signal.SIGTERM)
        if deadline is not None and time.monotonic() >= deadline:
            _send(child, signal.SIGKILL)


def _send(child: int, number: signal.Signals) -> None:
    """Send a signal to the child; one that its parent has collected, and not told of yet, needs none."""
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _reap(child: int) -> int | None:
    """Collect every dead process (process 1 inherits orphans); return the child's status if it is one."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            return status
