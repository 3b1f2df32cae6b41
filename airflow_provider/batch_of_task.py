"""Batch of a task instance: an earlier try's if it is of the same call, else a new one.

Any process computes the id of a batch alike from the task instance, before anything runs. A batch outlives
the try that began it: a retry adopts it, and so does a try after somebody has cleared the task, which then
runs the inputs without a value (ADR 0066), on warm workers as another round (ADR 0073). A changed call, and
`rerun="all"` after a clear, begin another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_provider.job_of_task import Announce, Origin, SupersededTry, TaskIdentity
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import GROUP_ID, JOB_ID, ORIGIN
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.batches.definition import Plan, batch_digest, manifest_object
from kinetic_core.batches.handle import BatchCounts, BatchHandle
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.batches.submit import attach_stored, call_digest, cancel_stored, submit_clientless
from kinetic_core.connections import Connections
from kinetic_core.errors import BatchNotFound, JobConflict, KineticError, MalformedObject
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.bundle import Packed, Progress, pack
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.lanes import is_on_lanes, lane_of, lanes_of
from kinetic_core.jobs.observe import find
from kinetic_core.jobs.prepare import Group, reference_of, timestamp
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.submit import Call
from kinetic_core.jobs.timeline import submitted_at
from kinetic_core.options import RunOptions

_LOG = logging.getLogger(__name__)
_REMEMBERED = 20
"""Number of clears of a task after which its earliest batches are not found any more."""


def batch_id(identity: TaskIdentity, first_try: int, salt: str = "") -> str:
    """Return the id of the batch that a task instance began with its try `first_try`.

    `salt` gives another id where that id belongs to another call, or to a deleted DAG run of the same name.
    """
    key = ["batch", identity.dag_id, identity.run_id, identity.task_id, identity.map_index, first_try, salt]
    return "grp-" + hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def may_own(identity: TaskIdentity, group_id: str, spec_digest: str) -> bool:
    """Return whether a batch id is one of those that this try computes for its task instance."""
    return group_id in set(_ids(identity, spec_digest))


def _salt(identity: TaskIdentity, spec_digest: str) -> str:
    return f"{identity.run_began} {spec_digest}"


def _ids(identity: TaskIdentity, spec_digest: str) -> Iterator[str]:
    """Yield the ids that the task's batches may have, the newest first."""
    for first_try in range(identity.first_try, max(identity.first_try - _REMEMBERED, 0), -1):
        yield batch_id(identity, first_try, _salt(identity, spec_digest))
        yield batch_id(identity, first_try)


@dataclass(frozen=True)
class StartedBatch:
    """Batch that now does the task's work. `reference` is that of the whole batch, of `size` inputs.

    It was created when its inputs began to wait, also where an earlier try has submitted what still lives.
    """

    reference: JobReference
    size: int
    adopted: bool


def start_or_adopt_batch(
    call: Call,
    items: Sequence[Mapping[str, Any]],
    options: RunOptions,
    connections: Connections,
    identity: TaskIdentity,
    plan: Plan,
    *,
    all_again: bool = False,
    progress: Progress = _LOG.info,
    origin: Origin | None = None,
    announce: Announce = lambda _place: None,
) -> StartedBatch:
    """Start or adopt the one batch of this task instance; `items` are the keyword arguments of its calls.

    A batch of an equal call is adopted, whichever try began it, and its inputs without a value run, unless
    some still do. With `all_again` only one that was begun since somebody cleared the task counts. What lives
    of any other batch of the task, and what a cleared try has started, is cancelled first: no input runs
    twice at once. The group id of `plan` is replaced. `announce` is called before any job is created.

    Raises SupersededTry if a later try has a batch; ImageBuilding if the image is being built; as `pack` and
    `submit_clientless` do.
    """
    packed = pack(
        call.function,
        options,
        connections,
        calls=[((), item) for item in items],
        tolerant=True,
        progress=progress,
        build_patience=0.0,
        project=call.project,
    )
    digest = batch_digest(packed, items, replace(plan, is_new=False))
    group_id, adopted = _chosen(packed, identity, digest, all_again=all_again)
    announce(reference_of(packed, packed.spec, group_id, digest, Group(group_id, "map", None)))
    others = _Others(packed.backend, packed.spec.namespace, origin)
    since = others.cancel_unless_kept(identity, group_id)
    own = origin if origin is not None else Origin.of(identity, "")
    plan = replace(plan, group_id=group_id, is_new=False, skip_done=True, origin=own.to_text())
    try:
        whole = submit_clientless(packed, items, plan)
    except JobConflict:  # somebody has stored another batch under that id since it was looked for
        other = batch_id(identity, identity.first_try, _salt(identity, digest))
        whole, adopted = submit_clientless(packed, items, replace(plan, group_id=other)), False
    others.end_if_superseded(identity, whole.job_id)
    return StartedBatch(_created(whole, since) if adopted else whole, len(items), adopted)


def _created(whole: JobReference, since: float | None) -> JobReference:
    """Return the reference of a batch that was created in `since`, in Unix seconds, if that is earlier."""
    if since is None or since >= submitted_at(whole):
        return whole
    return replace(whole, created_at=timestamp(since))


def _chosen(packed: Packed, identity: TaskIdentity, digest: str, *, all_again: bool) -> tuple[str, bool]:
    """Return the id of the newest batch that may be adopted and True, else an id for a new one and False."""
    store = packed.backend.store
    since_clear = {batch_id(identity, identity.first_try, each) for each in ("", _salt(identity, digest))}
    ids = [each for each in _ids(identity, digest) if not all_again or each in since_clear]
    there = store.present([manifest_object(each) for each in ids])
    for group_id in ids:
        if manifest_object(group_id) not in there:
            continue
        try:
            manifest = read_manifest(store, group_id)
        except MalformedObject as error:
            _LOG.warning("%s; it is passed over", error)
            continue
        theirs = Origin.from_text(str(manifest.get("origin", "")))
        if call_digest(manifest) != digest:
            _LOG.info("%s is of another call (function, inputs, files or options)", group_id)
        elif theirs is not None and is_same_run(identity, theirs):
            return group_id, True
    new = batch_id(identity, identity.first_try)
    is_taken = manifest_object(new) in there
    return (batch_id(identity, identity.first_try, _salt(identity, digest)) if is_taken else new), False


def is_same_run(identity: TaskIdentity, theirs: Origin) -> bool:
    """Return whether a batch is of this DAG run, and not of an earlier, deleted one of the same name.

    Airflow writes another start of the run when it is cleared, and counts the clears.
    """
    return theirs.run_began == identity.run_began or identity.clear_number > theirs.clear_number


@dataclass(frozen=True)
class _Living:
    """Living job of a task: `group_id` is that of its batch, "" for none, `created_at` in Unix seconds."""

    job_id: str
    group_id: str
    origin: Origin
    created_at: float | None


def living(backend: Backend, namespace: str, origin: Origin) -> Iterator[_Living]:
    """Yield the living jobs, chunks and lanes of a task instance, of all its tries."""
    chunks = () if backend.parts is None else backend.parts.all(namespace).values()
    for job in [*backend.of_origin(namespace, origin.id), *(job for group in chunks for job in group)]:
        facts = job["metadata"]
        theirs = Origin.from_text((facts.get("annotations") or {}).get(ORIGIN) or "")
        seen = verdict(job, ())
        if theirs is not None and theirs.id == origin.id and not seen.is_terminal:
            job_id = str(facts["labels"][JOB_ID])
            lane = lane_of(job_id)
            group_id = lane[0] if lane is not None else str(facts["labels"].get(GROUP_ID, ""))
            yield _Living(job_id, group_id, theirs, seen.created_at)


@dataclass(frozen=True)
class _Others:
    """Living jobs of all tries of the task instance. Without `origin` none is known."""

    backend: Backend
    namespace: str
    origin: Origin | None

    def cancel_unless_kept(self, identity: TaskIdentity, group_id: str) -> float | None:
        """Cancel what this try may not adopt; return when the first job of what it may adopt was created.

        Returns None if nothing of that lives. Raises SupersededTry if a later try has started something.
        """
        batches: set[str] = set()
        created: list[float] = []
        for each in self._living():
            if self.origin is not None and each.origin.order > self.origin.order:
                raise _superseded(identity, each)
            may_stay = identity.may_adopt(each.origin.try_number, each.origin.clear_number)
            if each.group_id == group_id and each.origin.run_began == identity.run_began and may_stay:
                created += [] if each.created_at is None else [each.created_at]
                continue
            if each.group_id:
                batches.add(each.group_id)
            elif (reference := find(self.backend, each.job_id)) is not None:
                cancel(self.backend, reference)
        for each_id in sorted(batches):
            _LOG.warning("cancelling what runs of %s: try %d begins", each_id, identity.try_number)
            cancel_batch(self.backend, each_id)
        return min(created, default=None)

    def end_if_superseded(self, identity: TaskIdentity, group_id: str) -> None:
        """Raise SupersededTry if a later try has started something, after cancelling a batch of its own."""
        later = [each for each in self._living() if self.origin and each.origin.order > self.origin.order]
        if not later:
            return
        if all(each.group_id != group_id for each in later):
            cancel_batch(self.backend, group_id)
        raise _superseded(identity, later[0])

    def _living(self) -> list[_Living]:
        return [] if self.origin is None else list(living(self.backend, self.namespace, self.origin))


def _superseded(identity: TaskIdentity, later: _Living) -> SupersededTry:
    return SupersededTry(
        f"try {later.origin.try_number} of task {identity.task_id} has {later.group_id or later.job_id}: try "
        f"{identity.try_number}, which was held up, ends"
    )


def cancel_batch(backend: Backend, group_id: str) -> None:
    """Start no further input of a batch and stop those that run; values that are stored stay. Idempotent."""
    with suppress(BatchNotFound):
        cancel_stored(backend, group_id)


def cancel_unless_superseded(backend: Backend, reference: JobReference, origin: Origin | None) -> bool:
    """Cancel the batch of a task that is over, unless a later try of the task runs it; return whether."""
    if origin is not None and is_superseded(backend, reference.namespace, reference.job_id, origin):
        return False
    cancel_batch(backend, reference.job_id)
    return True


def is_superseded(backend: Backend, namespace: str, group_id: str, origin: Origin) -> bool:
    """Return whether something of the batch lives that a later try of the task than that of `origin` runs."""
    found = living(backend, namespace, origin)
    return any(each.group_id == group_id and each.origin.order > origin.order for each in found)


def living_batches(backend: Backend, namespace: str, origin: Origin) -> set[str]:
    """Return the ids of the batches of a task instance of which something lives."""
    return {each.group_id for each in living(backend, namespace, origin) if each.group_id}


def is_over(backend: Backend, reference: JobReference) -> bool:
    """Return whether every input of the batch has ended, as far as its jobs say so now."""
    watch = BatchWatch.open(backend, reference, {})
    try:
        return watch.is_over()
    finally:
        watch.close()


def end_lanes(batch: StoredBatch) -> None:
    """End the Jobs of lanes that have run all they could, as whoever follows a call on a worker does.

    What cannot be ended now, the search for orphans ends.
    """
    if not is_on_lanes(batch.whole):
        return
    try:
        lanes = lanes_of(batch.backend, batch.whole.job_id)
        met = [each for _, each in in_parallel(partial(reconcile, batch.backend), lanes) if each]
    except KineticError as error:
        met = [error]
    for each in met[:1]:
        _LOG.warning("the lanes of %s are not ended: %s", batch.whole.job_id, each)


def drop_jobs(batch: StoredBatch) -> None:
    """Remove the Jobs of a batch all of whose inputs have values, if these can be verified without them."""
    backend, reference = batch.backend, batch.whole
    if backend.parts is None or backend.signing_secret(reference.namespace) is None:
        return
    try:
        jobs = backend.parts.parts(reference.namespace, reference.job_id)
        names = [str(job["metadata"]["labels"][JOB_ID]) for job in jobs]
        if is_on_lanes(reference):
            names += [lane.job_id for lane in lanes_of(backend, reference.job_id, every=True)]
        backend.remove(reference.namespace, *names)
    except (KineticError, OSError) as error:
        _LOG.warning("cleaning up after %s: %s", reference.job_id, error)


_FIRST_PAUSE, _LAST_PAUSE = 5.0, 300.0
"""Seconds between two lines about progress, at first and at most."""


class BatchWatch:
    """Watch of a task's batch by one worker or trigger: shows its progress and obeys its limits."""

    def __init__(self, batch: BatchHandle, limits: Mapping[str, Any]) -> None:
        self._batch = batch
        self._max_failures: int | None = limits.get("max_failures")
        self._cancel_running = bool(limits.get("cancel_running"))
        self._said: tuple[int, int] | None = None
        self._next, self._pause = 0.0, _FIRST_PAUSE
        self._has_stopped = False
        self._has_begun = False
        self.state: JobObservation | None = None
        """State at the last look, see BatchCounts; without `created_at` once an input has run."""

    @classmethod
    def open(cls, backend: Backend, reference: JobReference, limits: Mapping[str, Any]) -> BatchWatch:
        """Attach to a batch and follow it. `limits`: see KineticBatchTrigger. Raises BatchNotFound."""
        batch = attach_stored(backend, reference.job_id, poll_timeout=None, reads=False)
        batch.follow()
        return cls(batch, limits)

    def look(self, say: Callable[[str], object]) -> bool:
        """Return whether every input has ended; say what is new, and stop the batch if its limits ask so."""
        seen = self._batch.progress()
        now = time.monotonic()
        if (seen.ended, seen.failed) != self._said and (now >= self._next or seen.is_over):
            self._said = seen.ended, seen.failed
            self._next, self._pause = now + self._pause, min(self._pause * 1.5, _LAST_PAUSE)
            say(progress_line(self._batch.group_id, seen))
        self._stop_if_asked(seen, say)
        self._note(seen)
        return seen.is_over

    def is_over(self) -> bool:
        """Return whether every input is known to have ended, after a moment in which that may be heard."""
        give_up = time.monotonic() + 1.0
        while not self._batch.progress().is_over and time.monotonic() < give_up:
            time.sleep(0.05)
        return self._batch.progress().is_over

    def close(self) -> None:
        """Watch no longer."""
        self._batch.close()

    def _note(self, seen: BatchCounts) -> None:
        """Keep the state; a job that waits after others have run began to wait only now."""
        self.state = seen.state
        if seen.ended or (seen.state is not None and seen.state.status is JobStatus.RUNNING):
            self._has_begun = True
        if self.state is not None and self._has_begun:
            self.state = replace(self.state, created_at=None)

    def _stop_if_asked(self, seen: BatchCounts, say: Callable[[str], object]) -> None:
        most = self._max_failures
        if most is None or self._has_stopped or seen.is_over or seen.failed <= most:
            return
        say(f"{seen.failed} inputs have failed, more than max_failures={most}: starting no more")
        if self._cancel_running:
            self._batch.cancel()
        else:
            self._batch.stop()
        self._has_stopped = True


def progress_line(group_id: str, seen: BatchCounts) -> str:
    """Return one line about a batch's progress."""
    line = f"{group_id}: {seen.ended} of {seen.size} inputs have ended"
    if seen.failed:
        named = ", ".join(map(str, seen.first_failed))
        line += f", {seen.failed} without a value" + (f" (inputs {named})" if named else "")
    return line
