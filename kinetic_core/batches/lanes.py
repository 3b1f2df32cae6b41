"""Scheduler of a map on warm workers: lanes, calls that each run one input after the other (ADR 0070)."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend
from kinetic_core.batches.definition import Plan, inputs_object, noted_failures
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.progress import Board, Look
from kinetic_core.batches.rounds import submit_on_lanes
from kinetic_core.batches.scheduler import Tell, finish, in_parallel
from kinetic_core.errors import JobNotFound, KineticError
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import cancel, index_object
from kinetic_core.jobs.collect import collect, error_of, outcome_in
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import forget, input_reference, read_manifest
from kinetic_core.jobs.lanes import (
    LaneOutcomes,
    Segment,
    claims,
    ended_as,
    lane_count,
    lane_id,
    lane_keys,
    lanes_of,
    last_round,
    listed_states,
    read_segment,
    segments,
)
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import Keys
from kinetic_core.jobs.watch import Subscription, watch_for
from kinetic_core.store.protocol import ObjectInfo

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25, 2.0
"""Seconds between looks for outcomes, at first and later."""
_HELD_BYTES = 64 << 20


def start_on_lanes(packed: Packed, items: Sequence[Any], plan: Plan) -> BatchHandle:
    """Store a map, start its lanes, and watch it. Raises as `submit_on_lanes` does."""
    submitted = submit_on_lanes(packed, items, plan)
    whole, backend = submitted.reference, packed.backend
    last = 0 if plan.is_new else last_round(backend, whole)
    lanes = lane_count(backend, whole, read_manifest(backend.store, plan.group_id), last)
    found = _Stored(backend, whole, len(items), lanes, last)
    return found.handle(plan.name, plan.tags, submitted.failures, follows=True)


def attach_on_lanes(
    backend: Backend, group_id: str, manifest: Mapping[str, Any], *, reads: bool = True
) -> BatchHandle:
    """Attach to a stored map. Raises MalformedObject if its manifest does not agree with its Jobs.

    `reads`: what the inputs have left is read once it is there, not only how they ended.
    """
    whole = checked_reference(manifest["reference"], group_id, backend)
    last = last_round(backend, whole)
    lanes = lane_count(backend, whole, manifest, last)
    found = _Stored(backend, whole, int(manifest["total_expected"]), lanes, last, reads=reads)
    failures = noted_failures(backend, whole.namespace, group_id)
    return found.handle(manifest["group_name"], manifest["tags"], failures, follows=False)


@dataclass(frozen=True)
class _Stored:
    """Map as it is stored, and its last round."""

    backend: Backend
    whole: JobReference
    size: int
    lanes: int
    round: int = 0
    reads: bool = True

    def handle(
        self, name: str | None, tags: Mapping[str, str], failures: Mapping[int, Exception], *, follows: bool
    ) -> BatchHandle:
        """Return a handle of the map, whose board a watch fills."""
        board = Board(self.size, follows=follows)
        board.submission_failures = dict(failures)
        children = (input_reference(self.whole, index) for index in range(self.size))
        jobs = (JobHandle.of(child, self.backend.connections) for child in children)
        board.fill([None if i in failures else job for i, job in enumerate(jobs)])
        watch = LaneWatch(self.backend, self.whole, self.lanes, board, self.round, self.reads)
        watch.start()
        scheduler = LaneScheduler(self.backend, self.whole, self.lanes, watch, self.round)
        return BatchHandle(self.whole.job_id, name, tags, board, scheduler)


@dataclass
class LaneWatch:
    """Watch of the last round of a map: a thread that reads new segments of outcomes, and observes the lanes.

    A segment is read once, with one request, and kept while there is room for it. Unless the watch `reads`,
    only the listing's states are looked at, and a segment is read when somebody asks for an outcome.
    """

    backend: Backend
    whole: JobReference
    lanes: int
    board: Board
    round: int = 0
    reads: bool = True
    _segments: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Name and round of the segment with the outcome, by input."""
    _held: OrderedDict[str, Segment] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: set[str] = field(default_factory=set)
    _knows_earlier: bool = False
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
            name, number = self._segments.get(index, ("", 0))
            if not name or name in self._held:
                return self._held.get(name)
        segment = read_segment(self.backend.store, name, self._keys(), self.whole, number)
        if segment is not None:
            with self._lock:
                self._hold(segment)
        return segment

    def _subscribe(self) -> None:
        """Observe the lanes that exist."""
        job_watch = watch_for(self.backend, self.whole.namespace)
        for number in range(self.lanes):
            if number in self._subscriptions or self._is_over(number):
                continue
            reference = find(self.backend, lane_id(self.whole.job_id, number, self.round))
            if reference is None:
                continue

            def seen(observation: JobObservation, number: int = number) -> None:
                self._seen[number] = observation
                self.board.note_shared(number, observation)
                if observation.is_terminal:
                    self._wake.set()

            follows = self.board.follows
            self._subscriptions[number] = job_watch.subscribe(
                reference, seen, refused=self.board.tell, follows=follows
            )

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
        look = Look(self.board, self.whole.job_id)
        while not self._is_closed:
            try:
                if self.turn():
                    break
                self._subscribe()
                look.went_well()
                pause = min(latest, pause * 1.5)
            except Exception as exc:  # noqa: BLE001  nobody else would tell those who wait
                if not look.goes_on_after(exc):
                    break
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
        if self.backend.store.find(object_names.finished(self.whole.job_id, self.round)) is None:
            return False
        for number in missing:
            self._seen[number] = JobObservation(JobStatus.NOT_FOUND, "NotFound", "its lane was removed")
        return all(map(self._is_over, range(self.lanes)))

    def _look(self) -> None:
        """Read what lanes have stored since the last look; once also the values of the rounds before."""
        rounds = [self.round] if self._knows_earlier else range(self.round, -1, -1)
        for number in rounds:
            listed = segments(self.backend.store, self.whole.job_id, number)
            fresh = {info.name: info for info in listed if info.name not in self._known}
            if fresh:
                self._take(fresh, number)
        self._knows_earlier = True

    def _take(self, fresh: Mapping[str, ObjectInfo], number: int) -> None:
        """Read new segments of a round: those before the last one tell values only."""
        keys, read = self._keys(), {}
        store, whole = self.backend.store, self.whole

        def read_one(name: str) -> None:
            if self.reads:
                segment = read_segment(store, name, keys, whole, number)
                read[name] = None if segment is None else dict(segment.states), segment
            else:
                read[name] = listed_states(store, fresh[name], keys, whole, number), None

        for name, error in in_parallel(read_one, list(fresh)):
            if error is not None:
                raise error
            self._known.add(name)
            states, segment = read[name]
            if states is None:
                _LOG.warning("%s is not what a lane has stored, and is passed over", name)
                continue
            if number < self.round:
                states = {index: state for index, state in states.items() if state == "succeeded"}
            with self._lock:
                if segment is not None:
                    self._hold(segment)
                for index in states:
                    self._segments.setdefault(index, (name, number))
            own = {index: state for index, state in states.items() if index < self.board.size}
            ended = {i: ended_as(own[i]) if segment is None else segment.observation(i) for i in own}
            self.board.end(ended, ())

    def _keys(self) -> Keys:
        return lane_keys(self.backend, self.whole, range(1, self.round + 1))

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
        failure, lost = lost_inputs(self.backend, self.whole, self.round, self._seen.values(), rest)
        self.lost = failure
        if failure is not None:
            self.board.end(dict.fromkeys(lost, failure), ())
        self.board.end({}, rest - lost)
        self.board.finish()


def lost_inputs(
    backend: Backend, whole: JobReference, number: int, ends: Collection[JobObservation], rest: set[int]
) -> tuple[JobObservation | None, set[int]]:
    """Return how a lane of a round has ended without doing its work, and which inputs were lost by that.

    `ends`: how its lanes have ended; `rest`: its inputs without an outcome. Those that were not lost were
    never started.
    """
    failures = [seen for seen in ends if seen.status.ended_without_value]
    failure = failures[0] if failures else None
    if not rest or (failure is not None and failure.status is JobStatus.CANCELLED):
        return failure, set()
    if failure is None:
        was_stopped = backend.store.find(object_names.stop(whole.job_id, number)) is not None
        return (None, set()) if was_stopped else (_NEVER_RUN, rest)
    taken = claims(backend, whole, lane_keys(backend, whole, range(1, number + 1)), number)
    claimed = {index for claim in taken for index in range(claim.first, claim.end)}
    succeeded = any(seen.status is JobStatus.SUCCEEDED for seen in ends)
    return failure, {index for index in rest if not succeeded or index in claimed}


_NEVER = (
    "no worker has run it: somebody else who can write to the store has taken its block of inputs, or has "
    "removed its outcome"
)
_NEVER_RUN = JobObservation(
    JobStatus.FAILED, "Lost", _NEVER, failure=wire.Failure(wire.FailureClass.CONTROL_PLANE, _NEVER, "execute")
)
"""State of an input that has no outcome although all lanes have done what they could."""


class LaneScheduler:
    """Scheduler of a map whose inputs lanes run, by its last round."""

    def __init__(
        self, backend: Backend, whole: JobReference, lanes: int, watch: LaneWatch, round_number: int = 0
    ) -> None:
        self.backend = backend
        self._whole, self._watch, self._round = whole, watch, round_number
        self._ids = [lane_id(whole.job_id, number, round_number) for number in range(lanes)]

    def statuses(self, board: Board) -> list[tuple[int, JobStatus]]:
        """Return index and status of every input; those of a block run in their order."""
        self._watch.turn()
        with board.changed:
            known = {index: seen.status for index, seen in board.ended.items()}
            jobs = [index for index, job in enumerate(board.jobs) if job is not None]
        rest = [index for index in jobs if index not in known]
        found = dict.fromkeys(rest, JobStatus.PENDING) | known
        for claim in LaneOutcomes(self.backend, self._whole).claims() if rest else ():
            at = bisect_left(rest, claim.first)
            if at < len(rest) and rest[at] < claim.end:
                found[rest[at]] = JobStatus.RUNNING
        return [(index, found[index]) for index in jobs]

    def stop(self) -> None:
        """Start no further input: lanes find the mark within seconds."""
        mark = object_names.stop(self._whole.job_id, self._round)
        self.backend.store.create_if_absent(mark, b"cancelled")

    def cancel(self, board: Board, tell: Tell) -> None:  # noqa: ARG002  a lane's inputs end all at once
        """Start no further input, and end the lanes; return when nothing of them runs."""
        self.stop()
        finish(self.backend, self._whole.job_id, board, self._round)

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
        try:
            if segment is not None:
                return outcome_in(self.backend, job, segment).value_or_raise()
            return collect(self.backend, job).value_or_raise()
        except JobNotFound:
            failure = self._watch.lost
            if failure is None or failure.failure is None:
                raise
            raise error_of(job.job_id, failure.failure) from None

    def discard(self, jobs: Sequence[JobHandle]) -> None:  # noqa: ARG002  they have no Jobs
        """Remove the lanes' Jobs, and the stored inputs."""
        try:
            lanes = self._every_id()
            self.backend.remove(self._whole.namespace, *lanes)
            store = self.backend.store
            prefix = inputs_object(self._whole.job_id, "")
            store.delete_many([info.name for info in store.list(prefix)])
            for job_id in lanes:
                pattern = object_names.payload(job_id, "*")
                store.delete_many([info.name for info in store.list(f"jobs/{job_id}/", pattern)])
        except (KineticError, OSError) as exc:
            _LOG.warning("cleaning up after %s: %s", self._whole.job_id, exc)

    def remove(self, jobs: Sequence[JobHandle], *, k8s: bool, gcs: bool) -> None:  # noqa: ARG002
        """Remove the lanes' Jobs, and with `gcs` all stored objects of the map but outputs."""
        lanes = self._every_id()
        references = [find(self.backend, job_id) for job_id in lanes]
        if k8s:
            self.backend.remove(self._whole.namespace, *lanes)
        if gcs:
            store = self.backend.store
            for reference in references:
                if reference is not None:
                    store.delete(index_object(reference))
            for job_id in lanes:
                store.delete_all(f"jobs/{job_id}/")
            forget(store, self._whole.job_id)

    def _every_id(self) -> list[str]:
        """Return the ids of the lanes of all rounds."""
        every = (lane.job_id for lane in lanes_of(self.backend, self._whole.job_id, every=True))
        return list(dict.fromkeys([*self._ids, *every]))

    def when_left(self, living: int) -> str:
        """Say that the map needs no client."""
        return f"goes on without this process, {living} of its inputs have not ended"
