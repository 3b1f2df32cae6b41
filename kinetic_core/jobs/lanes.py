"""Lanes of a map: calls that run its inputs one after the other, and what they have stored (ADR 0070).

An input of such a map has no Job. Its outcome lies with others in one object, a segment; a large one alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import ForgedNote, decode_note
from kinetic_core._runner.store import ObjectTooLarge, read_at_most
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import JOB_NAME
from kinetic_core.errors import ObjectNotFound
from kinetic_core.job import JobReference
from kinetic_core.jobs.inputs import LANES, MANIFEST, ON_LANES, read_manifest
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import Keys, variable
from kinetic_core.store.documents import malformed, read_start
from kinetic_core.store.protocol import ObjectStore

_ID = re.compile(r"grp-.+-l\d+")
_SEGMENT = re.compile(r"(\d{8})-(\d{6})\.outcomes")
_LONGEST_CLAIM = 4 << 10
LANE = "KINETIC_LANE"
"""Variable of a lane: its map, its number, how many lanes and inputs that has, the digest of its blocks."""
MOST_LANES = 1_000
"""Lanes of a map at most: whoever observes one of its inputs asks for all of them."""


def lane_id(group_id: str, number: int) -> str:
    """Return the job id of a lane."""
    return f"{group_id}-l{number}"


def is_lane(reference: JobReference) -> bool:
    """Return whether a reference is of a lane."""
    return _ID.fullmatch(reference.job_id) is not None


def runs_on_lane(reference: JobReference) -> bool:
    """Return whether a reference is of an input that a lane of its map runs."""
    return reference.group_index is not None and reference.worker == reference.group_id is not None


def lane_reference(whole: JobReference, number: int, worker: str = "") -> JobReference:
    """Build the reference of a lane from that of its map, or of one of the map's inputs."""
    own = lane_id(whole.group_id or "", number)
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


def lanes_of(backend: Backend, group_id: str) -> list[JobReference]:
    """Return the references of a map's lanes; [] for any other batch. Raises MalformedObject, StoreError."""
    try:
        manifest = read_manifest(backend.store, group_id)
    except ObjectNotFound:
        return []
    if manifest["scheduler"] != ON_LANES:
        return []
    whole = checked_reference(manifest["reference"], group_id, backend)
    return [lane_reference(whole, number) for number in range(lane_count(backend, whole, manifest))]


def lane_count(backend: Backend, whole: JobReference, manifest: Mapping[str, Any]) -> int:
    """Return how many lanes a map has. Raises MalformedObject unless its first lane's Job says the same.

    Without that Job the manifest, which others can write, is believed.
    """
    lanes, size = manifest.get(LANES), manifest["total_expected"]
    found = backend.get(whole.namespace, lane_id(whole.job_id, 0))
    told = variable(found[0] if found is not None else None, LANE).split()
    if type(lanes) is not int or not 1 <= lanes <= min(MOST_LANES, size):
        why = f"a map of {size} inputs has no {lanes!r} lanes"
    elif told and told[2:4] != [f"{lanes}", f"{size}"]:
        why = f"it names {lanes} lanes and {size} inputs, its first lane's Job {' and '.join(told[2:4])}"
    else:
        return lanes
    raise malformed(backend.store, object_names.batch(whole.job_id, MANIFEST), why)


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


def claims(backend: Backend, whole: JobReference, keys: Keys) -> Iterator[Claim]:
    """Yield the blocks that lanes have taken. What no lane of the map has signed is passed over.

    Takes one request per thousand blocks where listings have metadata.
    """
    group_id = whole.group_id or ""
    for info in backend.store.list(object_names.block_claims(group_id)):
        stem = info.name.rpartition("/")[2].partition(".")[0]
        if not stem.isdecimal() or info.name != object_names.block_claim(group_id, int(stem)):
            continue
        try:
            listed = info.metadata.get(wire.CLAIM)
            content = listed.encode() if listed else backend.store.read_range(info.name, 0, _LONGEST_CLAIM)
            told = wire.document(content, key_id=str, end=int)
            key = _lane_key(keys, whole, told["key_id"])
            if key is not None:
                decode_note(key, info.name, content)
                yield Claim(int(stem), told["end"], key)
        except (ObjectNotFound, ForgedNote, wire.Malformed):
            continue


def claim_of(backend: Backend, reference: JobReference) -> Claim | None:
    """Return the claim of the block that has an input; None while no lane has taken it."""
    keys, index = lane_keys(backend, reference), reference.group_index or 0
    found = claims(backend, reference, keys)
    return next((claim for claim in found if claim.first <= index < claim.end), None)


def is_next(backend: Backend, reference: JobReference) -> bool:
    """Return whether a lane runs an input now: its block is taken, and all inputs before it have ended."""
    claim = claim_of(backend, reference)
    if claim is None:
        return False
    keys, last = lane_keys(backend, reference), claim.first - 1
    for first, name in segments(backend.store, reference.group_id or ""):
        if first == claim.first and (segment := read_segment(backend.store, name, keys, reference)):
            last = max(last, *segment.states)
    return reference.group_index == last + 1


def _lane_key(keys: Keys, whole: JobReference, key_id: str) -> bytes | None:
    """Return the key of that id, if it is that of a lane of the map."""
    owner = key_id.partition(":")[0]
    if not owner.startswith(f"{whole.group_id}-l") or not _ID.fullmatch(owner):
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


def segments(store: ObjectStore, group_id: str) -> Iterator[tuple[int, str]]:
    """List the first input of the block, and the name, of each segment of a map."""
    for info in store.list(object_names.segments(group_id)):
        if found := _SEGMENT.fullmatch(info.name.rpartition("/")[2]):
            yield int(found[1]), info.name


def read_segment(store: ObjectStore, name: str, keys: Keys, whole: JobReference) -> Segment | None:
    """Read a segment; return None for an object that no lane of the map has signed. Raises StoreError."""
    try:
        content = read_at_most(store, name, wire.LARGEST_SEGMENT)
        key = _lane_key(keys, whole, str(wire.decode_head(content).get("key_id")))
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


def lane_keys(backend: Backend, whole: JobReference) -> Keys:
    """Return the keys of a map's lanes: from their Jobs only where the namespace's secret cannot be read."""
    if backend.signing_secret(whole.namespace) is not None:
        return Keys(backend, whole.namespace)
    lanes = lanes_of(backend, whole.group_id or "")
    found = (backend.get(whole.namespace, lane.job_id) for lane in lanes)
    return Keys(backend, whole.namespace, [each[0] for each in found if each is not None])


def segment_outcome(backend: Backend, reference: JobReference) -> bytes | None:
    """Return the outcome of an input that lies in a segment, None if there is none. Raises StoreError."""
    keys, index = lane_keys(backend, reference), reference.group_index or 0
    near = range(index - wire.BLOCK_INPUTS + 1, index + 1)
    for first, name in segments(backend.store, reference.group_id or ""):
        if first in near and (segment := read_segment(backend.store, name, keys, reference)) is not None:
            frame = segment.frame(index)
            if frame is not None:
                return frame
    return None


def outcome_start(backend: Backend, reference: JobReference) -> bytes:
    """Read the beginning of a job's outcome, its whole head at least. Raises wire.FrameError, StoreError."""
    if runs_on_lane(reference) and (frame := segment_outcome(backend, reference)) is not None:
        return frame
    return read_start(backend.store, object_names.result(reference.job_id))
