"""A batch each of whose inputs has a Job of its own in a cluster, which a client creates when it is its turn.

Everything is stored before the first of them: when the client dies, whoever attaches to the batch goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.batch.board import Board
from kinetic_core.batch.digests import batch_digest
from kinetic_core.batch.failures import note_failure, noted_failures
from kinetic_core.batch.handle import finish
from kinetic_core.batch.lines import Line, line_frame, packed_line, read_line
from kinetic_core.batch.names import child_id, finished_object, line_object, manifest_object, resumptions
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.rerunning import run_again
from kinetic_core.batch.single_jobs import read_board
from kinetic_core.batch.starter import Rules, Starter
from kinetic_core.batch.unattended import UnattendedBatchHandle
from kinetic_core.errors import JobConflict, KineticError, ObjectExists, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend, Lines
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.whole_batches import stored_of

_LOG = logging.getLogger(__name__)
_INTERVAL = 10.0


class LineBatchHandle(UnattendedBatchHandle):
    """One function over many inputs, which clients start in turn."""

    def __init__(self, manifest: Mapping[str, Any], board: Board, backend: Backend) -> None:
        super().__init__(manifest["group_id"], manifest["group_name"], manifest["tags"], board, backend)
        self._namespace: str = manifest["line"]["namespace"]

    def cancel(self) -> None:
        """Start nothing more and stop every job that has not ended; returns when nothing of it runs."""
        self._stop_starting()
        finish(self._backend, self.group_id, self._board)
        started = _started(self._backend, self.group_id)  # some perhaps by others, just now
        with self._board.changed:
            living = [child_id(self.group_id, index) for index in started if index not in self._board.ended]
        found = [one for one in (find(self._backend, job_id) for job_id in living) if one is not None]
        self._cancel_all([JobHandle.of(one) for one in found])

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove the jobs' Kubernetes objects and which inputs count; stored objects, with `gcs` the batch's
        own too.

        Raises InvalidRequest while some of it runs: cancel first.
        """
        super().cleanup(k8s=k8s, gcs=gcs)
        if k8s:
            _lines(self._backend).remove(self._namespace, self.group_id)

    def _drop(self, succeeded: list[JobHandle]) -> None:
        """Nothing before all values are collected: others who have the batch need the keys of the rest."""
        super()._drop(self._all_collected(succeeded))

    def _when_left(self, living: int) -> str:
        return f"starts nothing more until somebody attaches to it; {living} of its jobs go on"


def start_own_jobs(packed: Packed, items: Sequence[Any], plan: Plan) -> LineBatchHandle:
    """Store everything and start the first; a thread of this process goes on, and any that attaches.

    The same batch under the same id is gone on with, whoever submits it how often. Raises JobConflict if the
    id is another batch's, StoreError or the cluster's error if it cannot be made.
    """
    backend, manifest = packed.backend, _stored(packed, items, plan)
    if plan.skip_done and (line := _line_of(backend, manifest)) is not None:
        run_again(backend, line, plan.group_id)
    return _gone_on_with(backend, manifest, daemon=False) or attach_own_jobs(
        backend, manifest, _INTERVAL, None, goes_on=False
    )


def attach_own_jobs(
    backend: Backend, manifest: Mapping[str, Any], interval: float, timeout: float | None, *, goes_on: bool
) -> LineBatchHandle:
    """The same from what is stored; unless it `goes_on`, inputs that have no job wait for somebody else."""
    handle = _gone_on_with(backend, manifest, daemon=True) if goes_on else None
    return handle or LineBatchHandle(manifest, read_board(backend, manifest, interval, timeout), backend)


def _gone_on_with(backend: Backend, manifest: Mapping[str, Any], *, daemon: bool) -> LineBatchHandle | None:
    """A handle whose board has what was started, and a thread that starts the rest; None if there is none."""
    group_id, about = str(manifest["group_id"]), manifest["line"]
    if backend.store.find(finished_object(group_id)) is not None:
        return None
    line = _line_of(backend, manifest)
    if line is None:
        _LOG.warning("%s is too old to be gone on with: inputs without a job will have none", group_id)
        return None
    board = Board(len(line))
    todo = _fill(board, backend, group_id, line)
    rules = Rules(about["max_concurrent"], about["fail_fast"], about["cancel_running"])
    Starter(backend, about["namespace"], group_id, line, todo, rules, board).begin(daemon=daemon)
    return LineBatchHandle(manifest, board, backend)


def _fill(board: Board, backend: Backend, group_id: str, line: Line) -> list[int]:
    """Put in what was started, and what could not be; the inputs that are still to start."""
    store = backend.store
    for index, error in noted_failures(store, group_id).items():
        board.refuse(index, error)
    started = _started(backend, group_id)
    last = max(started, default=-1)
    is_rerun = any(True for _ in store.list(resumptions(group_id)))
    rest = [i for i in range(len(line)) if i not in started and i not in board.submission_failures]
    # They start in order. What is missing before the last has been removed by hand, and does not run again.
    todo = [index for index in rest if is_rerun or index > last]
    board.lose({index: child_id(group_id, index) for index in set(rest) - set(todo)})
    for index in started:
        reference = find(backend, child_id(group_id, index))
        if reference is None:
            board.lose({index: child_id(group_id, index)})
        else:
            board.add(index, JobHandle.of(reference))
    return todo


def _started(backend: Backend, group_id: str) -> list[int]:
    """The inputs that have a job, in rising order: a request for each thousand."""
    found = stored_of(backend.store, group_id, wire.handle_object(f"{group_id}-*"))
    return sorted(index for index, _ in found)


def _stored(packed: Packed, items: Sequence[Any], plan: Plan) -> Mapping[str, Any]:
    """The batch's manifest, which is stored now, with all that it needs."""
    backend, digest = packed.backend, batch_digest(packed, items, plan)
    known = None if plan.is_new else _manifest(backend, plan.group_id)
    if known is None:
        try:
            known = _made(packed, items, plan, digest)
        except BaseException:
            if plan.is_new:
                backend.store.delete_all(wire.batch_object(plan.group_id, ""))
                with suppress(KineticError):  # what it met first is what is told
                    _lines(backend).remove(packed.spec.namespace, plan.group_id)
            raise
    if known["line"]["spec_digest"] != digest:
        raise JobConflict(
            f"{plan.group_id} exists already and is another batch (other function, inputs, files or "
            "options); use another group_id"
        )
    return known


def _made(packed: Packed, items: Sequence[Any], plan: Plan, digest: str) -> Mapping[str, Any]:
    """Store the line, then say in the cluster that it counts, then say that there is such a batch."""
    store, group_id, namespace = packed.backend.store, plan.group_id, packed.spec.namespace
    waiting, failures = packed_line(packed, items, plan)
    frame = line_frame(waiting, len(items))
    with suppress(ObjectExists):  # left by an equal submission that died
        store.create(line_object(group_id, wire.digest(frame)), frame)
    _lines(packed.backend).keep(namespace, group_id, wire.digest(frame), digest)
    for index, error in failures.items():
        note_failure(store, group_id, index, error)
    line = {
        "namespace": namespace,
        "spec_digest": digest,
        "max_concurrent": plan.max_concurrent,
        "fail_fast": plan.fail_fast,
        "cancel_running": plan.cancel_running,
    }
    manifest = plan.manifest(len(items), packed.function_name, line=line)
    try:
        store.create(manifest_object(group_id), json.dumps(manifest, sort_keys=True).encode())
    except ObjectExists:  # an equal submission was quicker
        return _manifest(packed.backend, group_id) or manifest
    return manifest


def _manifest(backend: Backend, group_id: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads(backend.store.read(manifest_object(group_id)))
    except ObjectNotFound:
        return None
    if "line" not in found:
        raise JobConflict(f"{group_id} exists already and is another batch; use another group_id")
    return found


def _line_of(backend: Backend, manifest: Mapping[str, Any]) -> Line | None:
    """The line that counts; None if nothing says any more which one that is."""
    group_id, namespace = str(manifest["group_id"]), str(manifest["line"]["namespace"])
    sha256 = _lines(backend).find(namespace, group_id)
    return None if sha256 is None else read_line(backend, namespace, group_id, sha256)


def _lines(backend: Backend) -> Lines:
    assert backend.lines is not None  # noqa: S101  only there inputs wait for a client
    return backend.lines
