"""Process that a worker keeps for its calls: `reuse=` (ADR 0071).

Below the worker runs a *keeper*, which has no key and outlives the runners of the calls. With
`reuse="process"` it has one process, in which one call runs after the other: what the calls have imported
stays, and so does what the device knows. With `reuse="fork"` each call has a process of its own, a fork of
the keeper, which has imported what earlier calls imported of the image.

A runner asks the keeper through a socket that the worker has made, and gives it a channel of the call's own.
Through that the keeper says which process runs the call, and how that process ended. If the runner dies, its
end of the channel closes, and the keeper kills the process. Of keys the process gets one, which signs the
versions of the packages that the call installs and nothing else. It is overwritten before the function loads.

Of a slice each host has a keeper. Processes that have formed one JAX cluster go on together or not at all, so
a process has the mark of the generation in which it began, and hosts with other marks begin anew together
(rendezvous.py).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from .attempt import FORK, PROCESS, Job, take_job
from .child import SetUp, renew_signals, run_child, wind_down
from .memory import NEAR, MemoryGauge
from .patience import PatientStore
from .processes import adopt_orphans, die_with, end_below, fork_quietly, seed_again
from .project_modules import ProjectModules
from .results import flush_streams
from .signing_key import VARIABLE, forget_key
from .sizes import shown_size
from .store import Store

if TYPE_CHECKING:
    from .rendezvous import ProcessOfHost

_NUMBER = struct.Struct("<i")
_ORDER = struct.Struct("<c64s")
"""What a runner asks of a keeper, and the mark of a process."""
_CALL, _ASK = b"c", b"a"
_NEW, _SAME = b"n", b"s"
"""Orders to run a call in a new process of that mark, and in the one of that mark or in none."""
_KEPT = b"k"
_KEY_BYTES = 32
"""Of the key of the call's lock, before the environment in the file that a runner leaves for the process."""
_LEAVE_SECONDS = 5.0
"""Seconds that a kept process has for its exit handlers when its worker ends."""
_ANSWER_SECONDS = 60.0
"""Seconds after which a keeper that does not begin with a call counts as dead: an import may have hung it."""
_MOST_TOLD = 1 << 20


class KeptProcess:
    """The worker's and a runner's side of the keeper."""

    def __init__(
        self,
        worker: Job,
        opener: Callable[[str], Store],
        on_start: Callable[[], None],
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """Start no process yet. `on_start` closes in a new keeper what belongs to the worker."""
        self._worker, self._opener, self._on_start = worker, opener, on_start
        self._answer_seconds = answer_seconds
        self._keeper = 0
        self._control: socket.socket | None = None
        self._channel: socket.socket | None = None

    @property
    def pids(self) -> Collection[int]:
        """Return what must live on when the processes of a call are ended."""
        return (self._keeper,) if self._keeper else ()

    def ensure(self) -> None:
        """Start a keeper if none lives: for the worker, before each attempt."""
        if self._keeper:
            with suppress(ChildProcessError):
                if os.waitpid(self._keeper, os.WNOHANG)[0] == 0:
                    return
            self._forget()
        ours, theirs = socket.socketpair()
        worker = os.getpid()
        sys.stdout.flush()
        self._keeper, mask = fork_quietly()
        if self._keeper == 0:
            self._become_keeper(worker, mask, ours, theirs)
        theirs.close()
        self._control = ours

    def close(self) -> None:
        """End the keeper and its process, which may run its exit handlers: for the worker, at its end."""
        if not self._keeper:
            return
        assert self._control is not None  # noqa: S101  both are there, or neither
        self._control.close()
        deadline = time.monotonic() + _LEAVE_SECONDS
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(self._keeper, os.WNOHANG)[0]:
                    self._keeper = 0
                    return
                time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Kill the keeper and so its process: for the worker, which starts another for the next call."""
        if self._keeper:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._keeper, signal.SIGKILL)
                os.waitpid(self._keeper, 0)
            self._forget()

    def mark(self) -> str:
        """Return the mark of the process that waits for a call, "" for none: for the runner of a call.

        Raises OSError if the keeper is dead, or hangs.
        """
        self._order(_ASK, "")
        assert self._channel is not None  # noqa: S101  the order has one
        with self._channel:
            mark = self._channel.recv(_ORDER.size, socket.MSG_WAITALL)
        if not mark:
            raise ConnectionError("the process that is kept for calls has died")
        return mark.strip(b"\0").decode("ascii")

    def run(self, job: Job, output: int, process: ProcessOfHost | None = None) -> int:
        """Have a call run with this process's environment: for its runner. Return the id of its process.

        What it prints goes to the pipe `output`. `process` says which one it must be on a host of a slice.
        Raises OSError if the keeper is dead, or hangs, or the process is not there any more.
        """
        path = os.path.join(job.work_dir, "told")  # which is removed at once
        told = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(path)
        content = job.key_of_lock() + json.dumps(dict(os.environ)).encode()
        while content:
            content = content[os.write(told, content) :]
        os.lseek(told, 0, os.SEEK_SET)
        order, mark = _CALL, ""
        if process is not None:
            order, mark = _NEW if process.is_new else _SAME, process.mark
        try:
            self._order(order, mark, output, told)
        finally:
            os.close(told)
        child = self._answer()
        if child is None:
            raise ConnectionError("the process that is kept for calls has died")
        assert self._channel is not None  # noqa: S101  the order has one
        self._channel.settimeout(None)
        return child

    def _order(self, order: bytes, mark: str, *descriptors: int) -> None:
        """Send an order with a channel for its answers."""
        assert self._control is not None  # noqa: S101  `ensure` has made it
        self._channel, theirs = socket.socketpair()
        with theirs:
            content = _ORDER.pack(order, mark.encode("ascii"))
            socket.send_fds(self._control, [content], [theirs.fileno(), *descriptors])
        self._channel.settimeout(self._answer_seconds)

    @property
    def descriptor(self) -> int:
        """Return what becomes readable when the call's process has ended; as `watch.Parent`."""
        assert self._channel is not None  # noqa: S101  a call runs
        return self._channel.fileno()

    def status(self, ready: bool) -> int | None:
        """Return the status of the call's process once it has ended, or is kept; as `watch.Parent`."""
        if not ready:
            return None
        status = self._answer()
        return signal.SIGKILL if status is None else status

    def _answer(self) -> int | None:
        assert self._channel is not None  # noqa: S101  a call runs
        try:
            content = self._channel.recv(_NUMBER.size, socket.MSG_WAITALL)
        except ConnectionError:
            content = b""
        return int(_NUMBER.unpack(content)[0]) if len(content) == _NUMBER.size else None

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control, self._keeper = None, 0

    def _become_keeper(
        self, worker: int, mask: set[signal.Signals | int], ours: socket.socket, control: socket.socket
    ) -> None:
        try:
            die_with(worker)
            os.setsid()
            adopt_orphans()
            forget_key(self._worker.outcome_key)
            self._on_start()
            ours.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            kinds = {PROCESS: _OneProcess, FORK: _Forks}
            kinds[self._worker.reuse](control, self._worker, self._opener).serve()
        except BaseException:  # noqa: BLE001  whatever it is, it is told
            traceback.print_exc()
        finally:
            os._exit(1)


class _Keeper(ABC):
    """What a keeper does: it has calls run, one at a time."""

    def __init__(self, control: socket.socket, worker: Job, opener: Callable[[str], Store]) -> None:
        self._control, self._worker, self._opener = control, worker, opener
        self._is_local = worker.backend == "local"
        self._process = 0
        """The process that runs a call, or waits for one; 0 for none."""
        self._mark = b""
        self._socket: socket.socket | None = None
        self._ends, waker = os.pipe()  # becomes readable when a process ends: others may hold its socket
        for descriptor in (self._ends, waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Run calls until the worker ends."""
        while True:
            content, received, _, _ = socket.recv_fds(self._control, _ORDER.size, 3, socket.MSG_WAITALL)
            if not content:
                self._leave()
                return
            order, mark = _ORDER.unpack(content)
            channel, *streams = received
            with socket.socket(fileno=channel) as answers:
                if order == _ASK:
                    with suppress(ConnectionError):
                        answers.sendall(self._living_mark())
                else:
                    output, told = streams
                    self._run(order, mark, output, told, answers)

    def _run(self, order: bytes, mark: bytes, output: int, told: int, answers: socket.socket) -> None:
        """Have a process run a call, and say how it ends."""
        is_there = order != _SAME or self._living_mark() == mark
        if order == _NEW and self._process:
            self._kill()
        if is_there:
            self._begin(output, told, answers, must_be_same=order == _SAME)
        for descriptor in (output, told):
            os.close(descriptor)
        if not is_there or not self._process:
            return  # which closes the channel: the runner knows that its process is gone
        self._mark = mark
        with suppress(ConnectionError):  # the runner has died, which `_ended` finds out
            answers.sendall(_NUMBER.pack(self._process))
        status = self._ended(answers)
        with suppress(ConnectionError):
            answers.sendall(_NUMBER.pack(status))
        answers.close()
        self._after()

    def _living_mark(self) -> bytes:
        """Return the mark of the process that waits for a call; only zeros if none lives."""
        if self._process and os.waitpid(self._process, os.WNOHANG)[0]:
            self._clear_up()
        return self._mark if self._process else bytes(_ORDER.size - 1)

    @abstractmethod
    def _begin(self, output: int, told: int, answers: socket.socket, *, must_be_same: bool) -> None:
        """Let a process run the call. If it is a new one, it closes its copy of `answers`.

        A call that `must_be_same` runs in the process that there is, or not at all.
        """

    @abstractmethod
    def _after(self) -> None:
        """Prepare for the next call, while its client has its answer."""

    def _leave(self) -> None:
        """End the process that waits for a call, if there is one."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # at which the process ends
            os.waitpid(self._process, 0)

    def _fork(self, become: Callable[[socket.socket], bool], answers: socket.socket) -> None:
        """Fork a process with a socket to this one; `become` returns whether its exit handlers may hang."""
        ours, theirs = socket.socketpair()
        keeper = os.getpid()
        sys.stdout.flush()
        child, mask = fork_quietly()
        if child == 0:
            code = 1
            try:
                die_with(keeper)
                os.setsid()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                renew_signals()
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                for inherited in (self._control, answers, ours):
                    inherited.close()
                code = wind_down(may_hang=become(theirs))
            except BaseException:  # noqa: BLE001  whatever it is, it is told
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        self._process, self._socket = child, ours

    def _ended(self, answers: socket.socket) -> int:
        """Wait until the call is over and nothing else of it lives; return its process's status.

        Kills the process if the runner dies, which closes its end of `answers`.
        """
        assert self._socket is not None  # noqa: S101  a process runs
        while True:
            sources = [answers.fileno(), self._socket.fileno(), self._ends]
            ready, _, _ = select.select(sources, [], [])
            if answers.fileno() in ready:
                self._kill()
                return signal.SIGKILL
            if self._socket.fileno() in ready and self._is_kept(self._socket):
                return 0
            if self._ends in ready:
                os.read(self._ends, 1 << 10)
                pid, status = os.waitpid(self._process, os.WNOHANG)
                if pid:
                    self._is_kept(self._socket)  # the last that it said
                    self._clear_up()
                    return status

    @abstractmethod
    def _is_kept(self, process: socket.socket) -> bool:
        """Read what the process has said, if anything; return whether the call is over, and it is kept."""

    def _clear_up(self) -> None:
        """Kill what is left of the process, which has ended."""
        assert self._socket is not None  # noqa: S101  a process ran
        self._socket.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process, signal.SIGKILL)
        self._process, self._socket = 0, None
        end_below(os.getpid(), collect=True, is_local=self._is_local)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._clear_up()


class _Forks(_Keeper):
    """Keeper that forks a process for each call, and imports what the calls import of the image."""

    def __init__(self, control: socket.socket, worker: Job, opener: Callable[[str], Store]) -> None:
        super().__init__(control, worker, opener)
        self._told = b""
        self._tried: set[str] = set()

    def _begin(self, output: int, told: int, answers: socket.socket, *, must_be_same: bool) -> None:
        del must_be_same  # there is none
        self._told = b""

        def run(keeper: socket.socket) -> bool:
            job, values = _taken(output, told)
            os.environ.clear()
            os.environ.update(values)
            seed_again()
            known = set(sys.modules)
            set_up = run_child(job, PatientStore(self._opener(job.store_uri)))
            flush_streams()
            imported = {"names": self._of_image(known), "environment": set_up.given}
            with suppress(OSError):
                keeper.sendall(json.dumps(imported).encode())
            return set_up.may_hang

        self._fork(run, answers)

    def _of_image(self, known: Collection[str]) -> list[str]:
        """Return the names of the image's modules that this call's process has imported itself."""
        away = os.path.realpath(self._worker.work_dir) + os.sep
        found = []
        for name, module in list(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if name in known or not isinstance(origin, str) or not os.path.isfile(origin):
                continue
            if not os.path.realpath(origin).startswith(away):
                found.append(name)
        return found

    def _is_kept(self, process: socket.socket) -> bool:
        with suppress(BlockingIOError, ConnectionError):
            while content := process.recv(1 << 16, socket.MSG_DONTWAIT):
                self._told += content[: _MOST_TOLD - len(self._told)]
        return False

    def _after(self) -> None:
        """Import what the call has imported; what cannot be imported here, calls import as ever."""
        try:
            told = json.loads(self._told)
            names, given = list(map(str, told["names"])), dict(told["environment"])
        except (ValueError, KeyError, TypeError):  # it has ended before it could say so
            return
        os.environ.update({str(name): str(value) for name, value in given.items()})
        for name in names:
            if name not in sys.modules and name not in self._tried:
                self._tried.add(name)
                try:
                    importlib.import_module(name)
                except (Exception, SystemExit) as exc:  # noqa: BLE001  it is a package's code
                    text = f"{name} is not imported for later calls: {type(exc).__name__}: {exc}"
                    sys.stderr.write(f"kinetic: {text}\n")
        gc.collect()
        gc.freeze()  # or a collection in a call's process would copy all pages


class _OneProcess(_Keeper):
    """Keeper of one process that runs call after call."""

    def _begin(self, output: int, told: int, answers: socket.socket, *, must_be_same: bool) -> None:
        if self._process:
            assert self._socket is not None  # noqa: S101  it has one
            try:
                socket.send_fds(self._socket, [_CALL], [output, told])
            except ConnectionError:  # it has died since
                self._kill()
            else:
                return
            if must_be_same:
                return

        def serve(keeper: socket.socket) -> bool:
            for inherited in (output, told):
                os.close(inherited)
            return _Calls(keeper, self._worker, self._opener).serve()

        self._fork(serve, answers)
        assert self._socket is not None  # noqa: S101  it has one
        socket.send_fds(self._socket, [_CALL], [output, told])

    def _is_kept(self, process: socket.socket) -> bool:
        try:
            is_kept = process.recv(1, socket.MSG_DONTWAIT) == _KEPT
        except (BlockingIOError, ConnectionError):
            return False
        if is_kept:
            # orphans; it has ended its own children
            end_below(os.getpid(), spared=(self._process,), is_local=self._is_local)
        return is_kept

    def _after(self) -> None:
        """Leave the process alone: it waits for the next call."""


class _Calls:
    """What the kept process does: it runs call after call."""

    def __init__(self, keeper: socket.socket, worker: Job, opener: Callable[[str], Store]) -> None:
        self._keeper, self._is_local = keeper, worker.backend == "local"
        self._store = PatientStore(opener(worker.store_uri))
        self._modules = ProjectModules(os.path.join(worker.work_dir, "kept"))
        self._streams = os.dup(1), os.dup(2)
        self._told = set(os.environ)

    def serve(self) -> bool:
        """Run calls until the keeper ends, or the process must not be kept.

        Returns whether exit handlers may hang; of a keeper that has ended, the worker ends what hangs.
        """
        while True:
            head, received, _, _ = socket.recv_fds(self._keeper, 1, 2)
            if not head:
                return False
            set_up = self._run(*received)
            if (reason := _why_not_kept(set_up.raised)) is not None:
                sys.stderr.write(f"kinetic: the next call gets a new process: {reason}\n")
                return set_up.may_hang
            for number, stream in enumerate(self._streams, start=1):
                os.dup2(stream, number)  # what threads still print goes to the worker's own output
            end_below(os.getpid(), collect=True, is_local=self._is_local)
            self._keeper.sendall(_KEPT)
            gc.unfreeze()  # `run_function` has frozen what was there, which may be garbage now
            gc.collect()

    def _run(self, output: int, told: int) -> SetUp:
        """Run a call; return its set-up, which knows what the call has raised."""
        job, values = _taken(output, told)
        for name in self._told - values.keys():
            os.environ.pop(name, None)
        os.environ.update(values)
        renew_signals()
        set_up = run_child(job, self._store, self._modules)
        forget_key(job.lock_key)  # if its set-up has failed
        self._told = {*values, *set_up.given, *set_up.secrets}
        self._modules.note()
        for descriptor in set_up.held:
            os.close(descriptor)
        flush_streams()
        return set_up


def _taken(output: int, told: int) -> tuple[Job, dict[str, str]]:
    """Print to the pipe `output` from now on; return the call and its environment, as its runner wrote it."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    key = bytearray(_KEY_BYTES)
    with open(told, "rb", buffering=0) as stream:  # a buffer would keep a copy of the key
        stream.readinto(key)
        values: dict[str, str] = json.loads(stream.read())
    return replace(take_job({**values, VARIABLE: ""}), lock_key=key), values


def _why_not_kept(error: BaseException | None) -> str | None:
    """Return why a process must not run another call, None if it may.

    Errors of devices are RuntimeErrors in JAX and PyTorch, and of classes of its own in TensorFlow.
    """
    if error is not None:
        kind = type(error)
        is_of_device = isinstance(error, RuntimeError | MemoryError | SystemError) or (
            kind.__module__.partition(".")[0] in ("tensorflow", "jaxlib")
        )
        is_harmless = isinstance(error, NotImplementedError | RecursionError)
        if not isinstance(error, Exception) or (is_of_device and not is_harmless):
            return f"the function ended by {kind.__name__}"
    if left := _threads():
        return f"threads still run: {', '.join(left)}"
    gauge = MemoryGauge()
    gauge.sample()
    if gauge.limit and gauge.peak >= NEAR * gauge.limit:
        return f"it uses {shown_size(gauge.peak)} of the {shown_size(gauge.limit)} that its pod has"
    return None


def _threads() -> list[str]:
    """Return the names of the threads that would keep a script from ending."""
    threading = sys.modules.get("threading")
    if threading is None:
        return []
    main = threading.main_thread()
    return [each.name for each in threading.enumerate() if each is not main and not each.daemon]
