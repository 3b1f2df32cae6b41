"""Debugger of a job with `debug=True`: wait for it, forward a port to it, say how to connect."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest, KineticError, ObjectNotFound, WaitTimeout
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.forward import Forward
from kinetic_core.jobs.observe import watch
from kinetic_core.store.documents import read_document

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.watch import Subscription
    from kinetic_core.options import RunOptions

_PAUSE = 0.3
_TERMINATED = "terminated here"


@dataclass(frozen=True)
class Debugger:
    """Address of a job's debugger: pod, port on the pod's loopback, and the project's directory there."""

    pod: str
    port: int
    workspace: str


class HasEnded(InvalidRequest):
    """The job has ended, so that no debugger can attach."""


class DebugSession:
    """Local port that leads to the debugger of a job, until `terminate()` or the job's end.

    Terminating the session detaches the debugger and leaves the job running. When the job ends, a connected
    debugger has two seconds to receive the end. Also a context manager.
    """

    def __init__(self, backend: Backend, reference: JobReference, forward: Forward) -> None:
        self._reference, self._forward = reference, forward
        self._attempt: int | None = None
        self._why: str | None = None
        self._over = threading.Event()
        self._subscription: Subscription = watch(backend, reference, self._look)

    @property
    def port(self) -> int:
        """Return the port on this machine's loopback (127.0.0.1) to which a debugger connects."""
        return self._forward.port

    def poll(self) -> str | None:
        """Return None while a debugger can connect, else a sentence saying why none can."""
        return self._why

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the session is over; return why. Raises WaitTimeout after `timeout` seconds."""
        if not self._over.wait(timeout):
            raise WaitTimeout(f"{self._reference.job_id}: port {self.port} still leads to its debugger")
        return str(self._why)

    def terminate(self) -> None:
        """Close the port and all connections through it. May be called again."""
        if self._why is None:
            self._why = _TERMINATED
            self._forward.close()
        self._over.set()
        self._subscription.close()
        self._forward.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._forward.drain()
        self._over.set()

    def _look(self, seen: JobObservation) -> None:
        job = self._reference.job_id
        if seen.is_terminal:
            self._end(f"{job} has ended: {_told(seen)}")
            return
        self._attempt = seen.attempt if self._attempt is None else self._attempt
        if seen.status is not JobStatus.RUNNING or seen.attempt != self._attempt:
            self._end(f"the pod of {job} that was debugged is gone: {_told(seen)}")


def attach(
    backend: Backend,
    reference: JobReference,
    listener: socket.socket,
    working_dir: str | None,
    scheduling_timeout: float,
    listening_timeout: float,
    on_change: Callable[[JobObservation], None] = lambda _seen: None,
) -> DebugSession:
    """Forward a listening local port to the job's debugger once it listens, and print how to connect.

    `on_change` is called with every observation until the job has started; the time-outs are in seconds.
    Raises InvalidRequest for a job without `debug=True`, HasEnded, WaitTimeout naming the time that was too
    short, ConfigurationError where ports may not be forwarded, ClusterError. Every error closes the listener.
    """
    try:
        debugger = _awaited(backend, reference, scheduling_timeout, listening_timeout, on_change)
    except BaseException:
        listener.close()
        raise
    dial = partial(backend.ports.dial, reference.namespace, debugger.pod, debugger.port)
    session = DebugSession(backend, reference, Forward(listener, dial))
    sys.stderr.write(instructions(reference.job_id, session.port, debugger.workspace, working_dir))
    sys.stderr.flush()
    return session


def instructions(job_id: str, port: int, workspace: str, working_dir: str | None) -> str:
    """Return instructions for VS Code: the job has the project in `workspace`, the user in `working_dir`."""
    entry: dict[str, Any] = {
        "name": f"kinetic {job_id}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": working_dir or "${workspaceFolder}", "remoteRoot": workspace}],
    }
    return (
        f"kinetic: {job_id} waits for a debugger at 127.0.0.1:{port}. In VS Code, set a breakpoint, put this "
        f'into "configurations" of .vscode/launch.json, and press F5:\n{json.dumps(entry, indent=2)}\n'
    )


def _awaited(
    backend: Backend,
    reference: JobReference,
    scheduling: float,
    listening: float,
    on_change: Callable[[JobObservation], None],
) -> Debugger:
    """Wait until the job's debugger listens; return its address."""
    if not reference.debug:
        raise InvalidRequest(f"{reference.job_id} was not started with debug=True: it has no debugger")
    backend.ports.check(reference.namespace)
    news: SimpleQueue[JobObservation | KineticError] = SimpleQueue()
    with closing(watch(backend, reference, news.put, refused=news.put)):
        _await_start(reference, news, scheduling, on_change)
        deadline = time.monotonic() + listening
        while (debugger := _found(backend, reference)) is None:
            if time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"{reference.job_id} has started, but its debugger does not listen within "
                    f"listening_timeout={listening:g} s: files, packages or data are still fetched, or other "
                    "hosts of its slice are not there; its log says which. It goes on; attach again with "
                    "debug_attach()"
                )
            _next(reference, news, min(deadline, time.monotonic() + _PAUSE))
    return debugger


def _await_start(
    reference: JobReference,
    news: SimpleQueue[JobObservation | KineticError],
    patience: float,
    on_change: Callable[[JobObservation], None],
) -> None:
    last, deadline = None, time.monotonic() + patience
    while (seen := _next(reference, news, deadline)) is not None:
        on_change(seen)
        if seen.status is JobStatus.RUNNING:
            return
        last = seen
    told = f": {last.reason}: {_told(last)}" if last else ""
    raise WaitTimeout(
        f"{reference.job_id} has not started within scheduling_timeout={patience:g} s{told}. It goes on "
        "waiting; attach again with debug_attach(), or stop it with cancel()"
    )


def _next(
    reference: JobReference, news: SimpleQueue[JobObservation | KineticError], deadline: float
) -> JobObservation | None:
    """Return the job's next observation, None at the deadline. Raises HasEnded, and as `wait`."""
    try:
        seen = news.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        return None
    if isinstance(seen, KineticError):
        raise seen
    if seen.is_terminal:
        raise HasEnded(
            f"{reference.job_id} has ended: {_told(seen)}. There is nothing left to attach to; result() has "
            "its value, or raises what it raised"
        )
    return seen


def _found(backend: Backend, reference: JobReference) -> Debugger | None:
    found = backend.get(reference.namespace, reference.job_id)
    pods = [pod for pod in (found[1] if found else ()) if Pod(pod).host == 0 and Pod(pod).is_running]
    if not pods:
        return None
    pod = max(pods, key=lambda pod: Pod(pod).attempt)["metadata"]
    try:
        name = object_names.debugger(reference.job_id, pod["uid"])
        told = read_document(backend.store, name, port=int, workspace=str)
    except ObjectNotFound:
        return None
    return Debugger(pod["name"], told["port"], told["workspace"])


def _told(seen: JobObservation) -> str:
    if seen.reason == "DeadlineExceeded":
        return f"{seen.message} (timeout= counts the time spent in a debugger, too)"
    return seen.message or seen.reason or seen.status.value


Door = Callable[["JobHandle"], AbstractContextManager[object]]
"""Function that opens a job to a debugger for as long as the context lasts."""


@contextmanager
def debug_door(
    function: Callable[..., Any],
    options: RunOptions,
    connections: Connections,
    on_change: Callable[[JobObservation], None],
) -> Iterator[Door]:
    """Open a call's job to a debugger; without `debug=True` the door does nothing.

    Reserves the local port at once. Raises InvalidRequest without a terminal, or if the port is taken;
    ConfigurationError where ports may not be forwarded.
    """
    if not options.debug:
        yield lambda _handle: nullcontext()
        return
    from kinetic_core.backends.base import backend_name, open_backend
    from kinetic_core.jobs.forward import listening
    from kinetic_core.jobs.handle import LISTENING_SECONDS, SCHEDULING_SECONDS
    from kinetic_core.project.callables import source_file
    from kinetic_core.project.root import locate_project

    connections = connections.with_settings(options.settings(connections.settings))
    settings = connections.settings
    if not (settings.debug_without_tty or (sys.stdin is not None and sys.stdin.isatty())):
        raise InvalidRequest(
            "debug=True: the call waits for a person with a debugger, and stdin is no terminal. Start it "
            "with run_async() and attach with debug_attach() or 'kinetic jobs debug', or set "
            "KINETIC_NO_TTY_DEBUG=1"
        )
    root = locate_project(source_file(function), package_root=settings.package_root).root
    with listening(settings.debug_port) as listener:
        name = backend_name(options.backend, options.accelerator.hosts, connections)
        open_backend(name, connections).ports.check(settings.namespace)

        def door(handle: JobHandle) -> AbstractContextManager[object]:
            try:
                return attach(
                    handle.place,
                    handle,
                    listener,
                    str(root),
                    SCHEDULING_SECONDS,
                    LISTENING_SECONDS,
                    on_change,
                )
            except HasEnded:
                return nullcontext()  # its result says how

        yield door
