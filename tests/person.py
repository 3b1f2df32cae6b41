"""A person at a terminal: starts a program there, types, and waits for what appears."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

KINETIC = str(Path(sys.executable).with_name("kinetic"))
_SECONDS = 90.0


class Person:
    """Program at a terminal of 30 rows and 100 columns. Left as a context, the program is killed."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.seen = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            termios.tcsetwinsize(0, (30, 100))
            os.execve(command[0], command, {**os.environ, "TERM": "xterm", **environment})
        self._from = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._terminal)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return  # it was waited for

    def types(self, text: str) -> None:
        """Type a text; what appears from now on is awaited next."""
        self._from = len(self.seen)
        os.write(self._terminal, text.encode())

    def awaits(self, text: str) -> str:
        """Wait until a text has appeared since something was typed; return all since then."""
        give_up = time.monotonic() + _SECONDS
        while text not in self.seen[self._from :]:
            assert time.monotonic() < give_up, f"{text!r} did not appear: {self.seen!r}"
            assert self._reads() or text in self.seen[self._from :], f"ended without {text!r}: {self.seen!r}"
        return self.seen[self._from :]

    def resizes(self, rows: int, columns: int) -> None:
        """Make the window another size."""
        termios.tcsetwinsize(self._terminal, (rows, columns))

    @property
    def modes(self) -> int:
        """Return what the terminal does by itself: echo, lines, signals."""
        found: int = termios.tcgetattr(self._terminal)[3]
        return found

    def ends(self) -> int:
        """Wait for the program's end; return its exit code."""
        while self._reads():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _reads(self) -> bool:
        """Read what has appeared; return False once nobody has the terminal open any more."""
        ready, _, _ = select.select([self._terminal], [], [], 1.0)
        if not ready:
            return True
        try:
            self.seen += os.read(self._terminal, 1 << 16).decode(errors="replace")
        except OSError:
            return False
        return True
