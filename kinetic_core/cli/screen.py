"""The live view of `jobs watch`: a table of jobs, the log of the chosen one, and keys."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Literal, TextIO

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kinetic_core._runner.log import printable
from kinetic_core.cli.output import STYLES
from kinetic_core.cli.watch import LogTail, Watched
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.fallback import remedy
from kinetic_core.terminal import duration, in_letters_of

_FRAME_SECONDS = 0.2
_HELP = "up/down choose  c cancel  e explain  q leave"
_ALL_OVER = "all have ended  e or q leave"
_KEYS = {"\x1b[A": "up", "k": "up", "\x1b[B": "down", "j": "down"}
_SILENT = "(nothing printed yet)"
_KEY = re.compile(r"\x1b\[[A-Z]|.", re.DOTALL)
_NARROW = 72
_STATUS_WIDTH = max(len(status.value) for status in JobStatus)


@dataclass
class View:
    """What the screen shows. `pane` replaces the log, `note` the help."""

    watched: Watched
    stream: TextIO
    chosen: int = 0
    pane: str = ""
    note: str = ""
    asks: bool = False
    """Whether the note asks if the chosen job shall be cancelled."""
    tail: LogTail | None = field(default=None, repr=False)
    hinted: tuple[JobObservation | None, str] = (None, "")
    """The last observation of a chosen job for which a hint was asked, and the hint."""
    explained: JobObservation | None = field(default=None, repr=False)
    """What was known of the chosen job when it was explained."""

    def text(self, text: str, style: str = "") -> Text:
        """A line that ends where its room does."""
        shown = in_letters_of(self.stream, printable(text).replace("\n", " "))
        return Text(shown, style=style, no_wrap=True, overflow=self.overflow)

    @property
    def overflow(self) -> Literal["ellipsis", "crop"]:
        """How a text is cut: with an ellipsis, where the terminal has one."""
        return "ellipsis" if in_letters_of(self.stream, "…") == "…" else "crop"

    def choose(self, number: int) -> None:
        """Choose a job by its place, and show its log."""
        self.chosen = min(max(number, 0), len(self.watched.handles) - 1)
        self.pane, self.note, self.asks, self.explained = "", "", False, None
        if self.tail is not None:
            self.tail.stop()
        self.tail = LogTail(self.watched.handles[self.chosen])

    def hint(self) -> str:
        """What gives the chosen job a node, once that is known; asked once for each of its observations."""
        handle, seen = self.watched.states()[self.chosen]
        if seen is not self.hinted[0] and seen is not None:
            self.hinted = seen, ""

            def ask() -> None:
                hint = remedy(handle.place, handle, seen)
                if self.hinted[0] is seen:
                    self.hinted = seen, hint

            threading.Thread(target=ask, daemon=True).start()
        return self.hinted[1]

    def explain(self) -> None:
        """Explain the chosen job, in the background."""
        number = self.chosen
        handle, seen = self.watched.states()[number]
        self.explained = seen

        def ask() -> None:
            told = str(handle.explain())
            if self.chosen == number and self.explained is seen:
                self.pane = told

        _in_background(self, "" if self.pane else "explaining", ask)

    def explain_anew(self) -> None:
        """Explain the chosen job once more, if an explanation is open and the job's status has changed."""
        seen = self.watched.states()[self.chosen][1]
        before = self.explained
        if self.pane and seen is not None and (before is None or seen.status is not before.status):
            self.explain()


def show(watched: Watched, stream: TextIO) -> None:
    """The view, until all jobs have ended and no explanation is open, or `q`. Leaves the last table."""
    view = View(watched, stream)
    view.choose(0)
    console = Console(file=stream, highlight=False)
    with _keyboard() as read, Live(console=console, screen=True, auto_refresh=False) as live:
        while view.pane or not watched.is_over():
            if watched.is_over():
                view.note = _ALL_OVER
            view.explain_anew()
            console.size = ConsoleDimensions(*os.get_terminal_size(stream.fileno()))
            live.update(render(view, console.width, console.height), refresh=True)
            if not all(press(view, key) for key in read(_FRAME_SECONDS)):
                break
    if view.tail is not None:
        view.tail.stop()
    console.print(_table(view, console.width, len(watched.handles)))


def press(view: View, key: str) -> bool:
    """What a key does; False to leave."""
    handle = view.watched.handles[view.chosen]
    if view.asks:
        view.asks, view.note = False, ""
        if key == "y":
            _in_background(view, f"cancelling {handle.job_id}", handle.cancel)
    elif key == "q":
        return False
    elif key in ("up", "down"):
        view.choose(view.chosen + (1 if key == "down" else -1))
    elif key == "c":
        view.asks, view.note = True, f"cancel {handle.job_id}? y or n"
    elif key == "e":
        if view.pane:
            view.pane, view.explained = "", None
        else:
            view.explain()
    return True


def render(view: View, width: int, height: int) -> RenderableType:
    """The whole screen: `height` lines of at most `width` characters."""
    rows = min(len(view.watched.handles), max(1, (height - 3) // 2))
    space = max(0, height - rows - 3)
    title = view.watched.handles[view.chosen].job_id
    if view.pane:
        shown = [in_letters_of(view.stream, printable(line)) for line in view.pane.splitlines()]
        lines = [part for line in shown for part in _folded(line, width)][:space]
    else:
        lines = view.tail.last(space) if view.tail else []
        if not lines:
            lines = [part for line in _waits(view) or [_SILENT] for part in _folded(line, width)]
    body = [view.text(line) for line in lines]
    filler = [Text("")] * (space - len(body))
    note = view.text(view.note or _HELP, "reverse")
    return Group(_table(view, width, rows), Rule(title, style="dim"), *body, *filler, note)


def _table(view: View, width: int, rows: int) -> Table:
    """`rows` jobs around the chosen one."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    narrow = width < _NARROW
    first = max(0, min(view.chosen - rows // 2, len(view.watched.handles) - rows))
    shown = list(enumerate(view.watched.states()))[first : first + rows]
    functions = max((len(handle.func_name) for _, (handle, _) in shown), default=0)
    # Names take what they need, within limits, so that the reason has the rest.
    table.add_column("JOB", no_wrap=True, overflow=view.overflow, max_width=width // (4 if narrow else 3))
    table.add_column("STATUS", no_wrap=True, min_width=_STATUS_WIDTH)
    if not narrow:
        function_width = min(max(functions, len("FUNCTION")), width // 5)
        table.add_column("FUNCTION", no_wrap=True, overflow=view.overflow, width=function_width)
    table.add_column("REASON", no_wrap=True, overflow=view.overflow, ratio=1)
    for number, (handle, seen) in shown:
        status = seen.status.value if seen else "..."
        cells = [view.text(handle.job_id), Text(status, style=STYLES.get(status, ""))]
        cells += [] if narrow else [view.text(handle.func_name)]
        cells.append(view.text(_reason(seen, is_brief=narrow)))
        table.add_row(*cells, style="reverse" if number == view.chosen else "")
    return table


def _reason(seen: JobObservation | None, *, is_brief: bool) -> str:
    """How long it has run or waited, and why; `is_brief` leaves out how long it has waited."""
    if seen is None:
        return "looking"
    said = f"{seen.reason}: {seen.message}" if seen.message else seen.reason
    waited = None if is_brief else seen.created_at
    since = seen.started_at if seen.status is JobStatus.RUNNING else waited
    if since and not seen.is_terminal:
        return f"{duration(max(0.0, time.time() - since))}  {said}"
    return said


def _waits(view: View) -> list[str]:
    """Why the chosen job waits, in full, and what ends that; nothing of one that does not wait."""
    seen = view.watched.states()[view.chosen][1]
    if seen is None or seen.status is not JobStatus.PENDING:
        return []
    said = in_letters_of(view.stream, printable(seen.message)).splitlines()
    return [*said, *([f"hint: {hint}"] if (hint := view.hint()) else [])]


def _folded(line: str, width: int) -> list[str]:
    """Break a line between words, a word only where it is longer than the screen is wide."""
    indent = line[: len(line) - len(line.lstrip())][: width // 4]
    return wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _in_background(view: View, note: str, action: Callable[[], object]) -> None:
    """Do what takes a while; the view goes on, says `note` meanwhile, and says if it fails."""

    def run() -> None:
        try:
            action()
        except KineticError as exc:
            view.note = f"failed: {exc}"
        else:
            if note:
                view.note = ""

    if note:
        view.note = f"{note} ..."
    threading.Thread(target=run, daemon=True).start()


@contextmanager
def _keyboard() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits a while for keys and names those pressed. Without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield _nothing
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda seconds: _pressed(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _pressed(number: int, seconds: float) -> list[str]:
    if not select.select([number], [], [], seconds)[0]:
        return []
    text = os.read(number, 64).decode(errors="replace")
    return [_KEYS.get(key, key) for key in _KEY.findall(text)]


def _nothing(seconds: float) -> list[str]:
    time.sleep(seconds)
    return []
