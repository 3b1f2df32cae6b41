"""What a person sees while a call or a batch is under way: one live line, and a few lines that stay.

The live line is on stderr. It is drawn here and not by `rich` (ADR 0063), which would take over `sys.stdout`:
a job's output goes there as it comes, progress bars included, and may be redirected while stderr is a
terminal. Without a terminal, each change is a plain line.
"""

from __future__ import annotations

import io
import math
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from kinetic_core._runner.log import printable
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobStatus, Step, StepBegun

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle

_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
SHOW_SECONDS = 0.1
"""Seconds between two drawings of a live line."""
_DETAIL_SECONDS = 10.0
"""Seconds between two plain lines about one phase: a build tells hundreds."""
_COUNT_SECONDS = 0.5
"""Seconds between two counts of a batch, which may have 100,000 inputs."""
_BETWEEN_SECONDS = 2.0
"""Seconds after the end of an input in which it is no news that all others wait: one is about to begin."""
_ERASE = "\r\x1b[2K"
_STEPS = {Step.PACK: "packing", Step.BUILD: "image", Step.UPLOAD: "uploading"}
_ENDED = {
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.NOT_FOUND: "is gone",
}
_FIRST = "preparing"
"""Phase before the first step: the call is checked and the cluster is found."""
_RUNNING = "running"
_SHORTEST = 0.05
"""Seconds below which a phase is left out of what a call took."""
FEW = 3
"""Inputs that a batch still waits for, up to which each is named."""
_USER_FAULTS = (FailureClass.USER_ERROR, FailureClass.OUT_OF_MEMORY, FailureClass.OUT_OF_DISK)


class LiveLine:
    """Line at the bottom of a terminal that is drawn anew; lines above it stay. Threads may share it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr or io.StringIO()
        self.is_live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.RLock()
        self._texts: tuple[str, ...] = ()
        self._is_drawn = False
        self._at_start = True
        self._frames = _FRAMES if in_letters_of(self.stream, _FRAMES) == _FRAMES else _ASCII_FRAMES

    def draw(self, *texts: str) -> None:
        """Show the first text that fits, else the last one cut, in place of what was shown.

        Nothing without a terminal.
        """
        with self._lock:
            self._texts = texts
            if self.is_live and self._at_start and texts:
                frame = self._frames[int(time.monotonic() / SHOW_SECONDS) % len(self._frames)]
                lines = (f"{frame} {printable(each).replace(chr(10), ' ').expandtabs()}" for each in texts)
                shown = [in_letters_of(self.stream, line) for line in lines]
                width = self._width() - 1
                fitting = next((line for line in shown if _cut(line, width) == line), _cut(shown[-1], width))
                self._put(f"{_ERASE}{fitting}\r")  # what others write, such as warnings, takes its place
                self._is_drawn = True

    def erase(self) -> None:
        """Remove the line from the terminal."""
        with self._lock:
            if self._is_drawn:
                self._put(_ERASE)
            self._is_drawn = False

    def say(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self.erase()
            begin = "" if self._at_start or not self.is_live else "\n"
            self._put(f"{begin}kinetic: {in_letters_of(self.stream, printable(text))}\n")
            self._at_start = True
            self.draw(*self._texts)

    def write(self, text: str) -> None:
        """Write what the job printed to stdout, above the line."""
        with self._lock:
            self.erase()
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_start = text.endswith("\n") or not sys.stdout.isatty()
            self.draw(*self._texts)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _put(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # nobody reads stderr any more, or it was closed: the call goes on
            self.stream, self.is_live = io.StringIO(), False


class Progress:
    """Progress of one call: its phase, why that lasts, and how long; in the end what each phase took.

    `retries` is how many failures of the function are followed by another attempt.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        retries: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = LiveLine(stream)
        self._clock, self._retries, self._failed = clock, retries, 0
        self._start = self._since = self._told_at = clock()
        self._phase, self._detail = _FIRST, ""
        self._told, self._hint = ("", ""), ""
        self._spent: dict[str, float] = {}
        self._submitted: float | None = None
        self._stopped, self._changes = threading.Event(), threading.Lock()

    def __enter__(self) -> Self:
        if self._line.is_live:
            threading.Thread(target=self._animate, name="kinetic-progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._line.draw()
        self._line.erase()

    @property
    def is_live(self) -> bool:
        """Whether a person sees this: stderr is a terminal, and no other thread draws a line there."""
        return self._line.is_live and threading.current_thread() is threading.main_thread()

    @property
    def has_begun(self) -> bool:
        """Whether there is a phase: after `attach`, none before the job's first observation."""
        return bool(self._phase)

    @property
    def write(self) -> Callable[[str], None]:
        """What writes the job's output."""
        return self._line.write

    def leave(self, handle: JobHandle) -> None:
        """Say, piped or not, that the job of an interrupted call goes on, and the command that stops it."""
        self._line.say(f"{handle.job_id} goes on")
        self._line.say(f"hint: {stopping('jobs', handle.job_id, handle.backend)}")

    def begin(self, phase: str, detail: str = "") -> None:
        """Begin a phase, or say something new about the one that lasts."""
        now = self._clock()
        if phase != self._phase:
            self._count(now)
            self._phase, self._since, self._told_at = phase, now, float("-inf")
        self._detail = detail
        self._line.draw(*self._texts(now))
        is_due = now - self._told_at >= _DETAIL_SECONDS
        if not self._line.is_live and detail and is_due and (phase, detail) != self._told:
            self._told, self._told_at = (phase, detail), now
            self._line.say(f"{phase}: {detail}")

    def say(self, line: str) -> None:
        """Show a line of progress of preparing the job: a step that begins, or how far it is."""
        phase = _STEPS[line.step] if isinstance(line, StepBegun) else self._phase
        self.begin(phase, "" if line == phase else line.removeprefix(f"{phase}: "))

    def submitted(self, handle: JobHandle, cost: str) -> None:
        """Say what the job is called; and what its accelerator costs by the hour, "" for unknown."""
        first = f"{handle.accelerator} " if handle.hardware != handle.accelerator else ""
        price = f", {first}at {cost}" if cost else ""
        self._line.say(f"submitted {handle.job_id}: {handle.func_name} on {handle.hardware}{price}")
        self.begin("waiting")

    def submitting(self, done: int, size: int) -> None:
        """Show how many inputs of a batch are submitted; without a terminal, only if that takes long."""
        self._count_inputs("submitting", done, size)

    def cancelling(self, done: int, size: int) -> None:
        """Show how many inputs of a batch have ended since it is cancelled; otherwise as `submitting`."""
        self._count_inputs("cancelling", done, size)

    def attach(self, submitted: float, now: float) -> None:
        """Count from the submission of a job, which another process submitted; both in Unix seconds."""
        self._submitted, self._phase = submitted, ""
        self._start = self._clock() - max(0.0, now - submitted)

    def batch_submitted(self, group_id: str, func_name: str, size: int, cost: str) -> None:
        """Say what a batch is called, by which another process attaches to it, and what a job of it costs."""
        each = f", each at {cost}" if cost else ""
        self._line.say(f"submitted {group_id}: {func_name}, {size} input{'' if size == 1 else 's'}{each}")

    def observe(self, seen: JobObservation) -> None:
        """Show the job's new state, and at its end what each phase took."""
        phase, detail = "", seen.message
        if seen.status is JobStatus.PENDING:
            phase = _waiting(seen)
        elif seen.status is JobStatus.RUNNING:
            phase, detail = _RUNNING, f"attempt {seen.attempt + 1}" if seen.reason == "Running" else detail
        with self._changes:
            if self._submitted is not None and not self._phase:
                self._count_before(phase, seen, self._submitted)
            if phase:
                self.begin(phase, detail)
            else:
                self._end(_ENDED[seen.status])

    def doing(self, attempt: int, what: str) -> None:
        """Say what a running attempt does before and after the function, "" for the function itself."""
        with self._changes:
            if self._phase == _RUNNING:
                self.begin(_RUNNING, f"attempt {attempt + 1}{f': {what}' if what else ''}")

    def hint(self, remedy: str) -> None:
        """Say, once, what gives a job that waits for a node one; nothing for ""."""
        if remedy not in ("", self._hint):
            self._line.say(f"hint: {remedy}")
            self._hint = remedy

    def attempt_ended(self, attempt: int, failure: Failure | None) -> None:
        """Say why an attempt was not the last; `failure` None: its runner left no word."""
        self._told_at = float("-inf")
        told = "".join(failure.message.splitlines()[:1]) if failure else "its pod is gone"
        name = f"attempt {attempt + 1}"
        if failure is not None and failure.failure_class in _USER_FAULTS:
            name = f"attempt {self._failed + 1} of {self._retries + 1}" if self._retries else name
            self._failed += 1
            self._line.say(f"{name} failed: {told}; starting again")
        else:
            self._line.say(f"{name} was lost: {told}; starting again")

    def _count_inputs(self, phase: str, done: int, size: int) -> None:
        if not done:
            self.begin(phase)
            self._told_at = self._clock()
        inputs = f"{size} input{'' if size == 1 else 's'}"
        self.begin(phase, f"{done} of {inputs}" if done else inputs)

    def _end(self, how: str) -> None:
        now = self._clock()
        self._count(now)
        self._phase = ""
        self._line.draw()
        parts = [f"{name} {duration(took)}" for name, took in self._spent.items() if took >= _SHORTEST]
        self._line.say(f"{how} in {duration(now - self._start)}: {', '.join(parts)}".removesuffix(": "))

    def _count(self, now: float) -> None:
        if self._phase:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since

    def _count_before(self, phase: str, seen: JobObservation, submitted: float) -> None:
        """Count the time before this process attached to the job, as its first observation tells it."""
        now, self._submitted = self._clock(), None
        if seen.started_at is not None:
            since = min(max(self._start, self._start + seen.started_at - submitted), now)
        else:
            since = now if seen.attempt else self._start
        self._spent["earlier attempts" if seen.attempt else "waiting"] = since - self._start
        self._phase, self._since, self._told_at = phase, since, float("-inf")

    def _texts(self, now: float) -> tuple[str, ...]:
        """Return the line, and without the reason in one word, which the detail gives in full."""
        if not self._phase:
            return ()
        detail = f": {self._detail}" if self._detail else ""
        phases = self._phase, self._phase.partition(" (")[0] if detail else self._phase
        return tuple(f"{duration(now - self._since)} {phase}{detail}" for phase in phases)

    def _animate(self) -> None:
        while not self._stopped.wait(SHOW_SECONDS):
            self._line.draw(*self._texts(self._clock()))


def stopping(kind: str, name: str, backend: str) -> str:
    """Return the command that stops a job or a batch, with its backend unless a new command looks there.

    `kind` is the command's word for it: `jobs` or `batch`.
    """
    from kinetic_core.connections import default_connections

    command = f"kinetic {kind} cancel {name}"
    try:
        chosen = default_connections().settings.backend
    except KineticError:
        chosen = ""
    is_found = backend == chosen or (chosen is None and backend in ("local", "gke"))
    return command if is_found else f"{command} --backend {backend}"


@dataclass(frozen=True)
class Counts:
    """State of a batch: `done` of `size` inputs have ended; `slowest` is an input's index and seconds so far.

    `failed` and `cancelled` inputs are those of `done` without a value; no input is both. `running` counts
    jobs or chunks; `waits` is the job that has waited longest, if none runs. `left` are the last inputs that
    have not ended; empty while there are more than `FEW` of them.
    """

    size: int
    done: int
    failed: int = 0
    retried: int = 0
    slowest: tuple[int, float] | None = None
    cancelled: int = 0
    running: int = 0
    waits: JobObservation | None = None
    left: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ", ".join([*self.numbers(), *self.slowest_input()])

    def numbers(self) -> list[str]:
        """Return how many inputs there are of each kind that there is."""
        parts = [f"{self.done}/{self.size} done"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.cancelled} cancelled"] if self.cancelled else []
        parts += [f"{self.retried} retried"] if self.retried else []
        several = "inputs" if len(self.left) > 1 else "input"
        return parts + ([f"left: {several} {', '.join(map(str, self.left))}"] if self.left else [])

    def slowest_input(self) -> list[str]:
        """Return which input takes or took longest; nothing before one has begun."""
        if self.slowest is None:
            return []
        return [f"slowest: input {self.slowest[0]}, {duration(self.slowest[1])}"]


class BatchProgress:
    """Progress of a batch while somebody waits for it: how many inputs have ended, or why all of them wait.

    Without a terminal: a line for each tenth, and for a new reason. `picture` draws the batch in a notebook,
    whenever its counts have changed. `remedy` returns what gives the job that has waited longest a node, ""
    if nobody knows; it may ask the cluster, and is called in a thread.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        picture: Callable[[], None] | None = None,
        remedy: Callable[[JobObservation], str] | None = None,
    ) -> None:
        self._line, self._clock = LiveLine(stream), clock
        self._remedy, self._is_asking, self._asked_for = remedy, False, ""
        self._picture = picture
        self._pictured: Counts | None = None
        self._start = self._begun = clock()
        self._looked_at = self._told_at = self._ended = -math.inf
        self._first = self._done = self._tenths = -1
        self._shown: tuple[str, ...] = ()
        self._reason, self._is_over = "", False

    def show(self, counts: Callable[[], Counts]) -> None:
        """Draw the line; `counts` is called a few times a second at most."""
        now = self._clock()
        if now - self._looked_at >= _COUNT_SECONDS:
            self._looked_at, seen = now, counts()
            self._draw(seen)
            self._measure(seen, now)
            numbers, slowest, rest = seen.numbers(), seen.slowest_input(), self._rest(seen, now)
            why, lines = "", [[*numbers, *slowest, *rest], [*numbers, *rest]]
            if seen.waits is not None and now - self._ended >= _BETWEEN_SECONDS:
                why = seen.waits.message
                lines = [[*numbers, f"{phase}: {why}"] for phase in (_waiting(seen.waits), "waiting")]
            self._shown = tuple(map(", ".join, lines))
            self._tell(seen, why, now)
            if seen.waits is not None and why not in ("", self._asked_for):
                self._ask(seen.waits)
        self._line.draw(*(f"{duration(now - self._start)} {each}" for each in self._shown))

    def leave(self, what_becomes: str, command: str) -> None:
        """Say, piped or not, what becomes of an interrupted batch, and the command that stops it."""
        self._line.draw()
        self._line.say(what_becomes)
        self._line.say(f"hint: {command}")

    def hide(self) -> None:
        """Remove the line, until it is shown again."""
        self._line.draw()
        self._line.erase()

    def end(self, counts: Counts) -> None:
        """Say, once, how it ended."""
        self.hide()
        if not self._is_over and self._looked_at > -math.inf:
            self._draw(counts)
            self._line.say(f"{counts}; took {duration(self._clock() - self._start)}")
        self._is_over = True

    def _draw(self, seen: Counts) -> None:
        if self._picture is not None and seen != self._pictured:
            self._pictured = seen
            self._picture()

    def _tell(self, seen: Counts, why: str, now: float) -> None:
        """Write a plain line, where no line is drawn, for a tenth or a reason that is new."""
        tenths = seen.done * 10 // seen.size
        is_due = why not in ("", self._reason) and now - max(self._told_at, self._ended) >= _DETAIL_SECONDS
        if not self._line.is_live and seen.done < seen.size and (tenths > self._tenths or is_due):
            self._line.say(self._shown[0])
            self._reason, self._told_at = why, now
        self._tenths = tenths

    def _ask(self, waits: JobObservation) -> None:
        """Have somebody asked for a remedy, one at a time, until there is one."""
        if self._remedy is not None and not self._is_asking:
            self._is_asking, self._asked_for = True, waits.message
            asked = self._remedy, waits
            threading.Thread(target=self._hint, args=asked, name="kinetic-remedy", daemon=True).start()

    def _hint(self, remedy: Callable[[JobObservation], str], waits: JobObservation) -> None:
        """Say, once, what gives jobs that wait for a node one."""
        told = remedy(waits)
        if told and not self._is_over:
            self._line.say(f"hint: {told}")
            self._remedy = None
        self._is_asking = False

    def _measure(self, seen: Counts, now: float) -> None:
        """Note when the inputs began to run and when the last one of them ended, as seen from here."""
        if self._first < 0 or (not seen.running and seen.done == self._first):
            self._begun, self._first = now, seen.done
        if seen.done > max(self._first, self._done):
            self._ended, self._done = now, seen.done

    def _rest(self, seen: Counts, now: float) -> list[str]:
        """Return how long the rest will take, at the pace of the inputs that ended while somebody looked.

        Nothing before as many have ended as run at once: the first of them say little. Nothing either once
        the rest takes longer than that pace, rather than a time that grows.
        """
        fresh = seen.done - self._first
        if fresh <= 0 or fresh < seen.running:
            return []
        left = (seen.size - seen.done) * (self._ended - self._begun) / fresh - (now - self._ended)
        return [f"about {duration(left)} left"] if left > 0 else []


def _waiting(seen: JobObservation) -> str:
    return f"waiting ({seen.reason})" if seen.reason else "waiting"


def duration(seconds: float) -> str:
    """The length of a time for people: `0.4 s`, `2 min 05 s`, `1 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def in_letters_of(stream: TextIO, text: str) -> str:
    """The text with letters spelt out that the stream has not, as it would write them."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def _cut(text: str, width: int) -> str:
    """The text as far as it fits into so many cells; wide letters take two, accents none."""
    used, kept = 0, []
    for letter in text:
        used += 0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        if used > width:
            break
        kept.append(letter)
    return "".join(kept)
