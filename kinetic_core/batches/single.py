"""Inputs of a batch that have a Job each: submitting an input, and finding the inputs again."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core._runner.object_names import input_id
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import DROPPED
from kinetic_core.batches.definition import (
    Plan,
    arguments_of,
    dropped_inputs,
    manifest_object,
    note_failure,
    noted_failure,
)
from kinetic_core.batches.progress import Board, Look
from kinetic_core.batches.scheduler import Tell, in_parallel
from kinetic_core.errors import MalformedObject
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import Group, address
from kinetic_core.jobs.signing import UNVERIFIED
from kinetic_core.jobs.submit import submit

_LOG = logging.getLogger(__name__)


def read_board(
    backend: Backend,
    namespace: str,
    manifest: Mapping[str, Any],
    interval: float,
    timeout: float | None,
    *,
    follows: bool = False,
) -> Board:
    """Read a board from the store; a thread looks for new jobs every `interval` seconds until all are in."""
    group_id, board = str(manifest["group_id"]), Board(int(manifest["total_expected"]), follows=follows)
    reader = _Reader(backend, namespace, group_id, board, interval, timeout)
    if not reader.look():
        threading.Thread(target=reader.run, name=f"kinetic-{group_id}", daemon=True).start()
    return board


def store_manifest(packed: Packed, plan: Plan, size: int, scheduler: str, **more: str) -> dict[str, Any]:
    """Return the manifest of a batch whose inputs have a Job each: what was stored first, else a new one."""
    content = plan.manifest(size, packed.function_name, scheduler, namespace=packed.spec.namespace, **more)
    store, whole = packed.backend.store, json.dumps(content, sort_keys=True).encode()
    is_first = store.create_if_absent(manifest_object(plan.group_id), whole)
    return content if is_first else read_manifest(store, plan.group_id)


def submit_input(packed: Packed, plan: Plan, index: int, item: Any) -> JobHandle | Exception:
    """Submit one input; return its handle, or store and return the exception."""
    try:
        args, kwargs = arguments_of(item, plan.input_mode)
        job_id, group = input_id(plan.group_id, index), Group(plan.group_id, "map", index)
        prepared = address(packed, args, kwargs, job_id=job_id, group=group)
        reference = submit(prepared, plan.environment, plan.origin)
        return JobHandle.of(reference, packed.backend.connections)
    except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
        note_failure(packed.backend, packed.spec.namespace, plan.group_id, index, exc)
        return exc


def is_created(backend: Backend, reference: JobReference) -> bool:
    """Return whether the job of a stored reference exists or has ended; its submitter stores the reference
    before it creates the Job.
    """
    seen = observed(backend, reference)
    return seen.status is not JobStatus.NOT_FOUND or seen.reason == UNVERIFIED


_CREATION_SECONDS = 120.0
"""Age at which a stored reference without a job is no longer taken for one that is just being created."""


@dataclass(frozen=True)
class _Reader:
    """Reader that fills a board from the store while another process submits."""

    backend: Backend
    namespace: str
    group_id: str
    board: Board
    interval: float
    timeout: float | None

    def look(self) -> bool:
        """Read the stored jobs now; return True when submission is over."""
        dropped = self._dropped()
        finished = dropped is not None
        for index in range(self.board.size):
            if self.board.jobs[index] is None and not self.board.has_none(index):
                self._read(index, finished)
        with self.board.changed:
            known = sum(job is not None for job in self.board.jobs) + len(self.board.submission_failures)
        if finished or known == self.board.size:
            if self.backend.supervised_queue is not None:  # where all jobs are stored before this is said
                self.board.lose(self._removed(dropped or frozenset()))
            self.board.finish()
            return True
        return False

    def _dropped(self) -> frozenset[int] | None:
        try:
            return dropped_inputs(self.backend, self.group_id)
        except MalformedObject as exc:
            _LOG.warning("taking no input of %s for dropped: %s", self.group_id, exc)
            return frozenset()

    def _removed(self, dropped: frozenset[int]) -> dict[int, str]:
        """Name the jobs that were stored and are not any more, by their inputs."""
        with self.board.changed:
            missing = {index for index, job in enumerate(self.board.jobs) if job is None}
            missing -= dropped | self.board.dropped | set(self.board.submission_failures)
            return {index: input_id(self.group_id, index) for index in sorted(missing)}

    def run(self) -> None:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        pause, look = threading.Event(), Look(self.board, self.group_id)
        while not pause.wait(self.interval):
            try:
                if self.look():
                    return
                look.went_well()
            except Exception as exc:  # noqa: BLE001  nobody else would tell those who wait
                if not look.goes_on_after(exc):
                    return
            if self.board.stopping or (deadline is not None and time.monotonic() > deadline):
                with self.board.changed:
                    missing = [i for i, job in enumerate(self.board.jobs) if job is None]
                    self.board.unavailable = {i: input_id(self.group_id, i) for i in missing}
                self.board.finish()
                return

    def _read(self, index: int, finished: bool) -> None:
        reference = find(self.backend, input_id(self.group_id, index))
        if reference is not None:
            age = time.time() - datetime.fromisoformat(reference.created_at).timestamp()
            if finished or age > _CREATION_SECONDS or is_created(self.backend, reference):
                self.board.add(index, JobHandle.of(reference, self.backend.connections))
            return
        if (error := noted_failure(self.backend, self.namespace, self.group_id, index)) is not None:
            self.board.refuse(index, error)


class JobPerInput:
    """Base of schedulers whose inputs have a Job each, which other clients may start and cancel, too."""

    def __init__(self, backend: Backend, namespace: str, group_id: str) -> None:
        self.backend = backend
        self.namespace = namespace
        self.group_id = group_id

    def statuses(self, board: Board) -> list[tuple[int, JobStatus]]:
        """Return index and status of every submitted job; one that was dropped is CANCELLED."""
        with board.changed:
            known = dict(board.ended)
            jobs = [(index, job) for index, job in enumerate(board.jobs) if job is not None]
        seen = [(index, known.get(index) or job.observe()) for index, job in jobs]
        return [
            (index, JobStatus.CANCELLED if each.reason == DROPPED else each.status) for index, each in seen
        ]

    def value(self, job: JobHandle) -> Any:
        """Return the value of a job that has ended, or raise its exception."""
        return job.collect()

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:
        """Remove the objects of each job; a job that cannot be cleaned up is named in a warning."""
        for job, error in in_parallel(lambda job: job.cleanup(k8s=k8s, gcs=gcs), jobs):
            if error is not None:
                _LOG.warning("cleaning up %s failed: %s", job.job_id, error)
        if gcs:
            self.backend.store.delete_all(object_names.batch(self.group_id, ""))

    def stop(self) -> None:
        """Keep every client, here or elsewhere, from starting another input."""
        self.backend.store.create_if_absent(object_names.stop(self.group_id), b"cancelled")

    def cancel_all(self, job_ids: Sequence[str], tell: Tell) -> None:
        """Cancel all jobs that are stored; then raise the first error that a cancellation met."""
        for _, error in in_parallel(self._cancel_one, job_ids, tell):
            if error is not None:
                raise error

    def _cancel_one(self, job_id: str) -> None:
        reference = find(self.backend, job_id)
        if reference is not None:
            cancel(self.backend, reference)
