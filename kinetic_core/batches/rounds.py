"""Submission of a map on warm workers, and of further rounds for its inputs without a value (ADR 0073).

A round is a set of lanes, with blocks, claims and segments of its own. The first has all inputs. Another one
begins once the lanes of the one before are known to have ended, and has the inputs without a value. It is
begun by the mark that stops the round before, so that a lane that a slow submitter creates too late finds the
mark and runs nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.indexes import format_indexes, parse_indexes
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.batches.definition import Plan, failure_object, note_failure
from kinetic_core.batches.indexed import (
    Inputs,
    NeedsOwnJobs,
    batch_payload,
    described,
    store_batch,
    write_inputs,
)
from kinetic_core.batches.scheduler import in_parallel
from kinetic_core.errors import ClusterUnreachable, InvalidRequest, MalformedObject, ObjectNotFound
from kinetic_core.job import JobReference, JobSpec
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.inputs import BLOCKS, LANES, ON_LANES, forget, read_manifest, stored_of
from kinetic_core.jobs.lanes import (
    INPUTS,
    LANE,
    MOST_LANES,
    MOST_ROUNDS,
    ROUND,
    LaneOutcomes,
    lane_keys,
    lane_of,
    lane_reference,
    last_round,
    listed_states,
    segments,
)
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.prepare import Prepared, timestamp
from kinetic_core.jobs.signing import variable
from kinetic_core.jobs.submit import submit
from kinetic_core.option_checks import many_on_workers
from kinetic_core.options import RunOptions
from kinetic_core.store.documents import malformed, read_document
from kinetic_core.store.protocol import ObjectInfo, ObjectStore

_SHARE = 16
"""Blocks in each lane's share of a round, at least, so that lanes end at about the same time."""


def check_lanes(options: RunOptions, plan: Plan) -> None:
    """Check that a map with these options can run on lanes. Raises InvalidRequest."""
    asked = {
        "budget": options.budget,
        "cancel_running_on_fail": plan.cancel_running,
        "hang_after": options.pod.hang_after,
        "reuse": options.reuse,
    }
    many_on_workers(asked, plan.max_concurrent, on=options.accelerator)


@dataclass(frozen=True)
class Submitted:
    """Map whose lanes exist. `failures`: why inputs could not be submitted, by index."""

    reference: JobReference
    failures: Mapping[int, Exception]


def submit_on_lanes(packed: Packed, items: Sequence[Any], plan: Plan) -> Submitted:
    """Store a map, and start its lanes; no client is needed from here on.

    Submitting the same map under the same id again adopts it, and creates what is missing. With `skip_done`,
    and once all lanes of its last round have ended, another round runs its inputs without a value.

    Raises InvalidRequest for what needs a job for each input, JobConflict if the id belongs to another batch,
    ClusterUnreachable if a lane cannot be proven to have ended, and as `submit` does; then nothing of a new
    batch with a generated id goes on.
    """
    with tempfile.TemporaryDirectory(prefix="kinetic-inputs-") as folder:
        return _Submission(packed, items, plan, Path(folder)).run()


@dataclass(frozen=True)
class _Round:
    """Definition of a round: its number, how many lanes it has, the digest of its blocks, and its inputs."""

    number: int
    lanes: int
    blocks: str
    inputs: str


class _Submission:
    def __init__(self, packed: Packed, items: Sequence[Any], plan: Plan, folder: Path) -> None:
        self._packed, self._items, self._plan, self._folder = packed, items, plan, folder
        self._backend: Backend = packed.backend
        self._store: ObjectStore = packed.backend.store
        self._group_id = plan.group_id
        self._made: list[JobReference] = []
        self._spec: JobSpec
        self._whole: JobReference

    def run(self) -> Submitted:
        plan, every = self._plan, range(len(self._items))
        with ExitStack() as undo:
            first, inputs = self._written(0, every, min(plan.max_concurrent or 1, len(every)))
            if plan.is_new:
                undo.callback(_undo, self._backend, self._group_id, self._made)
            self._spec, reference = described(self._packed, self._items, plan, inputs)
            self._whole = replace(reference, worker=self._group_id)
            self._store.create_if_absent(inputs.object_name, inputs.path)
            fields = {LANES: first.lanes, BLOCKS: first.blocks}
            known = store_batch(self._packed, plan, self._whole, len(every), ON_LANES, **fields)
            if plan.skip_done:
                self._go_on(first, inputs)
            else:
                self._begin(first, inputs)
            undo.pop_all()
        return Submitted(self._whole if plan.skip_done else known, inputs.failures)

    def _begin(self, first: _Round, inputs: Inputs) -> None:
        """Start the lanes of the first round that do not exist."""
        if self._stored(0) != first or not self._start(first, inputs):
            raise InvalidRequest(
                f"{self._group_id} was begun with another max_concurrent=, or its inputs pickle differently "
                "here: say the same, attach to it, or use another group_id"
            )

    def _go_on(self, first: _Round, inputs: Inputs) -> None:
        """Start or adopt the last round, or begin another one for the inputs without a value."""
        number, looked_at = 0, -1
        while True:
            if (last := last_round(self._backend, self._whole)) > looked_at:
                number = looked_at = last
                if self._store.find(object_names.finished(self._group_id, number)) is None:
                    if self._complete(number, first, inputs):
                        return
                elif self._living(number) and not self._is_told(number):
                    return
            if not self._without_value():
                return
            self._end(number)
            number += 1
            if not (rest := self._without_value()) or self._open(number, rest):
                return  # else somebody else has begun it with other blocks, or says so

    def _complete(self, number: int, first: _Round, inputs: Inputs) -> bool:
        """Create the lanes that a submitter has not come to; return False if it began the round otherwise."""
        told = self._stored(number)
        if told is None or not told.inputs:
            return False
        if number == 0:
            return told == first and self._start(first, inputs)
        own, written = self._written(number, parse_indexes(told.inputs), told.lanes)
        self._store.create_if_absent(written.object_name, written.path)
        return own == told and self._start(own, written)

    def _open(self, number: int, rest: Sequence[int]) -> bool:
        """Begin a round; return False if somebody else has begun it otherwise.

        What is stored of the inputs alone is removed first, so that they begin at attempt 0. That was all
        stored by rounds before, because without the round's object no lane of it can exist.
        """
        if number >= MOST_ROUNDS:
            raise InvalidRequest(f"{self._group_id} has run {MOST_ROUNDS} times: use another group_id")
        name = object_names.of_round(self._group_id, number, ROUND)
        own, inputs = self._written(number, rest, min(self._plan.max_concurrent or 1, len(rest)))
        if not inputs.blocks:
            return True  # none of them can be submitted
        before = self._stored_before(rest)
        if self._store.find(name) is None:
            self._store.delete_seen(before)
        self._store.create_if_absent(inputs.object_name, inputs.path)
        content = {LANES: own.lanes, BLOCKS: own.blocks, INPUTS: own.inputs}
        self._store.create_if_absent(name, json.dumps(content).encode())
        return self._stored(number) == own and self._start(own, inputs)

    def _start(self, own: _Round, inputs: Inputs) -> bool:
        """Create the lanes of a round that do not exist; return False if one exists that is another."""
        plan, spec = self._plan, self._spec
        for index, error in inputs.failures.items():
            note_failure(self._backend, self._whole.namespace, self._group_id, index, error)
        payload = batch_payload(self._packed, spec, self._whole, inputs)
        # Timeout and retries are of each input, and kept by the lane.
        lane_spec = replace(spec, timeout=None, retries=0, output_dir="", group_id=None)
        for number in range(own.lanes):
            told = f"{self._group_id} {number} {own.lanes} {len(self._items)} {own.blocks} {own.number}"
            lane = lane_reference(self._whole, number, round_number=own.number)
            lane = replace(lane, created_at=timestamp()) if own.number else lane
            found = None if plan.is_new else self._backend.get(lane.namespace, lane.job_id)
            if found is not None and variable(found[0], LANE) != told:
                return False
            prepared = Prepared(self._backend, lane_spec, lane, payload, plan.is_new)
            self._made.append(submit(prepared, self._variables(told), plan.origin))
        finished = json.dumps({"dropped": []}).encode()
        self._store.create_if_absent(object_names.finished(self._group_id, own.number), finished)
        return True

    def _variables(self, lane: str) -> dict[str, str]:
        """Return the variables that make a call a lane."""
        told = {**self._plan.environment, LANE: lane, "KINETIC_INPUT_RETRIES": str(self._spec.retries)}
        if self._spec.timeout is not None:
            told["KINETIC_INPUT_TIMEOUT"] = f"{self._spec.timeout:g}"
        if self._plan.fail_fast:
            told["KINETIC_FAIL_FAST"] = "true"
        return told

    def _written(self, number: int, indexes: Sequence[int], lanes: int) -> tuple[_Round, Inputs]:
        """Write the arguments of a round's inputs to a file, and define the round."""
        most = min(wire.BLOCK_INPUTS, -(-len(indexes) // (lanes * _SHARE)))
        path = self._folder / f"inputs-{number}"
        try:
            inputs = write_inputs(self._packed, self._items, self._plan, path, most, indexes)
        except NeedsOwnJobs:
            raise InvalidRequest(
                "warm= does not go with Data that is mounted for one input: leave warm= out, or give the "
                "data to all inputs"
            ) from None
        digest = wire.digest(json.dumps([block[0] for block in inputs.blocks]).encode())[:16]
        return _Round(number, lanes, digest, format_indexes(indexes)), inputs

    def _stored(self, number: int) -> _Round | None:
        """Read the definition of a round; None if it is none that this map can have."""
        size = len(self._items)
        try:
            if number == 0:
                told = {**read_manifest(self._store, self._group_id), INPUTS: format_indexes(range(size))}
                wire.document(told, **{LANES: int, BLOCKS: str})
            else:
                name = object_names.of_round(self._group_id, number, ROUND)
                told = read_document(self._store, name, **{LANES: int, BLOCKS: str, INPUTS: str})
            if not 1 <= told[LANES] <= min(MOST_LANES, size) or not _are_indexes(told[INPUTS], size):
                raise malformed(self._store, self._group_id, "it has no such lanes or inputs")
        except (ObjectNotFound, MalformedObject, wire.Malformed):
            return None
        return _Round(number, told[LANES], told[BLOCKS], told[INPUTS])

    def _without_value(self) -> list[int]:
        """Return the inputs for which no lane has stored a value."""
        states = LaneOutcomes(self._backend, self._whole).states()
        return [index for index in range(len(self._items)) if states.get(index) != "succeeded"]

    def _stored_before(self, indexes: Sequence[int]) -> list[ObjectInfo]:
        """List what is stored of some inputs alone."""
        wanted = set(indexes)
        own = [info for index, info in stored_of(self._store, self._group_id) if index in wanted]
        noted = self._store.present([failure_object(self._group_id, index) for index in indexes])
        return [*own, *(info for name in noted if (info := self._store.find(name)) is not None)]

    def _living(self, number: int) -> list[JobReference]:
        """Return the lanes of a round that are not known to have ended."""
        there = self._backend.all(self._whole.namespace)
        own = (self._lane(job_id) for job_id in there if lane_of(job_id) == (self._group_id, number))
        begun = [lane for lane in own if not verdict(*there[lane.job_id]).is_terminal]
        living: list[JobReference] = []

        def look(lane: JobReference) -> None:
            if not observe(self._backend, lane).is_terminal:
                living.append(lane)

        for _, error in in_parallel(look, begun):
            if error is not None:
                raise error
        return living

    def _is_told(self, number: int) -> bool:
        """Return whether a lane has said of each input of a round how it ended: they run nothing more, even
        while they live.
        """
        told = self._stored(number)
        if told is None:
            return False
        waiting = set(parse_indexes(told.inputs))
        keys = lane_keys(self._backend, self._whole, range(1, number + 1))
        for info in segments(self._store, self._group_id, number):
            waiting.difference_update(listed_states(self._store, info, keys, self._whole, number) or ())
        return not waiting

    def _lane(self, job_id: str) -> JobReference:
        found = int(job_id.rpartition("-l")[2])
        return lane_reference(self._whole, found % MOST_LANES, round_number=found // MOST_LANES)

    def _end(self, number: int) -> None:
        """Let no lane of a round begin with an input from now on, and end those that live."""
        self._store.create_if_absent(object_names.stop(self._group_id, number), b"another round")
        for _, error in in_parallel(lambda lane: cancel(self._backend, lane), self._living(number)):
            if error is not None:
                raise error
        self._check_removed(number)

    def _check_removed(self, number: int) -> None:
        """Raise ClusterUnreachable if a worker may still run a lane whose Job somebody has removed."""
        pattern = object_names.claim(f"{self._group_id}-l*", "*")
        claimed = self._store.list(f"jobs/{self._group_id}-l", pattern)
        begun = {info.name.split("/")[1] for info in claimed}
        for job_id in sorted(each for each in begun if lane_of(each) == (self._group_id, number)):
            if self._store.find(object_names.result(job_id)) is not None:
                continue
            reference = find(self._backend, job_id)
            if reference is None or self._backend.get(reference.namespace, job_id) is not None:
                continue
            worker = self._backend.get(reference.namespace, reference.worker) if reference.worker else None
            if worker is not None and not verdict(*worker).is_terminal:
                raise ClusterUnreachable(
                    f"the Job of {job_id} was removed while its worker, {reference.worker}, may run inputs "
                    f"of {self._group_id}: `kinetic jobs cancel {reference.worker}` ends the worker; then "
                    "run the inputs again"
                )


def _are_indexes(text: str, size: int) -> bool:
    """Return whether a text is a set of a map's inputs; takes no memory for what it names."""
    before = -1
    try:
        for run in text.split(","):
            first, _, last = run.partition("-")
            if not before < int(first) <= int(last or first) < size:
                return False
            before = int(last or first)
    except ValueError:
        return False
    return True


def _undo(backend: Backend, group_id: str, made: Sequence[JobReference]) -> None:
    """End the lanes of a new map that not all of them could be made for, and remove what is stored of it."""
    for each in made:
        cancel(backend, each)
    forget(backend.store, group_id)
