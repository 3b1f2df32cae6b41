"""Shells beside functions of jobs: in the pod of a job that runs, and in one that a job waits in for them."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import SimpleQueue

from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import JOB_ID, WORKER
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.errors import ClusterError, ClusterUnreachable, InvalidRequest, KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.console import Console, converse
from kinetic_core.jobs.handle import LISTENING_SECONDS, JobHandle
from kinetic_core.jobs.logs import host_count
from kinetic_core.jobs.observe import observe, watch

IDLE_SECONDS = 300.0
"""Seconds that a job waits for its shell before it ends."""
_PAUSE = 0.5
_NEWS_SECONDS = 3.0
"""Seconds in which the end of a pod is seen after that of its processes."""
_KILLED = (128 + 9, 128 + 15)


class NoFunction(InvalidRequest):
    """No function of the job runs where a shell was to be opened: not yet, or not any more."""


class ShellLost(ClusterUnreachable):
    """The shell, or the way to it, ended by itself; the message says why."""


def open_shell(
    backend: Backend,
    reference: JobReference,
    command: Sequence[str] = (),
    host: int = 0,
    console: Console | None = None,
) -> int:
    """Run a command, or a shell, beside the function of a job that runs, with this process's streams.

    It has the function's directory and environment. Returns its exit code, 128 + n for signal n.

    Raises InvalidRequest for a job that does not run and for a host that it has not, NoFunction while files
    are fetched; ShellLost if pod or connection ended meanwhile; ConfigurationError where programs may not be
    run in pods; ClusterError.
    """
    if host not in range(host_count(reference)):
        raise InvalidRequest(f"{reference.job_id} has hosts 0 to {host_count(reference) - 1}, not {host}")
    backend.shells.check(reference.namespace)
    console = console or Console()
    pod = _pod(backend, reference, host)
    request = {
        "job_id": reference.job_id,
        "command": list(command),
        "size": console.size(),
        "environment": console.environment(),
    }
    process = backend.shells.start(reference.namespace, pod.name, json.dumps(request))
    try:
        has_run = converse(process, console)
    except ClusterError as exc:
        if not console.is_lent:
            raise
        raise ShellLost(_fate(backend, reference, pod) or f"{exc}. {reference.job_id} goes on") from exc
    if not has_run:
        raise NoFunction(
            f"{reference.job_id} has a pod, but its function does not run there: files, packages or data are "
            "still fetched, or the job is about to end, or an older Kinetic has submitted it. "
            f"kinetic jobs logs {reference.job_id} --follow says which"
        )
    code = process.exit_code
    assert code is not None  # noqa: S101  it has ended
    if code in _KILLED and (fate := _fate(backend, reference, pod)):
        raise ShellLost(fate)
    return code


def _pod(backend: Backend, reference: JobReference, host: int) -> Pod:
    """Return the pod of a job's host, a worker's for a call that runs there. Raises InvalidRequest."""
    seen = observe(backend, reference)
    if seen.is_terminal:
        raise InvalidRequest(
            f"{reference.job_id} has ended: {_told(seen)}. There is nothing left to open a shell in; "
            f"kinetic jobs logs {reference.job_id} has what it printed"
        )
    pods = [pod for pod in _pods(backend, reference) if pod.host == host and pod.is_running]
    if not pods:
        raise InvalidRequest(
            f"{reference.job_id} does not run yet, so that there is nothing to open a shell in. It waits: "
            f"{_told(seen)}"
        )
    return max(pods, key=lambda pod: (pod.labels.get(JOB_ID) == reference.job_id, pod.attempt))


def _pods(backend: Backend, reference: JobReference) -> list[Pod]:
    """Return the pods that a job has, and those of the worker that its Job names.

    The worker that the stored handle names is the word of whoever could write there: a person would be led
    into a pod of his.
    """
    own = backend.get(reference.namespace, reference.job_id)
    if own is None:
        return []
    job, pods = own
    worker_id = job["metadata"]["labels"].get(WORKER)
    worker = backend.get(reference.namespace, worker_id) if worker_id else None
    return [Pod(pod) for pod in (*pods, *(worker[1] if worker is not None else ()))]


def _fate(backend: Backend, reference: JobReference, pod: Pod) -> str:
    """Return what has become of a pod, "" if it runs."""
    give_up = time.monotonic() + _NEWS_SECONDS
    while True:
        try:
            seen = observe(backend, reference)
            living = [
                each.uid
                for each in _pods(backend, reference)
                if each.is_running and not each.is_being_deleted
            ]
        except KineticError as exc:
            return f"the connection to {reference.job_id} broke, and nobody says what has become of it: {exc}"
        if seen.is_terminal:
            return f"{reference.job_id} has ended: {_told(seen)}"
        if pod.uid not in living:
            return f"pod {pod.name} of {reference.job_id} is gone: {_told(seen)}"
        if time.monotonic() > give_up:
            return ""
        time.sleep(_PAUSE)


def _told(seen: JobObservation) -> str:
    """Return what an observation says, for people."""
    return ": ".join(dict.fromkeys(filter(None, [seen.reason, seen.message]))) or seen.status.value


def shell_function() -> Callable[[float], None]:
    """Return the function of a job that waits for its shells. Like one of a prompt, it is in no file."""
    function = types.FunctionType(_wait_for_shells.__code__, {"__builtins__": __builtins__}, "shell")
    function.__module__ = "kinetic_shell"
    return function


def _wait_for_shells(idle: float) -> None:
    """Wait until shells beside this function have come and gone; for the first, `idle` seconds at most."""
    import fcntl
    import os
    import time

    folder = "/proc/self/fd"
    names = [f"{folder}/{number}" for number in os.listdir(folder)]  # noqa: PTH208
    (own,) = (name for name in names if "kinetic-workspace" in os.path.realpath(name))
    give_up = time.monotonic() + idle
    with open(own, "rb") as memory:  # noqa: PTH123
        size = os.fstat(memory.fileno()).st_size
        while True:
            time.sleep(0.2)
            try:
                fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # a shell is there
            fcntl.flock(memory, fcntl.LOCK_UN)
            if os.fstat(memory.fileno()).st_size > size or time.monotonic() > give_up:
                return


def open_first_shell(
    handle: JobHandle,
    command: Sequence[str],
    on_change: Callable[[JobObservation], None],
    console: Console,
) -> int:
    """Open the shell of a job with `shell_function` once its function runs; otherwise as `open_shell`.

    `on_change` is called with every observation until then. Raises what the job raised if it ends before, and
    as `jobs.observe.wait` does if nothing more can be heard of the job.
    """
    news: SimpleQueue[JobObservation | KineticError] = SimpleQueue()
    give_up: float | None = None
    with closing(watch(handle.place, handle, news.put, refused=news.put)):
        while True:
            seen = news.get()
            if isinstance(seen, KineticError):
                raise seen
            on_change(seen)
            if seen.is_terminal:
                handle.collect()
                raise InvalidRequest(f"{handle.job_id} has ended before its shell was there: {_told(seen)}")
            if seen.status is not JobStatus.RUNNING:
                continue
            give_up = give_up or time.monotonic() + LISTENING_SECONDS
            while news.empty():
                try:
                    return open_shell(handle.place, handle, command, console=console)
                except NoFunction:
                    if time.monotonic() > give_up:
                        raise
                time.sleep(_PAUSE)
