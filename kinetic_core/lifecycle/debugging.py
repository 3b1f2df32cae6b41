"""Attaching a debugger to a job with `debug=True`: wait for it, forward a port to it, say how to connect."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from kinetic_core._runner import wire
from kinetic_core.cluster.pods import attempt_of, container_state, host_of
from kinetic_core.errors import InvalidRequest, ObjectNotFound, StoreError, WaitTimeout
from kinetic_core.lifecycle.backends import Backend, backend_of
from kinetic_core.lifecycle.forwarding import Forward
from kinetic_core.lifecycle.observing import watch
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

if TYPE_CHECKING:
    from kinetic_core.lifecycle.hub import Subscription

_PAUSE = 0.3
_TERMINATED = "terminated here"


@dataclass(frozen=True)
class Debugger:
    """What listens in a job: in which pod, at which port of its loopback, with the project where."""

    pod: str
    port: int
    workspace: str


class HasEnded(InvalidRequest):
    """The job has ended: nothing is left of it to attach to."""


class DebugSession:
    """A local port that leads to the debugger of a job, until `terminate()` or the job's end.

    Ending it detaches the debugger and nothing else: the job goes on without. When the job has ended, a
    debugger has two seconds to hear of it. Also a context manager.
    """

    def __init__(self, reference: JobReference, forward: Forward) -> None:
        self._reference, self._forward = reference, forward
        self._attempt: int | None = None
        self._why: str | None = None
        self._over = threading.Event()
        self._subscription: Subscription = watch(reference, self._look)

    @property
    def port(self) -> int:
        """Where on this machine's loopback (127.0.0.1) a debugger connects."""
        return self._forward.port

    def poll(self) -> str | None:
        """None while a debugger can connect; else why it cannot any more, as a sentence."""
        return self._why

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is over and say why, as `poll` does. Raises WaitTimeout after `timeout` seconds."""
        if not self._over.wait(timeout):
            raise WaitTimeout(f"{self._reference.job_id}: port {self.port} still leads to its debugger")
        return str(self._why)

    def terminate(self) -> None:
        """Close the port and what is connected through it; nothing is left open. May be called again."""
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
    reference: JobReference,
    listener: socket.socket,
    working_dir: str | None,
    scheduling_timeout: float,
    listening_timeout: float,
    on_status: Callable[[JobStatus], None] = lambda _status: None,
) -> DebugSession:
    """Let a port that listens here lead to the job's debugger, once there is one; say how to connect to it.

    `on_status` hears how the job is until it has started. Raises InvalidRequest for a job without
    `debug=True`, HasEnded, WaitTimeout naming the time that was too short, ConfigurationError where ports may
    not be forwarded, ClusterError. Whatever is raised, the listener is closed.
    """
    try:
        backend = backend_of(reference)
        debugger = _awaited(backend, reference, scheduling_timeout, listening_timeout, on_status)
    except BaseException:
        listener.close()
        raise
    dial = partial(backend.ports.dial, reference.namespace, debugger.pod, debugger.port)
    session = DebugSession(reference, Forward(listener, dial))
    sys.stderr.write(instructions(reference.job_id, session.port, debugger.workspace, working_dir))
    sys.stderr.flush()
    return session


def instructions(job_id: str, port: int, workspace: str, working_dir: str | None) -> str:
    """What a person at VS Code needs: the job has the project in `workspace`, they in `working_dir`."""
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
    on_status: Callable[[JobStatus], None],
) -> Debugger:
    """The job's debugger, once it listens."""
    if not reference.debug:
        raise InvalidRequest(f"{reference.job_id} was not started with debug=True: it has no debugger")
    backend.ports.check(reference.namespace)
    news: SimpleQueue[JobObservation] = SimpleQueue()
    with closing(watch(reference, news.put)):
        _await_start(reference, news, scheduling, on_status)
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
    news: SimpleQueue[JobObservation],
    patience: float,
    on_status: Callable[[JobStatus], None],
) -> None:
    last, deadline = None, time.monotonic() + patience
    while (seen := _next(reference, news, deadline)) is not None:
        on_status(seen.status)
        if seen.status is JobStatus.RUNNING:
            return
        last = seen
    told = f": {last.reason}: {_told(last)}" if last else ""
    raise WaitTimeout(
        f"{reference.job_id} has not started within scheduling_timeout={patience:g} s{told}. It goes on "
        "waiting; attach again with debug_attach(), or stop it with cancel()"
    )


def _next(
    reference: JobReference, news: SimpleQueue[JobObservation], deadline: float
) -> JobObservation | None:
    """What comes to be known of the job, None if nothing does in time. Raises HasEnded."""
    try:
        seen = news.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        return None
    if seen.is_terminal:
        raise HasEnded(
            f"{reference.job_id} has ended: {_told(seen)}. There is nothing left to attach to; result() has "
            "its value, or raises what it raised"
        )
    return seen


def _found(backend: Backend, reference: JobReference) -> Debugger | None:
    found = backend.get(reference.namespace, reference.job_id)
    pods = [
        pod for pod in (found[1] if found else ()) if host_of(pod) == 0 and "running" in container_state(pod)
    ]
    if not pods:
        return None
    pod = max(pods, key=attempt_of)["metadata"]
    try:
        told = json.loads(backend.store.read(wire.debugger_object(reference.job_id, pod["uid"])))
        return Debugger(pod["name"], int(told["port"]), str(told["workspace"]))
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        raise StoreError(
            f"what {reference.job_id} says of its debugger is unreadable, and not its runner's: {exc!r}"
        ) from exc


def _told(seen: JobObservation) -> str:
    if seen.reason == "DeadlineExceeded":
        return f"{seen.message} (timeout= counts the time spent in a debugger, too)"
    return seen.message or seen.reason or seen.status.value
