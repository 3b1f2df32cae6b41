"""A terminal of a few lines: what a person sees after what was written to it."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|.", re.DOTALL)


@dataclass
class Screen:
    """The lines that were written, and every text that was at the bottom meanwhile."""

    lines: list[str] = field(default_factory=lambda: [""])
    drawn: list[str] = field(default_factory=list)

    def feed(self, text: str) -> None:
        column = len(self.lines[-1])
        for token in _TOKEN.findall(text):
            if token == "\x1b[2K":
                self.drawn.append(self.lines[-1])
                self.lines[-1] = ""
            elif token == "\r":
                column = 0
            elif token == "\n":
                self.lines.append("")
                column = 0
            elif len(token) == 1:
                line = self.lines[-1].ljust(column)
                self.lines[-1] = line[:column] + token + line[column + 1 :]
                column += 1


@contextmanager
def terminal(columns: int = 80) -> Iterator[tuple[io.TextIOWrapper, Screen]]:
    """A stream that is a terminal, and its screen, which is complete when the context is left."""
    reading, writing = os.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    screen = Screen()
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        yield stream, screen
        stream.flush()
        os.set_blocking(reading, False)
        screen.feed(read_all(reading))
    os.close(reading)


def read_all(reading: int) -> str:
    """What was written to a terminal, until nothing more is there."""
    told = b""
    try:
        while piece := os.read(reading, 1 << 16):
            told += piece
    except OSError:  # nothing more, or Linux' way to say that nobody writes any more
        pass
    return told.decode()
