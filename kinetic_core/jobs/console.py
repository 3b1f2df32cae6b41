"""Streams of this process, lent to a program elsewhere: a terminal, or pipes."""

from __future__ import annotations

import json
import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from kinetic_core._runner.shell import ABSENT, BEAT, BEAT_SECONDS, BEGUN, DATA, END, SIGNAL, SIZE, message
from kinetic_core.backends.base import Process
from kinetic_core.errors import ClusterError

_STDIN, _STDOUT, _STDERR = range(3)
_PIECE, _MOST = 1 << 14, 1 << 20
_WRITTEN_AT_ONCE = 4096
"""Bytes that a pipe which is writable takes without blocking (PIPE_BUF)."""
_HEARD = (signal.SIGWINCH, signal.SIGCONT, signal.SIGINT)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Console:
    """Stdin, stdout and stderr of this process, and whether they are a terminal.

    `on_begin` is called before the program elsewhere has them.
    """

    def __init__(self, on_begin: Callable[[], None] = lambda: None) -> None:
        self.is_terminal = os.isatty(_STDIN) and os.isatty(_STDOUT)
        self.is_lent = False
        """Whether a program has, or has had, them."""
        self._on_begin = on_begin
        self._kept: list[Any] = []

    def size(self) -> tuple[int, int] | None:
        """Return rows and columns of the terminal; None for none."""
        return termios.tcgetwinsize(_STDOUT) if self.is_terminal else None

    def environment(self) -> dict[str, str]:
        """Return the variables that say what the terminal understands."""
        names = ("TERM", "COLORTERM") if self.is_terminal else ()
        return {name: os.environ[name] for name in names if name in os.environ}

    def lend(self) -> None:
        """Give them to the program elsewhere."""
        self._on_begin()
        self.is_lent = True
        self.make_raw()

    def make_raw(self) -> None:
        """Let the program elsewhere do what a terminal does: echo, lines, Ctrl-C."""
        if self.is_terminal:
            self._kept = self._kept or termios.tcgetattr(_STDIN)
            tty.setraw(_STDIN, termios.TCSADRAIN)

    def restore(self) -> None:
        """Make the terminal as it was."""
        if self._kept:
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._kept)
            self._kept = []


def converse(process: Process, console: Console) -> bool:
    """Connect the console with a program of `_runner.shell` until the program has ended.

    Returns False if the job has no process of user code there, so that nothing was run. Raises as `Process`
    does, and BrokenPipeError if nobody reads what is printed any more.
    """
    try:
        with _signals() as heard:
            return _Conversation(process, console, heard).run()
    finally:
        console.restore()
        process.close()


class _Conversation:
    """Console, program, and what is under way between them."""

    def __init__(self, process: Process, console: Console, heard: int) -> None:
        self._process, self._console, self._heard = process, console, heard
        self._greeting: bytes | None = b""
        """What has come of the program's first line; None after it."""
        self._printed: list[tuple[int, bytes]] = []
        self._is_over = False  # of our stdin
        self._beat_at = time.monotonic() + BEAT_SECONDS

    def run(self) -> bool:
        """Pass on until the program has ended; return whether it ran anything."""
        process = self._process
        while True:
            reads = sum(len(text) for _, text in self._printed) < _MOST
            sources = [self._heard, *([process.source] if reads else [])]
            if self._greeting is None and not self._is_over and process.unsent < _MOST:
                sources.append(_STDIN)
            sinks = [*([process.sink] if process.unsent else []), *(at for at, _ in self._printed[:1])]
            patience = max(0.0, self._beat_at - time.monotonic())
            ready, free, _ = select.select(sources, sinks, [], patience)
            if self._heard in ready:
                self._obey(os.read(self._heard, _PIECE))
            if process.sink in free:
                process.flush()
            if self._printed and self._printed[0][0] in free:
                self._print()
            if _STDIN in ready:
                self._type()
            if process.source in ready and not self._receive():
                break
            if time.monotonic() >= self._beat_at:
                self._beat_at += BEAT_SECONDS
                process.tick(reads=reads)
                process.send(message(BEAT))
        while self._printed:
            self._print()
        return self._greeting is None

    def _receive(self) -> bool:
        """Take what has arrived; return False at the end."""
        arrived = self._process.receive()
        for place, text in arrived or ():
            is_greeting = place == _STDOUT and self._greeting is not None
            self._printed.append((place, self._after_greeting(text) if is_greeting else text))
        self._printed = [(place, text) for place, text in self._printed if text]
        return arrived is not None

    def _after_greeting(self, text: bytes) -> bytes:
        """Look at the program's first line; return what comes after it."""
        line, newline, rest = ((self._greeting or b"") + text).partition(b"\n")
        self._greeting = line + newline
        if self._greeting == BEGUN:
            self._greeting = None
            self._console.lend()
        elif newline and self._greeting != ABSENT:
            raise ClusterError(f"the program for a shell says {line.decode(errors='replace')!r}")
        return rest

    def _print(self) -> None:
        """Write a piece of what was printed."""
        place, text = self._printed.pop(0)
        try:
            written = os.write(place, text[:_WRITTEN_AT_ONCE])
        except BlockingIOError:  # another program has made our terminal so
            written = 0
        if text[written:]:
            self._printed.insert(0, (place, text[written:]))

    def _type(self) -> None:
        """Send what was typed."""
        try:
            piece = os.read(_STDIN, _PIECE)
        except OSError:  # the terminal is gone
            piece = b""
        if not piece and self._console.is_terminal:
            _end(signal.SIGHUP, None)
        self._is_over = not piece
        self._process.send(message(DATA, piece) if piece else message(END))

    def _obey(self, numbers: bytes) -> None:
        """Pass on the signals that this process got."""
        for number in numbers:
            if number == signal.SIGINT and self._greeting is not None:
                raise KeyboardInterrupt
            if number == signal.SIGINT:  # a terminal's own is a byte for the program
                self._process.send(message(SIGNAL, str(number).encode()))
            elif self._console.is_terminal:
                if number == signal.SIGCONT and self._greeting is None:
                    self._console.make_raw()  # the shell here has had it meanwhile
                self._process.send(message(SIZE, json.dumps(self._console.size()).encode()))


@contextmanager
def exits_when_told() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that what is under way can be undone.

    One that is ignored, as under `nohup`, stays so.
    """
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals() -> Iterator[int]:
    """Give a descriptor from which the numbers of signals are read; one that ends this process raises."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handlers: dict[signal.Signals, Callable[[int, object], None]] = dict.fromkeys(_HEARD, _note)
    handlers |= dict.fromkeys(_ENDING, _end)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _note(number: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe."""


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
