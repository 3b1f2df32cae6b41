"""Lanes of a map: calls that run its inputs one after the other, and what they have stored (ADR 0070).

An input of such a map has no Job. Its outcome lies with others in one object, a segment; a large one alone.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import ForgedNote, decode_note
from kinetic_core._runner.outcome import Header
from kinetic_core._runner.segments import opened_states, sealing_key_id
from kinetic_core._runner.store import ObjectTooLarge, read_at_most
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import JOB_NAME
from kinetic_core.errors import MalformedObject, ObjectNotFound
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.inputs import LANES, MANIFEST, ON_LANES, read_manifest
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import Keys, variable
from kinetic_core.option_checks import MOST_WORKERS
from kinetic_core.store.documents import malformed, read_document, read_start
from kinetic_core.store.protocol import ObjectInfo, ObjectStore

_ID = re.compile(r"(grp-.+)-l(\d{1,6})")
_SEGMENT = re.compile(r"(\d{8})-(\d{6})\.outcomes")
_ROUND = re.compile(r"[1-9]\d{0,2}")
_LONGEST_CLAIM = 4 << 10
LANE = "KINETIC_LANE"
"""Variable of a lane: its map, its number, how many lanes and inputs there are, the digest of the blocks, and
the round.
"""
MOST_LANES = MOST_WORKERS
"""Lanes of a round at most."""
MOST_ROUNDS = 1_000
ROUND = "round.json"
"""Object of a round but the first, with its `LANES`, `BLOCKS` and `INPUTS`: see batches/rounds.py."""
INPUTS = "inputs"
"""Field with the inputs of a round, as Kubernetes writes sets of numbers."""
_HELD_BYTES = 64 << 20


def lane_id(group_id: str, number: int, round_number: int = 0) -> str:
    """Return the job id of a lane; those of round n are counted from n times MOST_LANES."""
    return f"{group_id}-l{round_number * MOST_LANES + number}"


def lane_of(job_id: str) -> tuple[str, int] | None:
    """Return map and round of a lane's id, None for any other id."""
    found = _ID.fullmatch(job_id)
    return (found[1], int(found[2]) // MOST_LANES) if found else None


def is_lane(reference: JobReference) -> bool:
    """Return whether a reference is of a lane."""
    return lane_of(reference.job_id) is not None


def is_on_lanes(whole: JobReference) -> bool:
    """Return whether a reference is of a map that runs on lanes, or of one of its inputs."""
    return whole.worker == whole.group_id is not None


def runs_on_lane(reference: JobReference) -> bool:
    """Return whether a reference is of an input that a lane of its map runs."""
    return reference.group_index is not None and is_on_lanes(reference)


def lane_reference(whole: JobReference, number: int, worker: str = "", round_number: int = 0) -> JobReference:
    """Build the reference of a lane from that of its map, or of one of the map's inputs."""
    own = lane_id(whole.group_id or "", number, round_number)
    return replace(
        whole,
        job_id=own,
        k8s_name=JOB_NAME.format(own),
        display_name=f"kinetic-{whole.func_name}-{own}",
        group_id=None,
        group_kind=None,
        group_index=None,
        output_dir="",
        worker=worker,
    )


def lanes_of(backend: Backend, group_id: str, *, every: bool = False) -> list[JobReference]:
    """Return the references of the lanes of a map's last round, or of all rounds; [] for any other batch.

    Raises MalformedObject, StoreError.
    """
    try:
        manifest = read_manifest(backend.store, group_id)
    except ObjectNotFound:
        return []
    if manifest["scheduler"] != ON_LANES:
        return []
    whole = checked_reference(manifest["reference"], group_id, backend)
    last = last_round(backend, whole)
    found = []
    for number in range(0 if every else last, last + 1):
        count = lane_count(backend, whole, manifest, number)
        found += [lane_reference(whole, lane, round_number=number) for lane in range(count)]
    return found


def stored_rounds(store: ObjectStore, group_id: str) -> list[int]:
    """List the rounds of a map but the first that somebody says there are, the last one first."""
    prefix = object_names.rounds(group_id)
    names = (info.name for info in store.list(prefix, f"{prefix}*/{ROUND}"))
    numbers = (name.removeprefix(prefix).partition("/")[0] for name in names)
    return sorted((int(number) for number in numbers if _ROUND.fullmatch(number)), reverse=True)


def last_round(backend: Backend, whole: JobReference) -> int:
    """Return the number of a map's last round, by the Job of its first lane or by a claim of its lanes.

    A round of which there is neither has run nothing: whoever can write to the store could say there is one.
    """
    group_id = whole.group_id or ""
    if not (found := stored_rounds(backend.store, group_id)):
        return 0
    keys = lane_keys(backend, whole, found)
    for number in found:
        job = backend.get(whole.namespace, lane_id(group_id, 0, number))
        if job is not None and variable(job[0], LANE).split()[-1:] == [str(number)]:
            return number
        if next(claims(backend, whole, keys, number), None) is not None:
            return number
    return 0


def lane_count(
    backend: Backend, whole: JobReference, manifest: Mapping[str, Any], round_number: int = 0
) -> int:
    """Return how many lanes a round has. Raises MalformedObject unless its first lane's Job says the same.

    Without that Job the manifest, or the round's object, which others can write, is believed.
    """
    group_id, told_by = whole.group_id or "", manifest
    name = object_names.batch(group_id, MANIFEST)
    if round_number:
        name = object_names.of_round(group_id, round_number, ROUND)
        told_by = read_document(backend.store, name)
    lanes, size = told_by.get(LANES), manifest["total_expected"]
    found = backend.get(whole.namespace, lane_id(group_id, 0, round_number))
    told = variable(found[0] if found is not None else None, LANE).split()
    if type(lanes) is not int or not 1 <= lanes <= min(MOST_LANES, size):
        why = f"a map of {size} inputs has no {lanes!r} lanes"
    elif told and told[2:4] != [f"{lanes}", f"{size}"]:
        why = f"it names {lanes} lanes and {size} inputs, its first lane's Job {' and '.join(told[2:4])}"
    else:
        return lanes
    raise malformed(backend.store, name, why)


@dataclass(frozen=True)
class Claim:
    """Verified claim of a lane: it runs the inputs from `first` up to `end`, without `end`."""

    first: int
    end: int
    key: bytes
    """The lane's key."""

    def key_of(self, index: int) -> bytes:
        """Return the key that signs what is stored of an input."""
        return wire.input_key(self.key, index)


def claims(backend: Backend, whole: JobReference, keys: Keys, round_number: int = 0) -> Iterator[Claim]:
    """Yield the blocks of a round that lanes have taken. What no lane of it has signed is passed over.

    Takes one request per thousand blocks where listings have metadata.
    """
    group_id = whole.group_id or ""
    for info in backend.store.list(object_names.block_claims(group_id, round_number)):
        stem = info.name.rpartition("/")[2].partition(".")[0]
        if not stem.isdecimal() or info.name != object_names.block_claim(group_id, int(stem), round_number):
            continue
        try:
            listed = info.metadata.get(wire.CLAIM)
            content = listed.encode() if listed else backend.store.read_range(info.name, 0, _LONGEST_CLAIM)
            told = wire.document(content, key_id=str, end=int)
            key = _lane_key(keys, whole, told["key_id"], round_number)
            if key is not None:
                decode_note(key, info.name, content)
                yield Claim(int(stem), told["end"], key)
        except (ObjectNotFound, ForgedNote, wire.Malformed):
            continue


def claim_of(backend: Backend, reference: JobReference) -> Claim | None:
    """Return the claim of the last round's block that has an input; None while no lane has taken it."""
    return LaneOutcomes(backend, reference).claim_of(reference.group_index or 0)


def is_next(backend: Backend, reference: JobReference) -> bool:
    """Return whether a lane runs an input now: its block is taken, and all inputs before it have ended."""
    outcomes, index = LaneOutcomes(backend, reference), reference.group_index or 0
    claim = outcomes.claim_of(index)
    if claim is None:
        return False
    states = outcomes.states()
    return index not in states and all(each in states for each in range(claim.first, index))


def _lane_key(keys: Keys, whole: JobReference, key_id: str, round_number: int) -> bytes | None:
    """Return the key of that id, if it is that of a lane of this round of the map."""
    owner = key_id.partition(":")[0]
    if lane_of(owner) != (whole.group_id, round_number):
        return None
    return keys.of(key_id, owner, spec_digest=whole.spec_digest)


@dataclass(frozen=True)
class Segment:
    """Verified segment of outcomes: the states of inputs, and where the frames of those that are not stored
    alone lie in `content`, the whole object.
    """

    name: str
    states: Mapping[int, str]
    frames: Mapping[int, tuple[int, int]]
    content: bytes
    key: bytes

    def frame(self, index: int) -> bytes | None:
        """Return the outcome of an input, None for one that is stored alone."""
        if index not in self.frames:
            return None
        start, end = self.frames[index]
        return self.content[start:end]

    def key_of(self, index: int) -> bytes:
        """Return the key that signs the outcome of an input."""
        return wire.input_key(self.key, index)

    def observation(self, index: int) -> JobObservation:
        """Observe an input that has ended; of one whose outcome is stored alone only the status is known."""
        frame, header = self.frame(index), None
        if frame is not None:
            with suppress(wire.FrameError):
                header = Header.from_dict(wire.decode_head(frame, self.key_of(index)))
        if header is None:
            return ended_as(self.states[index])
        failure = header.failure
        seen = ended_as(self.states[index])
        return replace(
            seen,
            status=seen.status if failure is None else JobStatus.after(failure),
            reason="Completed" if failure is None else "Failed",
            message="the outcome is committed" if failure is None else failure.message,
            attempt=header.attempt,
            started_at=header.times.get("started"),
            finished_at=header.times.get("finished"),
            failure=failure,
        )


_STATUSES = {
    "succeeded": JobStatus.SUCCEEDED,
    wire.CANCELLED: JobStatus.CANCELLED,
    wire.DROPPED: JobStatus.CANCELLED,
}


def ended_as(state: str) -> JobObservation:
    """Return the observation of an input of which no more than its state is known."""
    status = _STATUSES.get(state, JobStatus.FAILED)
    return JobObservation(status, "Completed" if status is JobStatus.SUCCEEDED else "Failed")


def segments(store: ObjectStore, group_id: str, round_number: int = 0) -> Iterator[ObjectInfo]:
    """List the segments of a round."""
    for info in store.list(object_names.segments(group_id, round_number)):
        if _SEGMENT.fullmatch(info.name.rpartition("/")[2]):
            yield info


def listed_states(
    store: ObjectStore, info: ObjectInfo, keys: Keys, whole: JobReference, round_number: int = 0
) -> dict[int, str] | None:
    """Return how the inputs of a listed segment ended, None unless a lane of the round has signed that.

    Takes no request where listings have metadata.
    """
    sealed = info.metadata.get(wire.STATES)
    if sealed is None:
        segment = read_segment(store, info.name, keys, whole, round_number)
        return None if segment is None else dict(segment.states)
    key = _lane_key(keys, whole, sealing_key_id(sealed), round_number)
    try:
        return None if key is None else opened_states(info.name, sealed, key)
    except ValueError:
        return None


def read_segment(
    store: ObjectStore, name: str, keys: Keys, whole: JobReference, round_number: int = 0
) -> Segment | None:
    """Read a segment; return None for an object that no lane of the round has signed. Raises StoreError."""
    try:
        content = read_at_most(store, name, wire.LARGEST_SEGMENT)
        key = _lane_key(keys, whole, str(wire.decode_head(content).get("key_id")), round_number)
        if key is None:
            return None
        header = wire.decode_head(content, key)
        object_names.require_place(header, str(header.get("key_id")).partition(":")[0], name)
        lengths = [(int(part), int(length)) for part, length in header["parts"]]
        states = {int(index): str(state) for index, state in header["states"].items()}
    except (ObjectNotFound, ObjectTooLarge):
        return None
    except (wire.FrameError, ValueError, KeyError, AttributeError, TypeError):
        return None
    frames, offset = {}, wire.head_size(content)
    if wire.digest(content[offset:]) != header["sha256"]:
        return None
    for index, length in lengths:
        frames[index] = offset, offset + length
        offset += length
    return Segment(name, states, frames, content, key)


class LaneOutcomes:
    """What lanes had stored of a map's inputs when somebody first asked for it; segments are read once.

    `whole`: the reference of the map, or of one of its inputs. Methods raise StoreError.
    """

    def __init__(self, backend: Backend, whole: JobReference) -> None:
        self.backend, self._whole = backend, whole
        self._held: OrderedDict[str, Segment] = OrderedDict()
        self._bytes = 0
        self._lock, self._listing = threading.Lock(), threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._listed: dict[int, tuple[str, str, int]] | None = None

    @cached_property
    def round(self) -> int:
        """Return the number of the last round."""
        return last_round(self.backend, self._whole)

    @cached_property
    def keys(self) -> Keys:
        """Return the keys of the map's lanes."""
        return lane_keys(self.backend, self._whole, range(1, self.round + 1))

    def states(self) -> dict[int, str]:
        """Return how inputs ended, by index: in the last round, or with a value in one before."""
        return {index: state for index, (state, _, _) in self._found().items()}

    def claims(self) -> Iterator[Claim]:
        """Yield the claims of the last round's blocks."""
        return claims(self.backend, self._whole, self.keys, self.round)

    def claim_of(self, index: int) -> Claim | None:
        """Return the claim of the last round's block that has an input; None while no lane has taken it."""
        return next((claim for claim in self.claims() if claim.first <= index < claim.end), None)

    def running(self) -> set[int]:
        """Return the inputs that lanes of the last round run if they live: of each block the first that is
        left.
        """
        states = self.states()
        blocks = (range(claim.first, claim.end) for claim in self.claims())
        left = (next((index for index in block if index not in states), None) for block in blocks)
        return {index for index in left if index is not None}

    def segment_of(self, index: int) -> Segment | None:
        """Return the segment that tells how an input ended, None while none does."""
        found = self._found().get(index)
        if found is None:
            return None
        _, name, round_number = found
        with self._lock:
            reading = self._reading.setdefault(name, threading.Lock())
        with reading:
            if (held := self._held.get(name)) is not None:
                return held
            segment = read_segment(self.backend.store, name, self.keys, self._whole, round_number)
            if segment is not None:
                with self._lock:
                    self._hold(segment)
            return segment

    def frame(self, index: int) -> bytes | None:
        """Return the outcome of an input, None if there is none, or one that is stored alone."""
        segment = self.segment_of(index)
        return None if segment is None else segment.frame(index)

    def _hold(self, segment: Segment) -> None:
        if segment.name not in self._held:
            self._held[segment.name] = segment
            self._bytes += len(segment.content)
        while self._bytes > _HELD_BYTES and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest.content)

    def _found(self) -> dict[int, tuple[str, str, int]]:
        """Return state, segment and round of each input that has ended; listed once, also by many threads."""
        with self._listing:
            if self._listed is None:
                self._listed = self._list()
            return self._listed

    def _list(self) -> dict[int, tuple[str, str, int]]:
        found: dict[int, tuple[str, str, int]] = {}
        store, group_id = self.backend.store, self._whole.group_id or ""
        for number in range(self.round, -1, -1):
            for info in segments(store, group_id, number):
                states = listed_states(store, info, self.keys, self._whole, number) or {}
                for index, state in states.items():
                    if number == self.round or state == "succeeded":
                        found.setdefault(index, (state, info.name, number))
        return found


def lane_keys(backend: Backend, whole: JobReference, rounds: Iterable[int] = ()) -> Keys:
    """Return the keys of a map's lanes: from their Jobs only where the namespace's secret cannot be read.

    `rounds`: those that the map has beside the first.
    """
    group_id, jobs = whole.group_id or "", []
    if backend.signing_secret(whole.namespace) is None:
        for number in (0, *rounds):
            if number and backend.get(whole.namespace, lane_id(group_id, 0, number)) is None:
                continue
            with suppress(ObjectNotFound, MalformedObject):  # somebody else has written that there is a round
                count = lane_count(backend, whole, read_manifest(backend.store, group_id), number)
                ids = (lane_id(group_id, lane, number) for lane in range(count))
                found = (backend.get(whole.namespace, job_id) for job_id in ids)
                jobs += [each[0] for each in found if each is not None]
    return Keys(backend, whole.namespace, jobs)


def segment_outcome(backend: Backend, reference: JobReference) -> bytes | None:
    """Return the outcome of an input that lies in a segment, None if there is none. Raises StoreError."""
    return LaneOutcomes(backend, reference).frame(reference.group_index or 0)


def outcome_start(backend: Backend, reference: JobReference) -> bytes:
    """Read the beginning of a job's outcome, its whole head at least. Raises wire.FrameError, StoreError."""
    if runs_on_lane(reference) and (frame := segment_outcome(backend, reference)) is not None:
        return frame
    return read_start(backend.store, object_names.result(reference.job_id))
