"""Process with the function of a map, which forks a process for each input that its lane gives it (lane.py).

It is told so through a socket. It has no key, and runs no input itself.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from . import object_names, results, wire
from .attempt import Job
from .changed_files import ChangedFiles, may_write
from .child import OUTCOME_FILE, SetUp, leave_file, prepare_process, reserve, run_function, stop, wind_down
from .evidence import death
from .memory import MemoryGauge
from .outcome import Outcome, failed
from .processes import adopt_orphans, die_with, end_below, fork_quietly, seed_again
from .signing_key import forget_key, set_readable
from .store import Store
from .watch import Ending, Signals

_SMALL = 48 << 10
"""Bytes of an outcome that is told through a pipe."""
IN_FILE = b"file"
"""Stands in the pipe for an outcome that is in the file of the input's working directory."""
_ANSWER_SECONDS = 60.0
"""Seconds after which the process with the function, whose modules may have hung its fork, counts as dead."""
_LONGEST_LOG = 1 << 20
_LENGTH = struct.Struct(">I")
_STATUS = struct.Struct(">i")
_READY, _COLLECT, _WATCHED, _MAY_WRITE = b"\1", b"\2", b"\3", b"\4"


class SetUpFailed(Exception):
    """The function cannot be loaded; `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Template:
    """Process with the function, which forks a process for each input. It is told so through a socket."""

    def __init__(
        self,
        job: Job,
        first: Job,
        store: Store,
        signals: Signals,
        header: dict[str, Any],
        parts: dict[str, bytes],
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """Start the process. `first` is the input for which it is made, whose key it must not have either.

        Raises SetUpFailed if the disk has no room for it.
        """
        self._job, self._first, self._store, self._signals = job, first, store, signals
        self._workspace = os.path.join(job.work_dir, "workspace")
        shutil.rmtree(self._workspace, ignore_errors=True)
        if os.path.lexists(self._workspace):  # an input has made a directory that nobody may empty
            os.rename(self._workspace, f"{self._workspace}-{time.monotonic_ns()}")
        for name in (OUTCOME_FILE, OUTCOME_FILE + ".reserve"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(job.work_dir, name))
        if (unreserved := reserve(job)) is not None:
            raise SetUpFailed(unreserved)
        self._files: ChangedFiles | None = None
        self._log = os.path.join(job.work_dir, "template.log")
        self.is_dead = False
        self._child = 0
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(answer_seconds)
        self.descriptor = self._ours.fileno()
        runner = os.getpid()
        sys.stdout.flush()
        self._process, mask = fork_quietly()
        if self._process == 0:
            self._become_template(runner, mask, theirs, header, parts)
        theirs.close()

    def wait_until_ready(self) -> None:
        """Wait until the function is loaded. Raises SetUpFailed."""
        while True:
            ready, _, _ = select.select([self.descriptor, self._signals.descriptor], [], [])
            if self._signals.descriptor in ready:
                os.read(self._signals.descriptor, 1 << 10)
            if self.descriptor in ready:
                break
            if self._signals.told:
                raise SetUpFailed(failed(wire.FailureClass.PREEMPTED, "the lane was told to end", "start"))
        if self._ours.recv(1) == _READY:
            self._watch_files()
            return
        try:
            raise SetUpFailed(Outcome.from_file(os.path.join(self._job.work_dir, OUTCOME_FILE)))
        except (FileNotFoundError, wire.FrameError):
            _, status = os.waitpid(self._process, 0)
            self._process = 0
            code = os.waitstatus_to_exitcode(status)
            ending = Ending(code if code >= 0 else None, -code if code < 0 else None, False)
            raise SetUpFailed(death(ending, self._last_lines(), MemoryGauge())) from None

    def _watch_files(self) -> None:
        """Watch the project's files, unless what inputs inherit lets them write there unseen."""
        self._files = ChangedFiles(self._workspace)
        answer = b""
        try:
            self._ours.sendall(_WATCHED)
            answer = self._ours.recv(1)
        except OSError:
            self.is_dead = True  # what it answers later would be read as another answer
        if answer != _READY:
            self._files.close()

    def fork(self, own: Job, parts: Mapping[str, bytes], *pipes: int) -> int:
        """Have a process run an input; return its id, 0 if the template is dead.

        `pipes`: for what it prints, and for its outcome.
        """
        if self.is_dead:
            return 0
        counts = {"failed": own.failed_count, "ignored": own.attempt - own.failed_count}
        message = wire.encode_frame(
            {"protocol": wire.PROTOCOL, "index": own.index, "folder": own.work_dir, **counts}, parts
        )
        try:
            socket.send_fds(self._ours, [_LENGTH.pack(len(message))], list(pipes))
            self._ours.sendall(message)
            self._child = int(_STATUS.unpack(_exactly(self._ours, _STATUS.size))[0])
        except OSError:
            self.is_dead = True
        return self._child

    def status(self, ready: bool) -> int | None:
        """Return the status of an input's process once nothing of the input lives; as `watch.Parent`."""
        if not ready and not self.is_dead:
            return None
        try:
            if self.is_dead:
                raise ConnectionError
            status = int(_STATUS.unpack(_exactly(self._ours, _STATUS.size))[0])
            self._child = 0
            self._ours.sendall(_COLLECT)
            _exactly(self._ours, 1)
        except OSError:
            self.is_dead = True
            self._kill()
            return signal.SIGKILL
        return status

    def is_spoiled(self) -> bool:
        """Return whether an input has changed a file of the project; removes what it has spawned with."""
        shutil.rmtree(os.path.join(self._job.work_dir, "spawned"), ignore_errors=True)
        return self._files is None or self._files.found()

    def close(self) -> None:
        """End the process and everything below it, and store what it has printed."""
        if self._files is not None:  # before another is forked, which must not have its descriptor
            self._files.close()
        self._ours.close()
        self._kill()
        try:
            with open(self._log, "rb") as stream:
                text = stream.read(_LONGEST_LOG)
            os.unlink(self._log)
            if text:
                name = object_names.log(self._job.job_id, self._job.attempt, time.time_ns() // 1000)
                self._store.create_if_absent(name, text)
        except OSError as exc:
            sys.stderr.write(f"kinetic: what the function's modules have printed is not stored: {exc}\n")

    def _kill(self) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        if self._child:  # where the kernel does not end it with its parent
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
        self._process = self._child = 0
        end_below(os.getpid(), collect=True, is_local=self._job.backend == "local")

    def _last_lines(self) -> tuple[str, ...]:
        try:
            with open(self._log, errors="replace") as stream:
                return tuple(stream.read().splitlines()[-20:])
        except OSError:
            return ()

    def _become_template(
        self,
        runner: int,
        mask: set[signal.Signals | int],
        control: socket.socket,
        header: dict[str, Any],
        parts: dict[str, bytes],
    ) -> None:
        try:
            die_with(runner)
            os.setsid()
            adopt_orphans()
            forget_key(self._first.outcome_key)
            self._signals.release()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._ours.close()
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            prepare_process(self._job)
            _Serving(self._job, self._store, control, header, parts).run()
        finally:
            os._exit(1)


class _Serving:
    """What the template does in its process."""

    def __init__(
        self, job: Job, store: Store, control: socket.socket, header: dict[str, Any], parts: dict[str, bytes]
    ) -> None:
        self._job, self._control = job, control
        self._output_dir = header["output_dir"]
        self._set_up = SetUp(job, store)
        self._header = {**header, "output_dir": "", "env": dict(header["env"])}
        self._parts = parts

    def run(self) -> None:
        loaded = self._set_up.made(lambda: self._set_up.load(self._header, self._parts))
        if isinstance(loaded, Outcome):
            leave_file(self._job, loaded)
            return
        payload, function, _ = loaded
        sys.stdout.flush()
        gc.freeze()  # or a collection in an input's process would copy all pages
        sys.dont_write_bytecode = True  # files of the project stay as they are
        set_readable(readable=False)  # inputs, of the same user, then neither read nor change this process
        self._control.sendall(_READY)
        _exactly(self._control, 1)  # what a thread opens from now on, the runner hears of
        has_files = may_write(os.path.join(self._job.work_dir, "workspace"))
        self._control.sendall(_MAY_WRITE if has_files else _READY)
        process = os.getpid()
        while True:
            head, pipes, _, _ = socket.recv_fds(self._control, _LENGTH.size, 2)
            if not head:
                return
            head += _exactly(self._control, _LENGTH.size - len(head))
            told, parts = wire.decode_frame(_exactly(self._control, *_LENGTH.unpack(head)))
            child, mask = fork_quietly()
            if child == 0:
                self._become_input(process, mask, pipes, told, parts, payload, function)
            for pipe in pipes:
                os.close(pipe)
            self._control.sendall(_STATUS.pack(child))
            status = _ended(child)
            self._control.sendall(_STATUS.pack(status))
            _exactly(self._control, 1)  # from now on the runner does not kill that process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            end_below(process, collect=True, is_local=self._job.backend == "local")
            self._control.sendall(_READY)

    def _become_input(
        self,
        template: int,
        mask: set[signal.Signals | int],
        pipes: Sequence[int],
        told: Mapping[str, Any],
        parts: Mapping[str, bytes],
        payload: Any,
        function: Any,
    ) -> None:
        code = 1
        try:
            die_with(template)
            set_readable(readable=True)
            os.setsid()
            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._control.close()
            output, outcome_pipe = pipes
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            seed_again()
            own, set_up = self._input(told), self._set_up
            taken: tuple[Any, Any] | Outcome | None = self._make_folders(own)
            if taken is None:
                taken = set_up.made(lambda: set_up.take_input(own, payload, parts))
            outcome = taken if isinstance(taken, Outcome) else run_function(own, set_up, function, *taken)
            _tell(own, outcome, {"times": set_up.times or {}}, outcome_pipe)
            code = wind_down()
        finally:
            os._exit(code)

    def _input(self, told: Mapping[str, Any]) -> Job:
        """Return the job of an input, and give this process its environment."""
        lane = self._job.lane
        assert lane is not None  # noqa: S101
        job_id = object_names.input_id(lane.group_id, told["index"])
        os.environ["KINETIC_JOB_ID"] = os.environ["JOB_ID"] = job_id
        if os.environ.get("HOME") == os.environ["KINETIC_WORK_DIR"]:  # in a pod, where both are one volume
            os.environ["HOME"] = told["folder"]
        os.environ["KINETIC_WORK_DIR"] = told["folder"]
        os.environ["KINETIC_FAILED_COUNT"] = str(told["failed"])
        os.environ["KINETIC_IGNORED_COUNT"] = str(told["ignored"])
        os.environ["KINETIC_OUTPUT_DIR"] = f"{self._output_dir}{told['index']}"
        os.environ.pop("KINETIC_LANE", None)
        os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")  # as for this process
        return replace(self._job, job_id=job_id, work_dir=told["folder"], lane=None)

    def _make_folders(self, own: Job) -> Outcome | None:
        """Make the directories that an input's environment names; return the failure, if any."""
        outputs = os.environ["KINETIC_OUTPUT_DIR"]
        try:
            if os.environ.get("HOME") == own.work_dir:
                os.makedirs(own.work_dir)
            if self._output_dir and "://" not in outputs:
                os.makedirs(outputs, exist_ok=True)
        except OSError as exc:
            return results.without_disk(exc, own)
        return None


def _tell(own: Job, outcome: Outcome, told: Mapping[str, object], pipe: int) -> None:
    """Write an outcome to a pipe; a large one to a file."""
    if (
        sum(map(wire.part_size, outcome.parts.values())) > _SMALL // 2
        or len(frame := _frame(outcome, told)) > _SMALL
    ):
        try:
            os.makedirs(own.work_dir, exist_ok=True)
            with open(os.path.join(own.work_dir, OUTCOME_FILE), "wb") as stream:
                outcome.write(stream)
            frame = IN_FILE
        except BaseException as exc:  # noqa: BLE001  whatever it is, it is told
            frame = _frame(results.unwritten(outcome, exc), told)
    while frame:
        frame = frame[os.write(pipe, frame) :]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is lost any more
    results.flush_streams()


def _frame(outcome: Outcome, told: Mapping[str, object]) -> bytes:
    frame = outcome.to_frame(told)
    assert isinstance(frame, bytes)  # noqa: S101  its parts are in memory
    return frame


def _ended(child: int) -> int:
    """Wait until a process has ended, which stays there for `kill`; return its status."""
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert found is not None  # noqa: S101  without WNOHANG
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status


def _exactly(control: socket.socket, size: int) -> bytes:
    """Read so many bytes. Raises ConnectionError at the end of the stream."""
    content = bytearray()
    while len(content) < size:
        piece = control.recv(size - len(content))
        if not piece:
            raise ConnectionError("the other side has ended")
        content += piece
    return bytes(content)
