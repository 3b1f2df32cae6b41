"""Scheduler of a map on warm workers: lanes, calls that each run one input after the other (ADR 0070)."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.outcome import Header
from kinetic_core.backends.base import Backend
from kinetic_core.batches.definition import Plan, inputs_object, note_failure, noted_failures
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.indexed import (
    Inputs,
    NeedsOwnJobs,
    batch_payload,
    described,
    store_batch,
    write_inputs,
)
from kinetic_core.batches.progress import Board
from kinetic_core.batches.scheduler import Tell, finish, in_parallel
from kinetic_core.errors import InvalidRequest, JobNotFound, KineticError
from kinetic_core.job import JobObservation, JobReference, JobSpec, JobStatus
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import cancel, index_object
from kinetic_core.jobs.collect import collect, error_of, read_outcome
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import BLOCKS, LANES, ON_LANES, forget, input_reference, read_manifest
from kinetic_core.jobs.lanes import (
    LANE,
    MOST_LANES,
    Segment,
    claims,
    lane_count,
    lane_id,
    lane_keys,
    lane_reference,
    read_segment,
    segments,
)
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.prepare import Prepared
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import variable
from kinetic_core.jobs.submit import submit
from kinetic_core.jobs.watch import Subscription, watch_for
from kinetic_core.options import RunOptions

_LOG = logging.getLogger(__name__)
_SHARE = 16
"""Blocks in each lane's share of a map, at least, so that lanes end at about the same time."""
_LOOK_SECONDS = 0.25, 2.0
"""Seconds between looks for outcomes, at first and later."""
_HELD_BYTES = 64 << 20
_STATUSES = {
    "succeeded": JobStatus.SUCCEEDED,
    wire.CANCELLED: JobStatus.CANCELLED,
    wire.DROPPED: JobStatus.CANCELLED,
}


def check_lanes(options: RunOptions, plan: Plan) -> None:
    """Check that a map with these options can run on lanes. Raises InvalidRequest."""
    asked = {
        f"{options.accelerator}, which has several hosts": options.accelerator.hosts > 1,
        "budget=": options.budget is not None,
        "cancel_running_on_fail=": plan.cancel_running,
        "hang_after=": options.pod.hang_after is not None,
        "reuse=": options.reuse is not None,
        "skip_done=": plan.skip_done,
    }
    if unfit := [name for name, is_asked in asked.items() if is_asked]:
        raise InvalidRequest(f"a map with warm= does not go with {unfit[0]}: leave one of them out")
    if plan.max_concurrent is None:
        raise InvalidRequest("warm= needs max_concurrent= in a map: so many workers run the inputs")
    if plan.max_concurrent > MOST_LANES:
        raise InvalidRequest(
            f"a map with warm= runs on at most {MOST_LANES} workers: give a lower max_concurrent="
        )


def start_on_lanes(packed: Packed, items: Sequence[Any], plan: Plan) -> BatchHandle:
    """Store a map, and start its lanes; the client is not needed from here on.

    Raises InvalidRequest for what needs a job for each input, JobConflict if the id belongs to another batch,
    and as `submit` does; then nothing of a new batch goes on.
    """
    lanes = min(plan.max_concurrent or 1, len(items))
    made: list[JobReference] = []
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="kinetic-inputs-") as folder:
        most = min(wire.BLOCK_INPUTS, -(-len(items) // (lanes * _SHARE)))
        try:
            inputs = write_inputs(packed, items, plan, Path(folder, "inputs"), most)
        except NeedsOwnJobs:
            raise InvalidRequest(
                "warm= does not go with Data that is mounted for one input: leave warm= out, or give the "
                "data to all inputs"
            ) from None
        if plan.is_new:
            undo.callback(_undo, packed.backend, plan.group_id, made)
        digest = wire.digest(json.dumps([block[0] for block in inputs.blocks]).encode())[:16]
        spec, reference, payload = _store(packed, items, plan, inputs, {LANES: lanes, BLOCKS: digest})
        # Timeout and retries are of each input, and kept by the lane.
        lane_spec = replace(spec, timeout=None, retries=0, output_dir="", group_id=None)
        for number in range(lanes):
            told = f"{plan.group_id} {number} {lanes} {len(items)} {digest}"
            lane = lane_reference(reference, number)
            found = None if plan.is_new else packed.backend.get(lane.namespace, lane.job_id)
            if found is not None and variable(found[0], LANE) != told:
                raise _begun_otherwise(plan)
            prepared = Prepared(packed.backend, lane_spec, lane, payload, plan.is_new)
            made.append(submit(prepared, _variables(plan, told, spec), plan.origin))
        undo.pop_all()
    finished = json.dumps({"dropped": []}).encode()
    packed.backend.store.create_if_absent(object_names.finished(plan.group_id), finished)
    found_map = _Stored(packed.backend, reference, len(items), lanes)
    return found_map.handle(plan.name, plan.tags, inputs.failures, follows=True)


def _store(
    packed: Packed, items: Sequence[Any], plan: Plan, inputs: Inputs, fields: Mapping[str, Any]
) -> tuple[JobSpec, JobReference, bytes]:
    """Store all of a map but its lanes; return what they are made of."""
    store = packed.backend.store
    spec, reference = described(packed, items, plan, inputs)
    reference = replace(reference, worker=plan.group_id)
    store.create_if_absent(inputs.object_name, inputs.path)
    reference = store_batch(packed, plan, reference, len(items), ON_LANES, **fields)
    manifest = read_manifest(store, plan.group_id)
    if any(manifest.get(name) != told for name, told in fields.items()):
        raise _begun_otherwise(plan)
    for index, error in inputs.failures.items():
        note_failure(packed.backend, reference.namespace, plan.group_id, index, error)
    return spec, reference, batch_payload(packed, spec, reference, inputs)


def _begun_otherwise(plan: Plan) -> InvalidRequest:
    return InvalidRequest(
        f"{plan.group_id} was begun with another max_concurrent=, or its inputs pickle differently here: say "
        "the same, attach to it, or use another group_id"
    )


def _undo(backend: Backend, group_id: str, made: Sequence[JobReference]) -> None:
    """End the lanes of a new map that not all of them could be made for, and remove what is stored of it."""
    for each in made:
        cancel(backend, each)
    forget(backend.store, group_id)


def _variables(plan: Plan, lane: str, spec: JobSpec) -> dict[str, str]:
    """Return the variables that make a call a lane."""
    told = {**plan.environment, LANE: lane, "KINETIC_INPUT_RETRIES": str(spec.retries)}
    if spec.timeout is not None:
        told["KINETIC_INPUT_TIMEOUT"] = f"{spec.timeout:g}"
    if plan.fail_fast:
        told["KINETIC_FAIL_FAST"] = "true"
    return told


def attach_on_lanes(backend: Backend, group_id: str, manifest: Mapping[str, Any]) -> BatchHandle:
    """Attach to a stored map. Raises MalformedObject if its manifest does not agree with its Jobs."""
    whole = checked_reference(manifest["reference"], group_id, backend)
    lanes = lane_count(backend, whole, manifest)
    found = _Stored(backend, whole, int(manifest["total_expected"]), lanes)
    failures = noted_failures(backend, whole.namespace, group_id)
    return found.handle(manifest["group_name"], manifest["tags"], failures, follows=False)


@dataclass(frozen=True)
class _Stored:
    """Map as it is stored."""

    backend: Backend
    whole: JobReference
    size: int
    lanes: int

    def handle(
        self, name: str | None, tags: Mapping[str, str], failures: Mapping[int, Exception], *, follows: bool
    ) -> BatchHandle:
        """Return a handle of the map, whose board a watch fills."""
        board = Board(self.size, follows=follows)
        board.submission_failures = dict(failures)
        children = (input_reference(self.whole, index) for index in range(self.size))
        jobs = (JobHandle.of(child, self.backend.connections) for child in children)
        board.fill([None if i in failures else job for i, job in enumerate(jobs)])
        watch = LaneWatch(self.backend, self.whole, self.lanes, board)
        watch.start()
        scheduler = LaneScheduler(self.backend, self.whole, self.lanes, watch)
        return BatchHandle(self.whole.job_id, name, tags, board, scheduler)


@dataclass
class LaneWatch:
    """Watch of one map: a thread that reads new segments of outcomes, and observes the lanes.

    A segment is read once, with one request, and kept while there is room for it.
    """

    backend: Backend
    whole: JobReference
    lanes: int
    board: Board
    _segments: dict[int, str] = field(default_factory=dict)
    """Name of the segment with the outcome, by input."""
    _held: OrderedDict[str, Segment] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: set[str] = field(default_factory=set)
    _seen: dict[int, JobObservation] = field(default_factory=dict)
    _subscriptions: dict[int, Subscription] = field(default_factory=dict)
    _turning: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever reads news: the thread, or who asks for statuses."""
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_closed: bool = False
    lost: JobObservation | None = None
    """Once the map has ended: why inputs have no outcome that were neither stopped nor cancelled."""

    def start(self) -> None:
        """Begin to watch, in a thread. A board that follows nothing is filled with what is known by now."""
        self._subscribe()
        if not self.board.follows:
            try:
                self._observe()
                self.turn()
            except Exception:
                self._close()
                raise
        self.board.on_follow(self._follow)
        self.board.on_close(self._close)
        name = f"kinetic-{self.whole.job_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def segment_of(self, index: int) -> Segment | None:
        """Return the segment with the outcome of an input; None if it is stored alone, or not yet. Raises
        StoreError.
        """
        with self._lock:
            name = self._segments.get(index)
            if name is None or name in self._held:
                return self._held.get(name or "")
        keys = lane_keys(self.backend, self.whole)
        segment = read_segment(self.backend.store, name, keys, self.whole)
        if segment is not None:
            with self._lock:
                self._hold(segment)
        return segment

    def lane_failure(self) -> JobObservation | None:
        """Return how a lane has ended that did not do all of its work."""
        ends = [seen for seen in self._seen.values() if seen.status.ended_without_value]
        return ends[0] if ends else None

    def _subscribe(self) -> None:
        """Observe the lanes that exist."""
        job_watch = watch_for(self.backend, self.whole.namespace)
        for number in range(self.lanes):
            if number in self._subscriptions or self._is_over(number):
                continue
            reference = find(self.backend, lane_id(self.whole.job_id, number))
            if reference is None:
                continue

            def seen(observation: JobObservation, number: int = number) -> None:
                self._seen[number] = observation
                self.board.note_shared(number, observation)
                if observation.is_terminal:
                    self._wake.set()

            self._subscriptions[number] = job_watch.subscribe(reference, seen, follows=self.board.follows)

    def _is_over(self, number: int) -> bool:
        seen = self._seen.get(number)
        return seen is not None and seen.is_terminal

    def _follow(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.follow()

    def _close(self) -> None:
        self._is_closed = True
        self._wake.set()
        for subscription in self._subscriptions.values():
            subscription.close()

    def _observe(self) -> None:
        """Observe all lanes at once."""
        for number, subscription in self._subscriptions.items():
            self._seen.setdefault(number, observe(self.backend, subscription.reference))

    def _run(self) -> None:
        pause, latest = _LOOK_SECONDS
        while not self._is_closed:
            try:
                if self.turn():
                    break
                self._subscribe()
                pause = min(latest, pause * 1.5)
            except Exception as exc:  # noqa: BLE001  a thread that dies of it would leave everybody waiting
                _LOG.warning("cannot look at %s, trying again: %r", self.whole.job_id, exc)
                pause = latest
            self._wake.wait(pause)
            self._wake.clear()
        self._close()

    def turn(self) -> bool:
        """Read what lanes have stored; return whether the map has ended, which the board is then told."""
        with self._turning:
            is_over = all(map(self._is_over, range(self.lanes))) or self._is_gone()
            self._look()
            with self.board.changed:
                is_over = is_over or self.board.active() <= 0
            if is_over and not self.board.complete:
                self._end()
            return is_over

    def _is_gone(self) -> bool:
        """Return whether lanes are missing that nobody will make any more."""
        missing = [n for n in range(self.lanes) if n not in self._subscriptions and not self._is_over(n)]
        if not missing:
            return False
        if self.backend.store.find(object_names.finished(self.whole.job_id)) is None:
            return False
        for number in missing:
            self._seen[number] = JobObservation(JobStatus.NOT_FOUND, "NotFound", "its lane was removed")
        return all(map(self._is_over, range(self.lanes)))

    def _look(self) -> None:
        """Read what lanes have stored since the last look."""
        listed = segments(self.backend.store, self.whole.job_id)
        fresh = [name for _, name in listed if name not in self._known]
        if not fresh:
            return
        keys, read = lane_keys(self.backend, self.whole), {}

        def read_one(name: str) -> None:
            read[name] = read_segment(self.backend.store, name, keys, self.whole)

        for name, error in in_parallel(read_one, fresh):
            if error is not None:
                raise error
            self._known.add(name)
            if (segment := read[name]) is None:
                _LOG.warning("%s is not what a lane has stored, and is passed over", name)
                continue
            with self._lock:
                self._hold(segment)
                for index in segment.states:
                    self._segments.setdefault(index, name)
            own = [index for index in segment.states if index < self.board.size]
            self.board.end({index: _observed(segment, index) for index in own}, ())

    def _hold(self, segment: Segment) -> None:
        if segment.name not in self._held:
            self._held[segment.name] = segment
            self._bytes += len(segment.content)
        self._held.move_to_end(segment.name)
        while self._bytes > _HELD_BYTES and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest.content)

    def _end(self) -> None:
        """Record the end of the map: what has no outcome was not started, or ended with its lane."""
        with self.board.changed:
            rest = {i for i, job in enumerate(self.board.jobs) if job and i not in self.board.ended}
        failure, lost = self.lane_failure(), set[int]()
        if rest and failure is None and not self._was_stopped():
            failure, lost = _NEVER_RUN, rest
        elif rest and failure is not None and failure.status is not JobStatus.CANCELLED:
            taken = claims(self.backend, self.whole, lane_keys(self.backend, self.whole))
            claimed = {index for claim in taken for index in range(claim.first, claim.end)}
            succeeded = any(seen.status is JobStatus.SUCCEEDED for seen in self._seen.values())
            lost = {index for index in rest if not succeeded or index in claimed}
        self.lost = failure
        if failure is not None:
            self.board.end(dict.fromkeys(lost, failure), ())
        self.board.end({}, rest - lost)
        self.board.finish()

    def _was_stopped(self) -> bool:
        return self.backend.store.find(object_names.stop(self.whole.job_id)) is not None


_NEVER = (
    "no worker has run it: somebody else who can write to the store has taken its block of inputs, or has "
    "removed its outcome"
)
_NEVER_RUN = JobObservation(
    JobStatus.FAILED, "Lost", _NEVER, failure=wire.Failure(wire.FailureClass.CONTROL_PLANE, _NEVER, "execute")
)
"""State of an input that has no outcome although all lanes have done what they could."""


def _observed(segment: Segment, index: int) -> JobObservation:
    """Observe an input by its outcome in a segment."""
    status = _STATUSES.get(segment.states[index], JobStatus.FAILED)
    frame = segment.frame(index)
    header = None
    if frame is not None:
        with suppress(wire.FrameError):
            header = Header.from_dict(wire.decode_head(frame, segment.key_of(index)))
    if header is None:
        return JobObservation(status, "Completed" if status is JobStatus.SUCCEEDED else "Failed")
    failure = header.failure
    return JobObservation(
        status if failure is None else JobStatus.after(failure),
        "Completed" if failure is None else "Failed",
        "the outcome is committed" if failure is None else failure.message,
        attempt=header.attempt,
        started_at=header.times.get("started"),
        finished_at=header.times.get("finished"),
        failure=failure,
    )


class LaneScheduler:
    """Scheduler of a map whose inputs lanes run."""

    def __init__(self, backend: Backend, whole: JobReference, lanes: int, watch: LaneWatch) -> None:
        self.backend = backend
        self._whole, self._watch = whole, watch
        self._ids = [lane_id(whole.job_id, number) for number in range(lanes)]

    def statuses(self, board: Board) -> list[tuple[int, JobStatus]]:
        """Return index and status of every input; those of a block run in their order."""
        self._watch.turn()
        with board.changed:
            known = {index: seen.status for index, seen in board.ended.items()}
            jobs = [index for index, job in enumerate(board.jobs) if job is not None]
        rest = [index for index in jobs if index not in known]
        found = dict.fromkeys(rest, JobStatus.PENDING) | known
        keys = lane_keys(self.backend, self._whole) if rest else None
        for claim in claims(self.backend, self._whole, keys) if keys is not None else ():
            at = bisect_left(rest, claim.first)
            if at < len(rest) and rest[at] < claim.end:
                found[rest[at]] = JobStatus.RUNNING
        return [(index, found[index]) for index in jobs]

    def stop(self) -> None:
        """Start no further input: lanes find the mark within seconds."""
        self.backend.store.create_if_absent(object_names.stop(self._whole.job_id), b"cancelled")

    def cancel(self, board: Board, tell: Tell) -> None:  # noqa: ARG002  a lane's inputs end all at once
        """Start no further input, and end the lanes; return when nothing of them runs."""
        self.stop()
        finish(self.backend, self._whole.job_id, board)

        def end(job_id: str) -> None:
            if (reference := find(self.backend, job_id)) is not None:
                cancel(self.backend, reference)

        for _, error in in_parallel(end, self._ids):
            if error is not None:
                raise error

    def value(self, job: JobHandle) -> Any:
        """Return the value of an input that has ended, or raise its exception."""
        index = job.group_index
        assert index is not None  # noqa: S101  it is a batch's
        segment = self._watch.segment_of(index)
        frame = None if segment is None else segment.frame(index)
        if segment is not None and frame is not None:
            outcome = read_outcome(frame, segment.key_of(index), job_id=job.job_id)
            return replace(outcome, place=f"{self.backend.store.uri}/{segment.name}").value_or_raise()
        try:
            return collect(self.backend, job).value_or_raise()
        except JobNotFound:
            failure = self._watch.lost
            if failure is None or failure.failure is None:
                raise
            raise error_of(job.job_id, failure.failure) from None

    def discard(self, jobs: Sequence[JobHandle]) -> None:  # noqa: ARG002  they have no Jobs
        """Remove the lanes' Jobs, and the stored inputs."""
        try:
            self.backend.remove(self._whole.namespace, *self._ids)
            store = self.backend.store
            prefix = inputs_object(self._whole.job_id, "")
            store.delete_many([info.name for info in store.list(prefix)])
            for job_id in self._ids:
                pattern = object_names.payload(job_id, "*")
                store.delete_many([info.name for info in store.list(f"jobs/{job_id}/", pattern)])
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self._whole.job_id, exc)

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:  # noqa: ARG002
        """Remove the lanes' Jobs, and with `gcs` all stored objects of the map but outputs."""
        references = [find(self.backend, job_id) for job_id in self._ids]
        if k8s:
            self.backend.remove(self._whole.namespace, *self._ids)
        if gcs:
            store = self.backend.store
            for reference in references:
                if reference is not None:
                    store.delete(index_object(reference))
            for job_id in self._ids:
                store.delete_all(f"jobs/{job_id}/")
            forget(store, self._whole.job_id)

    def when_left(self, living: int) -> str:
        """Say that the map needs no client."""
        return f"goes on without this process, {living} of its inputs have not ended"
