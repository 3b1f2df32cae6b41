"""The supervisor: the parallelism of one batch, in a process of its own.

Started detached by whoever made the batch, or found it without one, it starts the agents of the jobs that
wait, in the order of the inputs and `limit` at a time, as its own children: the kernel tells it when one has
ended. It ends when nothing waits any more. It opens no payload: all that a job needs was stored before.

Killed, it leaves its agents to themselves. The next one learns from their locks when those have ended.
"""

from __future__ import annotations

import ctypes  # noqa: F401  each agent, which is forked from here, would import it for `adopt_orphans`
import fcntl
import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from kinetic_core._runner import object_names
from kinetic_core.backends.local.agent import Agent
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.record import (
    RecordGone,
    drop_waiting,
    end,
    is_over,
    is_waiting,
    job_ids,
    read_job,
    share_lock,
    take_lock,
    wait_for_lock,
    write_record,
)
from kinetic_core.job import Line
from kinetic_core.store.directory import DirectoryObjectStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Marks:
    """The marks of one batch. Judging and ending jobs need more imports, which wait until then."""

    def __init__(self, layout: Layout, namespace: str, group_id: str) -> None:
        self._layout, self._namespace, self._group_id = layout, namespace, group_id
        self._store = DirectoryObjectStore(Path(layout.store))

    def tell_submitted(self, size: int, job_ids: Collection[str]) -> None:
        """No more than these of so many inputs will be submitted: whoever did it has ended, or is dead."""
        name = object_names.finished(self._group_id)
        if self._store.find(name) is None:
            have = set(job_ids)
            dropped = [
                index for index in range(size) if object_names.input_id(self._group_id, index) not in have
            ]
            self._create(name, json.dumps({"dropped": dropped}).encode())

    def is_stopped(self) -> bool:
        """Whether an input failed of a batch with `fail_fast`, or the batch was cancelled."""
        return self._store.path(object_names.stop(self._group_id)).exists()

    def stop(self) -> None:
        self._create(object_names.stop(self._group_id), b"supervisor")

    def has_failed(self, job_id: str) -> bool:
        """Whether a job ended without a value, and was not cancelled."""
        from kinetic_core.backends.kubernetes.verdict import observe
        from kinetic_core.backends.local.backend import LocalBackend
        from kinetic_core.job import JobStatus

        backend = LocalBackend(Path(self._layout.root))
        backend.control(self._namespace, job_id)
        found = backend.get(self._namespace, job_id)
        if found is None:
            return False
        return observe(*found).status is JobStatus.FAILED

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs, one after the other."""
        from kinetic_core.backends.local.backend import LocalBackend

        backend = LocalBackend(Path(self._layout.root))
        for job_id in job_ids:
            self._create(object_names.cancel(job_id), b"supervisor")
            backend.delete(self._namespace, job_id)

    def _create(self, name: str, content: bytes) -> None:
        if os.path.isdir(self._layout.store):  # else all was removed, and is not made anew
            self._store.create_if_absent(name, content)


class Supervisor:
    """One batch, from its first job that waits to its last. `lock` is the batch's, and held."""

    def __init__(self, layout: Layout, namespace: str, line: Line, lock: int) -> None:
        self._layout, self._namespace, self._line, self._lock = layout, namespace, line, lock
        self._marks = Marks(layout, namespace, line.group_id)
        self._waiting: deque[str] = deque()
        self._agents: dict[int, str] = {}
        self._guards: dict[int, str] = {}
        """Children that wait for the end of a job whose agent is none."""

    def run(self) -> None:
        """Until nothing waits; with `cancel_running` until nothing runs either."""
        self._find()
        while True:
            self._start_some()
            if not self._waiting and not (self._line.cancel_running and self._alive()):
                break
            self._wait()
        for guard in self._guards:
            os.kill(guard, signal.SIGKILL)

    def _find(self) -> None:
        """What an earlier supervisor, or the submitter, has left."""
        ids = job_ids(self._layout, self._namespace, self._line.group_id)
        self._marks.tell_submitted(self._line.size, ids)
        for job_id in ids:
            record = self._record(job_id)
            if record is None or is_over(record):
                self._judge(job_id)
            elif is_waiting(record):
                self._waiting.append(job_id)
            else:
                self._guard(job_id)

    def _start_some(self) -> None:
        while self._waiting and (self._line.limit is None or self._alive() < self._line.limit):
            if self._marks.is_stopped():
                self._waiting.clear()
                drop_waiting(self._layout, self._namespace, self._line.group_id)
                return
            self._start(self._waiting.popleft())

    def _alive(self) -> int:
        return len(self._agents) + len(self._guards)

    def _start(self, job_id: str) -> None:
        """Become two, one of which is the job's agent; unless it was cancelled or removed meanwhile."""
        record = self._record(job_id)
        if record is None or not is_waiting(record):
            return
        lock = take_lock(self._layout.lock(self._namespace, job_id))
        if lock is None:  # somebody cancels it, or a supervisor that died has just started it
            self._guard(job_id)
            return
        with ExitStack() as held:
            held.callback(os.close, lock)
            turn = share_lock(self._layout.turn_lock(self._namespace, self._line.group_id))
            held.callback(os.close, turn)  # the agent has it until its record says that it has begun
            record = self._record(job_id)
            if record is not None and is_waiting(record):
                agent = self._child(lambda: Agent(self._layout, self._namespace, job_id, lock, turn).run())
                self._agents[agent] = job_id

    def _guard(self, job_id: str) -> None:
        self._guards[self._child(lambda: self._await_end(job_id))] = job_id

    def _await_end(self, job_id: str) -> None:
        """Sleep in the kernel until nothing of the job is alive."""
        try:
            lock = os.open(self._layout.lock(self._namespace, job_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # it has ended, and was removed
        fcntl.flock(lock, fcntl.LOCK_SH)

    def _child(self, work: Callable[[], None]) -> int:
        child = os.fork()
        if not child:
            self._work(work)
        return child

    def _work(self, work: Callable[[], None]) -> NoReturn:
        """In a child: its own session, without the batch's lock."""
        try:
            os.setsid()
            os.close(self._lock)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the end of a process, as the interpreter would tell it
            traceback.print_exc()
        finally:
            os._exit(1)

    def _wait(self) -> None:
        """Until a child has ended, and with it, as a rule, its job."""
        child, _ = os.wait()
        if (job_id := self._agents.pop(child, None)) is not None:
            self._agent_ended(job_id)
        elif (job_id := self._guards.pop(child, None)) is not None:
            record = self._record(job_id)
            if record is not None and is_waiting(record):
                self._waiting.appendleft(job_id)
            else:
                self._judge(job_id)

    def _agent_ended(self, job_id: str) -> None:
        record = self._record(job_id)
        if record is not None and is_waiting(record):  # it could not even begin: its own words are in our log
            end(record, "Failed", "StartError", "the local backend could not start the job's agent")
            write_record(self._layout.record(self._namespace, job_id), record)
        elif record is not None and not is_over(record):  # it was killed; what it ran may live on
            self._guard(job_id)
            return
        self._judge(job_id)

    def _judge(self, job_id: str) -> None:
        """Stop the batch if that job's end is a reason to."""
        if not self._line.fail_fast or self._marks.is_stopped() or not self._marks.has_failed(job_id):
            return
        self._marks.stop()
        if self._line.cancel_running:
            self._child(lambda: self._marks.cancel([*self._agents.values(), *self._guards.values()]))

    def _record(self, job_id: str) -> dict[str, Any] | None:
        try:
            return read_job(self._layout, self._namespace, job_id)
        except OSError as exc:
            sys.stderr.write(f"kinetic: leaving {job_id} out: {exc}\n")  # the others go on
            return None


def main(root: str, namespace: str, line: str, lock: str | None = None) -> None:
    """Supervise a batch whose lock was taken and handed over as a descriptor. `line` is a `Line` as JSON.

    Without a lock: once the supervisor that has it has ended.
    """
    layout, own = Layout(root), Line(**json.loads(line))
    with suppress(FileNotFoundError, RecordGone):  # the directory was removed, and all that could be started
        if lock is None:
            held = wait_for_lock(layout.batch_lock(namespace, own.group_id))
        else:
            held = int(lock)
            os.set_inheritable(held, False)
        Supervisor(layout, namespace, own, held).run()
