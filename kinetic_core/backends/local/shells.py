"""Programs beside the functions of local jobs."""

from __future__ import annotations

import os
import sys
from typing import IO

from kinetic_core._runner import shell
from kinetic_core.errors import BackendUnavailable

_PIECE = 1 << 16
_STDOUT = 1


class LocalProcess:
    """Program of this machine, with its stdin and stdout; its stderr is this process's."""

    def __init__(self, command: list[str]) -> None:
        """Start it, in a session of its own: what a terminal sends, such as Ctrl-C, is not for it."""
        import subprocess

        self.exit_code: int | None = None
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._unsent = bytearray()
        self.source, self.sink = _descriptor(self._process.stdout), _descriptor(self._process.stdin)
        os.set_blocking(self.sink, False)

    @property
    def unsent(self) -> int:
        """Return how many bytes wait to be sent."""
        return len(self._unsent)

    def send(self, data: bytes) -> None:
        """Send to the program's stdin, as far as it takes it now."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the program takes it now."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.sink, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended, which `receive` says
            self._unsent.clear()

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Return what has arrived; None at the end, and the program has ended with `exit_code`."""
        if piece := os.read(self.source, _PIECE):
            return [(_STDOUT, piece)]
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        return None

    def tick(self, *, reads: bool) -> None:
        """Do nothing: a pipe does not break unnoticed."""

    def close(self) -> None:
        """Close the program's stdin, which ends it; return when it has ended."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None  # noqa: S101  it is a pipe
            stream.close()
        self._process.wait()


class LocalShells:
    """Programs beside the functions of this machine's jobs."""

    def check(self, namespace: str) -> None:
        """Raise BackendUnavailable where a process leaves nothing for shells."""
        del namespace  # here all are one user's
        if sys.platform != "linux":
            raise BackendUnavailable("a shell beside a local job needs Linux, and this machine has none")

    def start(self, namespace: str, pod: str, request: str) -> LocalProcess:
        """Start the program of `_runner.shell`."""
        self.check(namespace)
        del pod  # the program finds the function's process by the job's id
        return LocalProcess([sys.executable, "-I", "-S", shell.__file__, request])


def _descriptor(stream: IO[bytes] | None) -> int:
    assert stream is not None  # noqa: S101  it is a pipe
    return stream.fileno()
