"""Shell beside user code: a program that runs a command where a job's function runs, for a person elsewhere.

This file is a module of the runner, and a program of its own: a client runs its text with a request in the
pod of a job, or on this machine for a local job. It uses the standard library alone.

The process of user code leaves what a shell needs in memory that ends with the process (`leave_workspace`).
The program looks for it, starts the command there, and passes on what the person types and reads:

- Its stdin has messages: a letter, the content's length in four bytes, the content. The client sends a
  heartbeat, too. At the end of stdin, or of the heartbeats, the command is hung up, as by a terminal that is
  closed: whatever becomes of the client and of the network, nothing stays behind that nobody sees.
- Its stdout begins with a line, `BEGUN` or `ABSENT`, and goes on with what the command prints. Its exit code
  is the command's, 128 + n for signal n.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MEMORY = "kinetic-workspace"
BEGUN, ABSENT = b"kinetic: begun\n", b"kinetic: absent\n"
"""First lines of the program: the command runs; no function of the job runs here (yet, or any more)."""
DATA, END, SIZE, SIGNAL, BEAT = b"d", b"e", b"w", b"s", b"b"
"""Messages to the program: input; the end of input; rows and columns; a signal's number; a heartbeat."""
BEAT_SECONDS = 10.0
_SILENCE = 300.0
"""Seconds without a message after which the client counts as gone: long enough for a machine that naps."""
_DYING_SECONDS = 3.0
_PIECE, _MOST = 1 << 16, 1 << 20


def message(kind: bytes, content: bytes = b"") -> bytes:
    """Return a message to the program."""
    return kind + len(content).to_bytes(4, "big") + content


def leave_workspace(job_id: str, work_dir: str) -> int | None:
    """Leave directory, environment and import path of this process for shells, until the process ends.

    They stay in memory: the environment has secrets, and what is on a disk or in a volume can outlive a call.
    Returns the descriptor of that memory, which ends when it is closed. Linux only.
    """
    if not hasattr(os, "memfd_create"):
        return None
    texts = [path for path in sys.path if isinstance(path, str)]  # user code puts Paths there, too
    try:
        told = {
            "job_id": job_id,
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "paths": [path for path in texts if path.startswith(work_dir + os.sep) and os.path.isdir(path)],
            "python": sys.executable,
        }
        memory = os.memfd_create(_MEMORY)
        with open(memory, "wb", closefd=False) as stream:
            stream.write(json.dumps(told).encode())
    except (
        OSError,
        TypeError,
        ValueError,
    ) as exc:  # of what user code did to this process; no reason to fail
        sys.stderr.write(f"kinetic: no shell can be opened here: {type(exc).__name__}: {exc}\n")
        return None
    return memory


def find_workspace(job_id: str, processes: str = "/proc") -> tuple[int, dict[str, Any]] | None:
    """Return what the process of a job's function has left, with its descriptor; None if there is none."""
    for path in _memories(processes):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
            told = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
            if told["job_id"] == job_id:
                return descriptor, told
            os.close(descriptor)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # the process has just ended or begun, or user code has made this memory
    return None


def _memories(processes: str) -> Iterator[str]:
    """Yield the paths of what processes of this user have left."""
    for pid in filter(str.isdigit, os.listdir(processes)):
        folder = f"{processes}/{pid}/fd"
        try:
            numbers = os.listdir(folder)
        except OSError:
            continue  # it is another user's, or the runner's, or has ended
        for number in numbers:
            path = f"{folder}/{number}"
            try:
                if os.readlink(path).startswith(f"/memfd:{_MEMORY} "):
                    yield path
            except OSError:
                continue


def environment_of(told: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a command: the function's, by which `python3` is and imports what it does."""
    import shutil

    environment: dict[str, str] = dict(told["environment"])
    paths = [*told["paths"], *filter(None, [environment.get("PYTHONPATH")])]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    path = environment.get("PATH", os.defpath)
    found = shutil.which("python3", path=path) or ""
    own = environment.get("VIRTUAL_ENV")  # the job's, with what the image lacks
    if found != told["python"] and not (own and found.startswith(own + os.sep)):
        path = os.pathsep.join([os.path.dirname(told["python"]), path])
    return {**environment, "PATH": path}


class _Command:
    """Command that runs: `source` is where it prints if it has a terminal, `sink` where it reads."""

    def __init__(self, request: dict[str, Any], told: dict[str, Any]) -> None:
        import pty
        import signal

        # Python ignores the first two, and `nohup` or a script's background the others.
        ignored = signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT
        self.has_terminal = request["size"] is not None
        environment = environment_of(told) | request["environment"]
        words = request["command"] or [_shell(environment)]
        if self.has_terminal:
            self.pid, self.sink = pty.fork()
        else:
            reading, self.sink = os.pipe()
            self.pid = os.fork()
        if self.pid == 0:
            try:
                if self.has_terminal:
                    self._resize(0, *request["size"])
                else:
                    os.setsid()
                    os.dup2(reading, 0)
                for number in ignored:
                    signal.signal(number, signal.SIG_DFL)
                os.chdir(told["directory"])
                os.execvpe(words[0], words, environment)  # noqa: S606  what a person asked for
            except OSError as exc:
                os.write(2, f"kinetic: {words[0]}: {exc.strerror}\n".encode())
            finally:
                os._exit(127)
        if not self.has_terminal:
            os.close(reading)
        self.source = self.sink if self.has_terminal else -1
        os.set_blocking(self.sink, False)

    def obey(self, kind: bytes, content: bytes) -> None:
        """Pass on a message that is not input."""
        if kind == SIZE and self.has_terminal:
            self._resize(self.sink, *json.loads(content))
        elif kind == SIGNAL:
            self.signal(int(content))

    def signal(self, number: int) -> None:
        """Send a signal to the command and what it has started in its group."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            return  # it has ended

    def close_input(self) -> None:
        """End the command's input; a terminal's loss is the loss of its person."""
        if self.sink >= 0:
            os.close(self.sink)
        self.sink = self.source = -1

    def ended(self) -> int | None:
        """Return the exit code, None while the command runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    @staticmethod
    def _resize(terminal: int, rows: int, columns: int) -> None:
        import termios

        termios.tcsetwinsize(terminal, (rows, columns))


def _shell(environment: dict[str, str]) -> str:
    """Return the shell that the image has."""
    import shutil

    return shutil.which("bash", path=environment.get("PATH")) or "sh"


class _Relay:
    """Relay between a client, on stdin and stdout, and a command."""

    def __init__(self, command: _Command, woken: int) -> None:
        import time

        self._command, self._woken, self._clock = command, woken, time.monotonic
        self._arrived, self._typed, self._printed = bytearray(), bytearray(), bytearray()
        self._is_over = False  # of the command's input
        self._heard_at = self._clock()

    def run(self) -> int:
        """Pass on until the command has ended; return its exit code."""
        import select

        command = self._command
        os.set_blocking(0, False)
        if command.has_terminal:  # else the command has the same stdout, and may not expect that
            os.set_blocking(1, False)
        while (code := command.ended()) is None:
            readable, writable = [0, self._woken], []
            if len(self._typed) > _MOST:
                readable.remove(0)
            if command.source >= 0 and len(self._printed) < _MOST:
                readable.append(command.source)
            if self._printed:
                writable.append(1)
            if self._typed and command.sink >= 0:
                writable.append(command.sink)
            ready, free, _ = select.select(readable, writable, [], BEAT_SECONDS)
            if self._woken in ready:
                os.read(self._woken, _PIECE)
            if not self._pass_on(ready, free) or self._clock() - self._heard_at > _SILENCE:
                return self._hang_up()
        self._drain()
        return code

    def _pass_on(self, ready: list[int], free: list[int]) -> bool:
        """Read and write what is possible now; return False if the client is gone."""
        command = self._command
        if command.source in ready:
            self._read_command()
        try:
            if 1 in free:
                del self._printed[: os.write(1, self._printed)]
            if 0 in ready and not self._read_client():
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        if command.sink in free:
            try:
                del self._typed[: os.write(command.sink, self._typed)]
            except BlockingIOError:
                return True
            except OSError:  # it reads no more
                self._typed.clear()
                self._is_over = True
        if self._is_over and not self._typed and not command.has_terminal:
            command.close_input()
        return True

    def _read_client(self) -> bool:
        """Read messages; return False at the end of all."""
        piece = os.read(0, _PIECE)
        self._arrived += piece
        self._heard_at = self._clock()
        while len(self._arrived) >= 5:
            size = 5 + int.from_bytes(self._arrived[1:5], "big")
            if len(self._arrived) < size:
                break
            kind, content = bytes(self._arrived[:1]), bytes(self._arrived[5:size])
            del self._arrived[:size]
            if kind == DATA:
                self._typed += content
            elif kind == END:
                self._is_over = True
            else:
                self._command.obey(kind, content)
        return bool(piece)

    def _read_command(self) -> bool:
        """Read what the command has printed; return False if nothing comes (any more)."""
        try:
            piece = os.read(self._command.source, _PIECE)
        except BlockingIOError:
            return False
        except OSError:  # as Linux says that nobody has the terminal open any more
            piece = b""
        if not piece:
            self._command.source = -1
        self._printed += piece
        return bool(piece)

    def _drain(self) -> None:
        """Pass on the rest of what an ended command has printed."""
        import select

        while self._command.source >= 0 and self._read_command():
            pass
        try:
            while self._printed and select.select([], [1], [], _SILENCE)[1]:
                del self._printed[: os.write(1, self._printed)]
        except OSError:
            return

    def _hang_up(self) -> int:
        """End a command whose client is gone; return its exit code."""
        import signal
        import time

        command = self._command
        command.close_input()
        for number in (signal.SIGHUP, signal.SIGCONT):
            command.signal(number)
        give_up = self._clock() + _DYING_SECONDS
        while (code := command.ended()) is None:
            if self._clock() > give_up:
                command.signal(signal.SIGKILL)
            time.sleep(0.02)
        return code


def main(text: str) -> int:
    """Run the command of a request, a JSON object, beside the function of a job; return its exit code.

    `job_id` names the job; `command` are words, none for a shell; `size` has rows and columns of the
    terminal, null for none; `environment` has variables that the command gets besides.
    """
    import fcntl
    import signal

    request = json.loads(text)
    found = find_workspace(request["job_id"])
    if found is None:
        os.write(1, ABSENT)
        return 1
    descriptor, told = found
    # A function that waits for its shells reads that one has come, and sees the lock while it is there.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.write(descriptor, b" ")
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    os.write(1, BEGUN)
    return _Relay(_Command(request, told), woken).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
