"""The jobs of a `watch`: how each is now, what changes, and the log of one of them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from kinetic_core.cli.output import printable
from kinetic_core.errors import KineticError
from kinetic_core.lifecycle import logs, observing
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import Subscription
from kinetic_core.model.job import JobObservation
from kinetic_core.model.states import JobStatus

_WAKE_SECONDS = 0.5
_LINES = 1000


class Watched:
    """Jobs under observation, from entering the context to leaving it."""

    def __init__(self, handles: Sequence[JobHandle]) -> None:
        self.handles = list(handles)
        self._seen: dict[str, JobObservation] = {}
        self._news: queue.Queue[tuple[JobHandle, JobObservation]] = queue.Queue()
        self._subscriptions: list[Subscription] = []

    def __enter__(self) -> Self:
        for handle in self.handles:
            self._subscriptions.append(observing.watch(handle, self._callback(handle)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    def states(self) -> list[tuple[JobHandle, JobObservation | None]]:
        """Every job with what is known of it; None until it has been looked at."""
        return [(handle, self._seen.get(handle.job_id)) for handle in self.handles]

    def is_over(self) -> bool:
        """Whether all have ended."""
        return all(seen is not None and seen.is_terminal for _, seen in self.states())

    def has_failures(self) -> bool:
        """Whether one has ended without a value."""
        ended = [seen for _, seen in self.states() if seen is not None and seen.is_terminal]
        return any(seen.status is not JobStatus.SUCCEEDED for seen in ended)

    def changes(self) -> Iterator[tuple[JobHandle, JobObservation]]:
        """Every change, until all have ended."""
        while not (self.is_over() and self._news.empty()):
            try:
                # With a limit, so that Ctrl-C is heard on every system.
                yield self._news.get(timeout=_WAKE_SECONDS)
            except queue.Empty:
                continue

    def _callback(self, handle: JobHandle) -> Callable[[JobObservation], None]:
        def notice(seen: JobObservation) -> None:
            self._seen[handle.job_id] = seen
            self._news.put((handle, seen))

        return notice


class LogTail:
    """The last lines a job printed, kept up to date by a thread until `stop()`."""

    def __init__(self, handle: JobHandle) -> None:
        self.handle = handle
        self._stopped = threading.Event()
        self._lines: deque[str] = deque([""], maxlen=_LINES)
        threading.Thread(target=self._run, name=f"kinetic-tail-{handle.job_id}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def last(self, count: int) -> list[str]:
        """The last lines, safe to show. Of a line that was overwritten by `\\r`, what it last said."""
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in list(self._lines)]
        while lines and not lines[-1]:
            lines.pop()
        return [printable(line).expandtabs() for line in lines[-count:]] if count > 0 else []

    def _run(self) -> None:
        try:
            backend = backend_of(self.handle)
            ended = threading.Event()
            subscription = observing.watch(
                self.handle, lambda seen: ended.set() if seen.is_terminal else None
            )
            try:
                over = lambda: ended.is_set() or self._stopped.is_set()  # noqa: E731
                for text in logs.follow_log(backend, self.handle, over):
                    self._add(text)
            finally:
                subscription.close()
            if not any(self._lines):
                self._add(self.handle.logs() or "")
        except KineticError as exc:
            self._add(f"\nthe log cannot be read: {exc}")

    def _add(self, text: str) -> None:
        first, *others = text.split("\n")
        self._lines[-1] += first
        self._lines.extend(others)
