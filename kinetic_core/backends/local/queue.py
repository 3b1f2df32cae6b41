"""Batches whose jobs wait for their turn: made, looked after, dropped. The supervisor does the rest."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic_core._runner.processes import DETACHED
from kinetic_core.backends.kubernetes.bootstrap import PACKAGE, runner_archive, runner_files
from kinetic_core.backends.local import process
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.record import (
    drop_waiting,
    forget,
    is_held,
    is_over,
    is_waiting,
    job_ids,
    read_job,
    read_summary,
    take_lock,
    wait_for_lock,
    write_dropped,
)
from kinetic_core.errors import BackendUnavailable, StoreError
from kinetic_core.job import Line

if TYPE_CHECKING:
    from kinetic_core.backends.local.backend import LocalBackend
    from kinetic_core.job import Line

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "SSL_CERT_")
_DETACHED = """\
import gc, os, sys
gc.disable()
os.setsid()
if os.fork():
    os._exit(0)
sys.path.insert(0, sys.argv[1])
__import__("kinetic_core.backends.local", fromlist=[sys.argv[2]])
getattr(sys.modules["kinetic_core.backends.local"], sys.argv[2]).main(*sys.argv[3:])
os._exit(0)
"""
"""Forks before it imports: nobody waits for the process, and it is nobody's child to leave as a zombie.

It leaves its submitter's process group before that: a job that submits a job ends with all of its group, as
soon as the function has returned, and the fork may not have run by then.
"""


def unpack_runner(layout: Layout, cache: Path) -> None:
    """Put the runner, compiled, where this machine's jobs start it from, unless it is there."""
    folder = layout.runner(runner_archive(cache)[0])
    if os.path.isdir(folder):
        return
    import compileall

    fresh = f"{folder}.{os.getpid()}-{time.monotonic_ns()}"
    os.makedirs(os.path.join(fresh, PACKAGE))
    for file in runner_files():
        Path(fresh, PACKAGE, file.name).write_bytes(file.read_bytes())
    compileall.compile_dir(fresh, quiet=2)
    try:
        os.rename(fresh, folder)
    except OSError:
        process.remove_tree(fresh)
        if not os.path.isdir(folder):  # else another process was quicker with the same runner
            raise


def start_agent(layout: Layout, namespace: str, job_id: str, lock: int) -> None:
    """Start the agent, which inherits the job's lock. Raises BackendUnavailable, OSError."""
    _start(layout, "agent", [namespace, job_id], lock)


def start_supervisor(layout: Layout, namespace: str, line: Line, lock: int | None) -> None:
    """Start a batch's supervisor, which inherits the batch's lock; without one it waits for it.

    Raises BackendUnavailable, OSError.
    """
    _start(layout, "supervisor", [namespace, json.dumps(asdict(line))], lock)


def _start(layout: Layout, module: str, words: list[str], lock: int | None) -> None:
    """Run `main` of a module of this room with the layout's root, those words, and the lock if given."""
    import subprocess

    source = str(Path(__file__).parents[3])
    held = [] if lock is None else [lock]
    words = [layout.root, *words, *map(str, held)]
    command = [sys.executable, "-I", "-S", "-c", _DETACHED, source, module, *words]
    with open(os.path.join(layout.root, "agent.log"), "ab") as log:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
            | {DETACHED: "1"},
            cwd="/",
            pass_fds=held,
            check=False,
        )
    if started.returncode != 0:
        raise BackendUnavailable(
            f"{sys.executable} cannot start the {module} of {words[2]} (exit code {started.returncode}): "
            f"{log.name}"
        )


class LocalQueue:
    """A batch's lock is held by whoever makes its jobs, and then by its supervisor, so that there is one.

    A batch of which jobs can be made while it has a supervisor has a second lock for that. A third, the
    turn's, is shared by all of its jobs that are about to begin; whoever drops those that wait has it alone.
    """

    def __init__(self, layout: Layout, in_line: Callable[[Line], LocalBackend]) -> None:
        self._layout, self._in_line = layout, in_line

    @contextmanager
    def gather(self, namespace: str, line: Line) -> Iterator[LocalBackend]:
        """A backend whose jobs wait in this line; at the end its supervisor is started.

        Raises StoreError if another process is creating the batch, BackendUnavailable.
        """
        process.made(self._layout.cluster(namespace))
        lock = take_lock(self._layout.batch_lock(namespace, line.group_id))
        if lock is None:
            raise StoreError(
                f"{line.group_id} is being created by another process: submit again when that has ended"
            )
        try:
            yield self._in_line(line)
            start_supervisor(self._layout, namespace, line, lock)
        except BaseException:
            self.drop(namespace, line.group_id)
            raise
        finally:
            os.close(lock)

    @contextmanager
    def take_up(self, namespace: str, line: Line) -> Iterator[tuple[LocalBackend, bool]]:
        """As `gather`, for a batch that others may make, too, or have made; and whether nothing of it lives.

        Inside, nobody else makes jobs of it; one who does is waited for. Left by an exception, what was made
        waits for whoever looks at it. Raises BackendUnavailable.
        """
        layout, group_id = self._layout, line.group_id
        process.made(layout.cluster(namespace))
        with ExitStack() as held:
            held.callback(os.close, wait_for_lock(layout.making_lock(namespace, group_id)))
            backend = self._in_line(line)
            lock = take_lock(layout.batch_lock(namespace, group_id))
            lives = self._lives(backend, namespace, group_id)
            if lock is None and not lives:  # its supervisor is about to end
                lock = wait_for_lock(layout.batch_lock(namespace, group_id))
            if lock is not None:
                held.callback(os.close, lock)
            known = job_ids(layout, namespace, group_id)
            yield backend, not lives
            if lock is not None:
                if self._waiting(namespace, group_id):
                    start_supervisor(layout, namespace, line, lock)
            elif job_ids(layout, namespace, group_id) != known:  # which the supervisor there is does not know
                start_supervisor(layout, namespace, line, None)

    def lacks_supervisor(self, namespace: str, line: Line, *, is_waiting: bool) -> bool:
        """Whether a batch, one of whose jobs has not ended, needs a supervisor and has none."""
        needs_one = is_waiting or line.cancel_running
        return needs_one and not is_held(self._layout.batch_lock(namespace, line.group_id))

    def supervise(self, namespace: str, line: Line, *, is_waiting: bool) -> None:
        """Give the batch another supervisor if it lacks one."""
        if not self.lacks_supervisor(namespace, line, is_waiting=is_waiting):
            return
        lock = take_lock(self._layout.batch_lock(namespace, line.group_id))
        if lock is None:
            return
        try:
            start_supervisor(self._layout, namespace, line, lock)
        finally:
            os.close(lock)

    def drop(self, namespace: str, group_id: str) -> None:
        """End the jobs that still wait, at once; when this has returned, no other job of the batch begins."""
        drop_waiting(self._layout, namespace, group_id)

    def begun(self, namespace: str, group_id: str) -> tuple[list[str], list[str]]:
        """The jobs that have begun and not ended, and those that wait for their turn or were dropped."""
        begun: list[str] = []
        waiting: list[str] = []
        for job_id in job_ids(self._layout, namespace, group_id):
            summary = read_summary(self._layout.record(namespace, job_id))
            if summary is not None and "ended" not in summary:
                (waiting if "line" in summary else begun).append(job_id)
        return begun, waiting

    def reopen(self, namespace: str, group_id: str) -> None:
        """Let jobs that are made from now on wait again, after `drop`; those that it has ended stay so."""
        write_dropped(self._layout, namespace, group_id)

    def forget(self, namespace: str, job_ids: Iterable[str]) -> None:
        """Forget jobs that have ended, so that they can be made again: even their agents have ended then."""
        for job_id in job_ids:
            lock = wait_for_lock(self._layout.lock(namespace, job_id))
            try:
                forget(self._layout, namespace, job_id)
            finally:
                os.close(lock)

    def _lives(self, backend: LocalBackend, namespace: str, group_id: str) -> bool:
        ids = job_ids(self._layout, namespace, group_id)
        for job_id in ids:
            backend.control(namespace, job_id)
        found = (backend.get(namespace, job_id) for job_id in ids)
        return any(one is not None and not is_over({"job": one[0]}) for one in found)

    def _waiting(self, namespace: str, group_id: str) -> bool:
        ids = job_ids(self._layout, namespace, group_id)
        records = (read_job(self._layout, namespace, job_id) for job_id in ids)
        return any(record is not None and is_waiting(record) for record in records)
