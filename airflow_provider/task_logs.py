"""Log of a job in its task's log: each reader continues where the last one stopped."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self

from kinetic_core._runner.lines import Line, LineBuffer
from kinetic_core.backends.base import Backend
from kinetic_core.connections import Connections
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.logs import StoredLog, host_count, read_pieces
from kinetic_core.jobs.observe import watch
from kinetic_core.retry import is_passing
from kinetic_core.store.gcs import GcsObjectStore

VARIABLE = "KINETIC_TASK_LOG"
"""Variable that tells the runner the URI of the task's log."""
_SCHEME = "gs://"
_SUFFIX = ".kinetic"
_LOG = logging.getLogger(__name__)

Shown = dict[tuple[int, int], int]
"""Bytes of a job's log that are in the task's log already, by attempt and host."""


@dataclass(frozen=True)
class RemoteLog:
    """Task log of one try of a task instance: the names of its pods' pieces begin with `uri`."""

    uri: str

    def shown(self, reference: JobReference, connections: Connections) -> Shown:
        """Return what the job's pods have written there, without gaps; nothing without the right to read."""
        folder, _, name = self.uri.removeprefix(_SCHEME).rpartition("/")
        prefix = f"{name}.{reference.job_id}."
        found: Shown = {}
        try:
            store = GcsObjectStore.at(folder, connections)
            for info in sorted(store.list(prefix), key=lambda each: each.name):
                attempt, host, start, end = _span(info.name.removeprefix(prefix))
                if found.get((attempt, host), 0) == start:
                    found[attempt, host] = end
        except (KineticError, ValueError) as error:
            _LOG.info("what the pods have written to %s* cannot be seen: %s", self.uri, error)
        return found


def remote_log(context: Any) -> RemoteLog | None:
    """Return the task log of this try; None if Airflow's logs are not kept in Cloud Storage."""
    from airflow_provider.airflow_sdk import conf

    base = conf.get("logging", "remote_base_log_folder", fallback="") or ""
    if not conf.getboolean("logging", "remote_logging", fallback=False) or not base.startswith(_SCHEME):
        return None
    return RemoteLog(f"{base.rstrip('/')}/{_file_name(conf, context)}{_SUFFIX}")


def _file_name(conf: Any, context: Any) -> str:
    """Return the name of a try's log below the folder, as `FileTaskHandler` chooses it."""
    from jinja2 import Template

    ti = context["ti"]
    template = conf.get("logging", "log_filename_template")
    rendered: str = Template(template).render(**{**context, "ti": ti, "try_number": ti.try_number})
    return rendered


def _span(name: str) -> tuple[int, int, int, int]:
    """Parse `{attempt}-{host}-{from}-{to}.log`: attempt, host, first byte, and the byte after the last."""
    attempt, host, start, end = (int(part) for part in name.removesuffix(".log").split("-"))
    return attempt, host, start, end


_AHEAD = 256 << 10
"""Bytes of a log that are read before they are shown; a longer line is shown cut."""


@dataclass(frozen=True)
class Cursor:
    """Position in a job's log up to which it has been shown: a number of bytes for each attempt.

    `in_line`: the position is within a line whose beginning was shown. `groups`: how many groups the lines
    that were shown have begun and not ended.
    """

    attempt: int = 0
    offset: int = 0
    in_line: bool = False
    groups: int = 0

    @classmethod
    def from_list(cls, values: Any) -> Self:
        """Rebuild from `to_list()`; any other value gives the beginning."""
        if not values:
            return cls()
        attempt, offset, in_line, groups = [*map(int, values), 0, 0][:4]
        return cls(attempt, offset, bool(in_line), groups)

    def to_list(self) -> list[int]:
        """Return plain JSON for a trigger's event."""
        more = [int(self.in_line), self.groups] if self.groups else [1] if self.in_line else []
        return [self.attempt, self.offset, *more]


class LineBudget:
    """Shared budget of `rate` lines a second; lines over the budget are shown later."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left, self._at = rate, clock()
        self._lock = threading.Lock()

    def left(self) -> int:
        """Return how many lines may be shown now."""
        with self._lock:
            now = self._clock()
            self._left = min(self._rate, self._left + (now - self._at) * self._rate)
            self._at = now
            return max(int(self._left), 0)

    def spend(self, lines: int) -> None:
        """Count lines that were shown."""
        with self._lock:
            self._left -= lines


class LogTail:
    """Reader of a job's log from a cursor on, whole lines at a time.

    Of a slice, host 0 is followed; the lines of other hosts come at the end. Each line names its host. A
    second or later attempt begins with a title, and ends the groups that its predecessor has left open.

    The lines of an attempt are a group, which Airflow's page folds, if a later attempt has printed before
    they are shown. Those of an attempt that runs are none, because the page would hide them (ADR 0075).
    """

    def __init__(
        self,
        backend: Backend,
        reference: JobReference,
        cursor: Cursor | None = None,
        remote: RemoteLog | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """Prepare to read. `remote`: where the job's pods may write.

        `silent`: the pods write to the task's log, so nothing is shown here before the end.
        """
        self._remote, self._silent = remote, silent
        self._reference = reference
        self.backend = backend
        self._hosts = host_count(reference)
        self.cursor = cursor or Cursor()
        self._begun = self.cursor.attempt if self.cursor.offset else self.cursor.attempt - 1
        self._ahead = bytearray()
        self._is_folded = False
        self._last_attempt = 0
        self._stored: StoredLog | None = None

    def live(self, limit: int, last_attempt: int = 0) -> list[str]:
        """Return the next complete lines, at most `limit`, with titles and groups, while the job runs.

        `last_attempt`: the last that was observed, up to which attempts that print nothing are passed.

        Of a line without an end the beginning is shown once; of a progress bar, its states. An error behind
        lines that were read is left to the next call.
        """
        if self._silent:
            return []
        self._last_attempt = last_attempt
        found: list[tuple[int, str]] = []
        try:
            while len(found) < limit and (line := self._next()) is not None:
                if line:
                    found.append((self.cursor.attempt, line))
        except KineticError:
            if not found:
                raise
        shown: list[str] = []
        for attempt, lines in itertools.groupby(found, key=itemgetter(0)):
            shown += self._piece(attempt, [line for _, line in lines])
        return shown

    def rest(self, last_attempt: int, limit: int | None = None) -> list[str]:
        """Return the rest once the job has ended, unfinished lines too: the last `limit` lines, or all."""
        last: deque[str] = deque(maxlen=limit)
        count = 0
        for line in self._rest(last_attempt):
            last.append(line)
            count += 1
        if limit is None or count <= limit:
            return list(last)
        left_out = f"... {count - limit} lines left out here; all of them are in the job's own log ..."
        return [left_out, *last]

    def short_rest(self, last_attempt: int, limit: int, log_size: int | None = None) -> list[str] | None:
        """Return the rest as `rest` does; None if it has more than `limit` lines, which are not all read.

        `log_size`: the bytes of the last attempt's log that its runner has stored, None if not known. If a
        pod's log has been shown up to there, nothing is read. On this machine a log also has what the runner
        says of itself.
        """
        is_last = self._hosts == 1 and self.cursor.attempt == last_attempt
        is_stored_whole = self._reference.backend != "local" and self.cursor.offset == log_size
        if is_last and is_stored_whole:
            return [_END] * self.cursor.groups
        lines = list(itertools.islice(self._rest(last_attempt), limit + 1))
        return lines if len(lines) <= limit else None

    def _piece(self, attempt: int, lines: list[str]) -> list[str]:
        """Return lines of one attempt as they are shown, and count the groups that they leave open.

        An attempt that is over when its first line is shown is folded, each piece of it: a group that waited
        for its end would hide what follows if its end never came.
        """
        title, groups, ends = self._title(attempt), self.cursor.groups, 0
        begins = self._begins(attempt)
        if begins:
            self._is_folded = self._is_over(attempt)
            groups, ends = 0, groups
        if self._is_folded:
            shown = list(_group(title if begins else f"the rest of {title}", iter(lines)))
        else:
            shown = [title, *lines] if begins and attempt else lines
        for line in shown:
            groups = _open_groups(groups, line)
        self.cursor = replace(self.cursor, groups=groups)
        return [*[_END] * ends, *shown]

    def _is_over(self, attempt: int) -> bool:
        """Return whether a later attempt has printed something, as far as that can be asked now."""
        try:
            return attempt < self.cursor.attempt or self._is_followed(attempt)
        except KineticError:
            return False  # the lines that were read would be lost; the next call of `live` meets the error

    def _is_followed(self, attempt: int) -> bool:
        """Return whether the next attempt has printed something, or is over and may have printed nothing."""
        return attempt + 1 < self._last_attempt or bool(self._container_log(attempt + 1, 0, 1))

    def _rest(self, last_attempt: int) -> Iterator[str]:
        self._ahead.clear()
        shown = {}
        if self._remote is not None:
            shown = self._remote.shown(self._reference, self.backend.connections)
        groups = self.cursor.groups
        for attempt in range(self.cursor.attempt, last_attempt + 1):
            written = shown.get((attempt, 0), 0)
            begins = self._begins(attempt)
            is_whole = begins and not written
            title = self._title(attempt) if is_whole else f"the rest of {self._title(attempt)}"
            if begins or attempt < last_attempt:
                yield from itertools.repeat(_END, groups)
                groups = 0
            lines = self._rest_of(attempt, written)
            if attempt < last_attempt:
                yield from _group(title, lines)
            else:
                yield from _ended(_below(title if is_whole and attempt else "", lines), groups)
        for host in range(1, self._hosts):
            for attempt in range(last_attempt + 1):
                found = self._lines_from(attempt, host, shown.get((attempt, host), 0))
                lines = (self._shown(line, host) for line in found)
                title = f"[host {host}] {self._title(attempt)}"
                if attempt < last_attempt:
                    yield from _group(title, lines)
                else:
                    yield from _ended(_below(title if attempt else "", lines))

    def _rest_of(self, attempt: int, shown: int) -> Iterator[str]:
        """Yield the lines of an attempt behind the cursor and the first `shown` bytes; move the cursor on."""
        cursor = self.cursor if attempt == self.cursor.attempt else Cursor(attempt)
        start = max(cursor.offset, shown)
        in_line = cursor.in_line and start == cursor.offset  # of the first one the beginning was shown
        for line in self._lines_from(attempt, 0, start):
            start += line.size
            if in_line:
                in_line = False
                continue
            yield self._shown(line)
        self.cursor = Cursor(attempt, start)

    def _begins(self, attempt: int) -> bool:
        """Return whether no line of the attempt was shown before, and note that one is shown now."""
        begins = attempt > self._begun
        self._begun = max(self._begun, attempt)
        return begins

    def _title(self, attempt: int) -> str:
        return f"attempt {attempt + 1} of {self._reference.job_id}"

    def _next(self) -> str | None:
        """Return the next complete line, "" for one that was shown before; None if there is none yet."""
        end = self._read_ahead()
        while end < 0 and len(self._ahead) < _AHEAD:
            if not self._is_followed(self.cursor.attempt):
                return None
            end = self._read_ahead(is_over=True)
            if self._ahead:
                break
            self.cursor, self._stored = Cursor(self.cursor.attempt + 1, groups=self.cursor.groups), None
            end = self._read_ahead()
        attempt, offset, in_line = self.cursor.attempt, self.cursor.offset, self.cursor.in_line
        size = end + 1 or len(self._ahead)
        piece = bytes(self._ahead[:size])
        del self._ahead[:size]
        self.cursor = Cursor(attempt, offset + size, in_line=end < 0, groups=self.cursor.groups)
        if in_line and b"\r" not in piece.rstrip(b"\r\n"):
            return ""
        lines = LineBuffer()
        return self._shown(next(lines.add(piece), None) or lines.end())

    def _read_ahead(self, *, is_over: bool = False) -> int:
        """Read on, unless a complete line or enough of one is there; return where the line ends, or -1.

        What the pod of an attempt that `is_over` no longer has is read from the store.
        """
        end = self._ahead.find(b"\n")
        missing = _AHEAD - len(self._ahead)
        if end < 0 and missing > 0:
            attempt, offset = self.cursor.attempt, self.cursor.offset + len(self._ahead)
            piece = self._kept_log(attempt, offset, missing)
            self._ahead += self._stored_piece(attempt, offset) if piece is None and is_over else piece or b""
            end = self._ahead.find(b"\n")
        return end

    def _stored_piece(self, attempt: int, offset: int) -> bytes:
        """Return the next stored piece of an attempt of host 0, the first time from a byte offset on."""
        if self._stored is None:
            self._stored = StoredLog(self.backend.store, self._reference, attempt, offset=offset)
        return next(self._stored.pieces(), b"")

    def _lines_from(self, attempt: int, host: int, offset: int) -> Iterator[Line]:
        lines = LineBuffer()
        for piece in read_pieces(self.backend, self._reference, attempt, host, offset):
            yield from lines.add(piece)
        if lines.size:
            yield lines.end()

    def _shown(self, line: Line, host: int = 0) -> str:
        return f"[host {host}] {line.text}" if self._hosts > 1 else line.text

    def _container_log(self, attempt: int, offset: int, size: int) -> bytes:
        return self._kept_log(attempt, offset, size) or b""

    def _kept_log(self, attempt: int, offset: int, size: int) -> bytes | None:
        """Return what the container of host 0 printed; None if its log is not kept."""
        where = self._reference.namespace, self._reference.job_id, attempt, offset
        return self.backend.log(*where, 0, size)


_GROUP, _END = "::group::", "::endgroup::"
"""What lines of a task's log contain where Airflow's page begins and ends a group, which it folds."""


def _group(title: str, lines: Iterator[str]) -> Iterator[str]:
    """Yield lines as a group, with the ends of all groups; nothing if there are no lines."""
    first = next(lines, None)
    if first is not None:
        yield from _ended(itertools.chain((f"{_GROUP}{title}", first), lines))


def _ended(lines: Iterator[str], groups: int = 0) -> Iterator[str]:
    """Yield lines, and the ends of groups that they, or the `groups` before them, have left open."""
    for line in lines:
        groups = _open_groups(groups, line)
        yield line
    yield from itertools.repeat(_END, groups)


def _open_groups(groups: int, line: str) -> int:
    """Return how many groups are open after a line, of the `groups` before it."""
    if _GROUP in line:
        return groups + 1
    return max(groups - 1, 0) if _END in line else groups


def _below(title: str, lines: Iterator[str]) -> Iterator[str]:
    """Yield a title, if there is one, and lines; nothing if there are none."""
    first = next(lines, None)
    if first is not None:
        yield from (title, first) if title else (first,)
        yield from lines


_LOOK_SECONDS = 0.5
_LINES_A_LOOK = 1000
_REPEAT_SECONDS = 60.0


class StateLines:
    """Lines about changes of a job's state or reason; the same line at most once a minute.

    A state that comes back sooner is shown when its minute is over, if the job is still in that state: the
    caller asks `late` for it.
    """

    def __init__(
        self,
        reference: JobReference,
        known: JobObservation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start after `known`, the last observation that was shown."""
        self._reference, self._clock = reference, clock
        self._said = None if known is None else (known.status, known.reason)
        self._times: dict[tuple[JobStatus, str], float] = {}
        self._unsaid: JobObservation | None = None

    @property
    def due(self) -> float:
        """Return the seconds until `late` has a line; infinity if none is left."""
        return float("inf") if self._unsaid is None else self._pause(self._unsaid)

    def line(self, observation: JobObservation) -> str | None:
        """Return the line about an observation; None if nothing is new, or the line must wait."""
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
        """Return the line that had to wait, once its time has come."""
        return None if self._unsaid is None else self.line(self._unsaid)

    def _pause(self, observation: JobObservation) -> float:
        """Return the seconds until the observation's state may be shown again."""
        said = self._times.get((observation.status, observation.reason), float("-inf"))
        return max(0.0, said + _REPEAT_SECONDS - self._clock())


def wait_with_log(
    reference: JobReference,
    tail: LogTail,
    say: Callable[[str], object],
    known: JobObservation,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    is_told_to_stop: Callable[[], bool] = lambda: False,
    look: Callable[[JobObservation], object] = lambda _: None,
) -> JobObservation | None:
    """Return the final observation of a job; None after `timeout` seconds, or when told to stop.

    The job's lines, and every change of its state since `known`, are passed to `say` in this thread; the
    caller shows the end and the last lines. `look` gets the last observation twice a second. Lines that
    cannot be read now are shown later.
    """
    deadline = None if timeout is None else clock() + timeout
    news: list[JobObservation] = []
    ended = threading.Event()

    def notice(observation: JobObservation) -> None:
        news.append(observation)
        if observation.is_terminal:
            ended.set()

    states, last = StateLines(reference, known, clock), known
    subscription = watch(tail.backend, reference, notice)
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
            look(last)
            for line in _lines_now(tail, last.attempt):
                say(line)
            if not over and (is_told_to_stop() or (deadline is not None and clock() >= deadline)):
                return None
    finally:
        subscription.close()


def _lines_now(tail: LogTail, last_attempt: int) -> list[str]:
    """Return the next lines of a job that runs; none if they cannot be read now, but perhaps later."""
    try:
        return tail.live(_LINES_A_LOOK, last_attempt)
    except KineticError as error:
        if not is_passing(error):
            raise
        _LOG.debug("cannot read the next lines of a job now: %s", error)
        return []


def show_build_again(build: Mapping[str, str], connections: Connections, say: Callable[[str], None]) -> None:
    """Show the log of an image's build again, where the next trigger's log replaces it."""
    from airflow_provider.airflow_sdk import conf
    from kinetic_core.images.cloud_build import Following

    if not conf.getboolean("logging", "remote_logging", fallback=False):
        Following.of(build, connections).tell(say)


def describe(reference: JobReference, observation: JobObservation) -> str:
    """Return one line about a job's state."""
    reason = f" ({observation.reason})" if observation.reason else ""
    message = f": {observation.message}" if observation.message else ""
    return f"{reference.job_id} is {observation.status.value}{reason}{message}"
