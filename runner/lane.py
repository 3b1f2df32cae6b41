"""Lane of a map: a call that runs inputs one after the other, each in a process of its own (ADR 0070).

The inputs of a map are stored in blocks. A lane takes a block by creating its claim, which is done once; so
no block has two lanes. What a lane has claimed, the next attempt of the same lane goes on with: attempts of
one lane never overlap (claims.py), and so no input runs twice at a time. A lane begins with blocks of its own
share, and takes others from the end of the other lanes' shares.

The function is loaded once, by a process that then forks one for each input. That process has no key, and an
input changes nothing in it; files of the project that an input has changed are made anew before the next.

A map runs in rounds: the first has all inputs, each later one those without a value, in blocks, claims and
segments of its own. A later round begins with the mark that stops the one before.

Outcomes are signed with the key of their input, and stored many in one object, three seconds after they came
at the latest. An outcome that is large is stored alone, as that of any job.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from . import object_names, wire
from .attempt import Job
from .batch import tell_failure
from .child import OUTCOME_FILE
from .evidence import death, facts
from .log import LogTee
from .memory import MemoryGauge
from .notes import ForgedNote, decode_note, encode_note, read_start
from .notice import give_notice
from .outcome import Header, Outcome, commit, committed_code, failed, leave, read_head
from .patience import KEPT_SECONDS, PatientStore
from .payload import read_frame
from .phases import StoredTimes, note
from .processes import adopt_orphans
from .segments import sealed_states
from .signing_key import forget_key, wipe_bytes
from .store import Content, MissingObject, Store, exists
from .template import IN_FILE, SetUpFailed, Template
from .watch import Ending, OutcomePipe, Signals, Watcher, watch_child

_LARGE = 128 << 10
"""Bytes of an outcome that is stored alone."""
_SEGMENT_BYTES = 2 << 20
_SEGMENT_SECONDS = 3.0
"""Bytes of outcomes, and age of the oldest, after which they are stored."""
_STOP_SECONDS, _FAIL_FAST_SECONDS = 5.0, 1.0
"""Seconds between requests whether the map was stopped; where a failure stops it."""
_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
"""Seconds between two attempts of an input."""
_TURN = Ending(None, None, False)
_TOLD = Ending(None, None, True)


def run_lane(job: Job, store: PatientStore, signals: Signals, started: float) -> tuple[Outcome, Ending]:
    """Run inputs of the lane's map until none is left, or the lane is told to end; return the lane's outcome.

    Raises StoreUnavailable if inputs cannot be read, or outcomes not be stored.
    """
    name = object_names.payload(job.job_id, job.payload_sha256)
    try:
        frame = read_frame(store, name, job.payload_sha256, job.payload_bytes)
    except ValueError as exc:
        raise ForgedNote(str(exc)) from exc
    adopt_orphans()
    lane = _LaneRun(job, store, signals, started, *wire.decode_frame(frame))
    try:
        return lane.run()
    finally:
        lane.close()


class _LaneRun:
    """Run of one attempt of a lane."""

    def __init__(
        self,
        job: Job,
        store: PatientStore,
        signals: Signals,
        started: float,
        header: dict[str, Any],
        parts: dict[str, bytes],
    ) -> None:
        assert job.lane is not None  # noqa: S101  who has none is no lane
        self._job, self._lane, self._store, self._signals = job, job.lane, store, signals
        self._header, self._parts = header, parts
        self._blocks: list[Any] = header["inputs"]["blocks"]
        self._gauge = MemoryGauge()
        self._template: Template | None = None
        self._broken: Outcome | None = None
        self._looked_at = -math.inf
        self._is_stopped = False
        self._inputs = 0
        self._times = StoredTimes(job, store, started)

    def run(self) -> tuple[Outcome, Ending]:
        for block, is_resumed in self._own_blocks():
            self._run_block(block, is_resumed=is_resumed)
            if self._must_stop():
                break
        if self._signals.told:
            if exists(self._store, object_names.cancel(self._job.job_id)):
                return failed(wire.FailureClass.CANCELLED, "it was cancelled", "execute", retry=False), _TURN
            return failed(wire.FailureClass.PREEMPTED, "the lane was told to end", "execute"), _TOLD
        return Outcome("succeeded", "none", {}, result_repr=f"{self._inputs} inputs"), _TURN

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    def look(self, child: int, terminated: bool) -> None:
        """Store when the lane's phases began, as a watcher that never ends the child."""
        del child, terminated
        self._times.tick()

    def _must_stop(self) -> bool:
        """Return whether no further input may start; asks the store every few seconds."""
        if self._signals.told or self._is_stopped:
            return True
        pause = _FAIL_FAST_SECONDS if self._job.fail_fast else _STOP_SECONDS
        if time.monotonic() - self._looked_at >= pause:
            self._looked_at = time.monotonic()
            mark = object_names.stop(self._lane.group_id, self._lane.round)
            self._is_stopped = exists(self._store, mark)
        return self._is_stopped

    def _own_blocks(self) -> Iterator[tuple[int, bool]]:
        """Yield the blocks that this lane has, and whether an earlier attempt has begun with it."""
        if self._must_stop():
            return
        if self._job.attempt:
            yield from ((block, True) for block in range(len(self._blocks)) if self._has_claimed(block))
        count = self._lane.count
        for turn in range(count):
            owner = (self._lane.number + turn) % count
            share = range(owner * len(self._blocks) // count, (owner + 1) * len(self._blocks) // count)
            for block in share if turn == 0 else reversed(share):
                if self._claim(block):
                    yield block, False
                elif turn and self._told_claimant(block) == owner:
                    break  # whose turn has come to where the others are

    def _claim(self, block: int) -> bool:
        name, key_id = self._claim_name(block), self._job.key_id
        is_last = block + 1 == len(self._blocks)
        end = self._lane.size if is_last else self._blocks[block + 1][0]
        told = {"lane": self._lane.number, "end": end, "key_id": key_id}
        note = encode_note(self._job.outcome_key, name, told)
        return self._store.create_if_absent(name, note, {wire.CLAIM: note.decode()})

    def _claim_name(self, block: int) -> str:
        return object_names.block_claim(self._lane.group_id, self._blocks[block][0], self._lane.round)

    def _has_claimed(self, block: int) -> bool:
        """Return whether this lane has signed the claim."""
        name = self._claim_name(block)
        try:
            decode_note(self._job.outcome_key, name, read_start(self._store, name))
        except (MissingObject, ForgedNote):
            return False
        return True

    def _told_claimant(self, block: int) -> int | None:
        """Return which lane says it has claimed a block: only the lane itself can tell whether that is so."""
        name = self._claim_name(block)
        try:
            told = wire.document(read_start(self._store, name), lane=int)
            return int(told["lane"])
        except (MissingObject, wire.Malformed):
            return None

    def _run_block(self, block: int, *, is_resumed: bool) -> None:
        first, offset, size, sha256 = self._blocks[block]
        segment = _Segment(self._job, self._store, first)
        done = segment.read_earlier() if is_resumed else frozenset()
        content = self._store.read_range(self._header["inputs"]["object"], offset, size)
        if wire.digest(content) != sha256:
            raise ForgedNote("the stored inputs are not those that this map was submitted with")
        _, parts = wire.decode_frame(content)
        for index in sorted({int(name.partition("/")[0]) for name in parts}):
            if index in done:
                continue
            if self._must_stop():
                break
            own = {name: parts[f"{index}/{name}"] for name in ("arguments", "argument_copies")}
            self._run_input(index, own, segment, is_resumed=is_resumed)
        if self._signals.told:
            self._store.keep(KEPT_SECONDS, hurried=True)
        else:
            self._store.keep(KEPT_SECONDS)
        segment.flush()

    def _run_input(
        self, index: int, parts: Mapping[str, bytes], segment: _Segment, *, is_resumed: bool
    ) -> None:
        """Run an input until it has an outcome, or the lane must end."""
        job = self._job
        folder = os.path.join(job.work_dir, "inputs", str(index))
        own = replace(
            job,
            job_id=object_names.input_id(self._lane.group_id, index),
            outcome_key=_input_key(job, index),
            group_id=self._lane.group_id,
            index=index,
            timeout=self._lane.timeout,
            retries=self._lane.retries,
            failed_count=0,
            ignored_count=0,
            uncounted=job.attempt if is_resumed else 0,
            lane=None,
        )
        self._inputs += 1
        try:
            self._run_attempts(own, folder, parts, segment, is_resumed=is_resumed)
        finally:
            forget_key(own.outcome_key)

    def _run_attempts(
        self, own: Job, folder: str, parts: Mapping[str, bytes], segment: _Segment, *, is_resumed: bool
    ) -> None:
        if is_resumed:
            if (code := committed_code(own, self._store)) is not None:
                segment.note(own, "succeeded" if code == wire.EXIT_SUCCEEDED else "failed")
                return
            own = replace(own, failed_count=_failures(own, self._store))
        limit = None if own.timeout is None else _TimeLimit(own.timeout, own.grace)
        while not self._signals.told:
            own = replace(own, work_dir=f"{folder}-{own.attempt}")
            try:
                following = self._run_once(own, parts, segment, limit)
            finally:
                if os.path.exists(own.work_dir):
                    shutil.rmtree(own.work_dir, ignore_errors=True)
            if following is None:
                return
            pause = min(_LONGEST_BACKOFF, _BACKOFF * 2 ** (own.failed_count + own.ignored_count))
            own = following
            segment.flush()
            select.select([self._signals.descriptor], [], [], pause)

    def _run_once(
        self, own: Job, parts: Mapping[str, bytes], segment: _Segment, limit: _TimeLimit | None
    ) -> Job | None:
        """Run one attempt of an input, and store how it ended; return the next one, None if there is none."""
        started = time.time()
        outcome, ending, times = self._attempt(own, parts, segment, limit, started)
        told = {**facts(own, started), "times": {"started": started, **times, "finished": time.time()}}
        if limit is not None and limit.has_passed and outcome.state != "succeeded":
            outcome = limit.outcome()
        elif ending.terminated and outcome.state != "succeeded":
            if not exists(self._store, object_names.cancel(self._job.job_id)):
                leave(own, self._store, outcome, told)
                return None
            outcome = failed(wire.FailureClass.CANCELLED, "it was cancelled", "execute", retry=False)
        infrastructure = outcome.is_infrastructure
        is_last = own.is_last_restart if infrastructure else own.is_last_try
        if outcome.state == "succeeded" or is_last or not outcome.retry:
            segment.add(own, outcome, told)
            if own.fail_fast and outcome.state != "succeeded":
                tell_failure(own, self._store, outcome, self._lane.round)
                self._is_stopped = True
            return None
        leave(own, self._store, outcome, told)
        if infrastructure:
            return replace(own, ignored_count=own.ignored_count + 1)
        return replace(own, failed_count=own.failed_count + 1)

    def _attempt(
        self,
        own: Job,
        parts: Mapping[str, bytes],
        segment: _Segment,
        limit: _TimeLimit | None,
        started: float,
    ) -> tuple[Outcome, Ending, dict[str, float]]:
        """Run one attempt of an input in a process of its own; return once nothing of it lives."""
        try:
            template = self._loaded(own)
        except SetUpFailed as exc:
            return exc.outcome, Ending(None, None, bool(self._signals.told)), {}
        reading, writing = os.pipe()
        told = OutcomePipe()
        try:
            child = template.fork(own, parts, writing, told.writing)
        finally:
            os.close(writing)
            os.close(told.writing)
        tee = LogTee(own, self._store, reading)
        watchers: list[Watcher] = [self, segment, *([limit] if limit is not None else [])]
        notice = partial(_give_notice, own)
        times = StoredTimes(own, self._store, started, known={"user_started": started})
        ending = watch_child(
            child, tee, own.grace, self._signals, self._gauge, times, watchers, notice, template, told
        )
        tee.pump()
        outcome, told_times = self._told_outcome(own, told.close(), ending, tee)
        tee.close()
        if template.is_dead or template.is_spoiled():
            template.close()
            self._template = None
        return replace(outcome, log_size=tee.whole), ending, told_times

    def _told_outcome(
        self, own: Job, content: bytes, ending: Ending, tee: LogTee
    ) -> tuple[Outcome, dict[str, float]]:
        """Return the outcome that an input's process has written to its pipe, or to a file if it is large."""
        try:
            if content == IN_FILE:
                return Outcome.from_file(os.path.join(own.work_dir, OUTCOME_FILE)), {}
            if not content:
                return death(ending, tee.last_lines(), self._gauge), {}
            fields, parts = wire.decode_frame(content)
            return Outcome.from_parts(fields, parts), dict(Header.from_dict(fields).times)
        except (FileNotFoundError, wire.FrameError) as exc:
            remark = f"; its outcome is unreadable: {exc}"
            return death(ending, tee.last_lines(), self._gauge, remark), {}

    def _loaded(self, own: Job) -> Template:
        """Return the process that has loaded the function. Raises SetUpFailed."""
        if self._broken is not None:
            raise SetUpFailed(self._broken)
        if self._template is None:
            template = Template(self._job, own, self._store, self._signals, self._header, self._parts)
            try:
                template.wait_until_ready()
            except SetUpFailed as exc:
                template.close()
                if not exc.outcome.retry:
                    self._broken = exc.outcome
                raise
            self._template = template
            if self._inputs == 1:
                note(self._job, "user_started")
        return self._template


class _TimeLimit:
    """Watcher that ends an input's process when the input has run for its timeout, over all attempts."""

    def __init__(self, seconds: float, grace: float) -> None:
        self._seconds, self._grace, self._over_at = seconds, grace, time.monotonic() + seconds
        self.has_passed = False

    def look(self, child: int, terminated: bool) -> float | None:
        del child
        if self.has_passed or terminated or time.monotonic() < self._over_at:
            return None
        self.has_passed = True
        return self._grace

    def outcome(self) -> Outcome:
        text = f"it had not ended {self._seconds:g} s after it first started"
        return failed(wire.FailureClass.DEADLINE, text, "execute", retry=False)


class _Segment:
    """Outcomes of a block's inputs on their way to the store."""

    def __init__(self, job: Job, store: Store, first: int) -> None:
        assert job.lane is not None  # noqa: S101
        self._job, self._store, self._lane, self._first = job, store, job.lane, first
        self._part = 0
        self._frames: dict[str, bytes] = {}
        self._states: dict[str, str] = {}
        self._size, self._since = 0, 0.0

    def add(self, own: Job, outcome: Outcome, told: Mapping[str, object]) -> None:
        """Take the outcome of an input; a large one is stored at once."""
        frame = outcome.to_frame(told, own.outcome_key)
        state = outcome.state
        if isinstance(frame, Content) or len(frame) > _LARGE:
            if (code := commit(own, self._store, frame, state)) is not None:
                state = "succeeded" if code == wire.EXIT_SUCCEEDED else "failed"
        else:
            self._frames[str(own.index)] = frame
            self._size += len(frame)
        self.note(own, state)
        if self._size >= _SEGMENT_BYTES:
            self.flush()

    def note(self, own: Job, state: str) -> None:
        """Take the state of an input whose outcome is stored alone, or among those that wait."""
        if not self._states:
            self._since = time.monotonic()
        self._states[str(own.index)] = state

    def look(self, child: int, terminated: bool) -> None:
        """Store what has waited long enough, as a watcher that never ends the child."""
        del child, terminated
        if self._states and time.monotonic() - self._since >= _SEGMENT_SECONDS:
            try:
                with self._store.hurried():
                    self.flush()
            except OSError as exc:
                self._since = time.monotonic()
                sys.stderr.write(f"kinetic: outcomes are not stored yet: {exc}\n")

    def flush(self) -> None:
        """Store the outcomes that wait. Raises StoreUnavailable."""
        while self._states:
            name = self._name()
            header = {
                "protocol": wire.PROTOCOL,
                "author": "runner",
                "job_id": self._job.job_id,
                "object": name,
                "key_id": self._job.key_id,
                "states": self._states,
            }
            key = self._job.outcome_key
            frame = wire.encode_frame(header, self._frames, key)
            sealed = sealed_states(name, self._states, self._job.key_id, key)
            is_stored = self._store.create_if_absent(name, frame, {wire.STATES: sealed})
            self._part += 1  # of a part that somebody else has written, readers take no notice
            if is_stored:
                self._frames, self._states, self._size = {}, {}, 0

    def _name(self) -> str:
        """Return the name of the next part."""
        return object_names.outcome_segment(self._lane.group_id, self._first, self._part, self._lane.round)

    def read_earlier(self) -> frozenset[int]:
        """Return the inputs whose outcomes an earlier attempt of the lane has stored."""
        found: set[int] = set()
        while True:
            name = self._name()
            try:
                header = wire.decode_head(read_head(self._store, name), self._job.outcome_key)
                object_names.require_place(header, self._job.job_id, name)
                found |= {int(index) for index in header["states"]}
            except MissingObject:
                break
            except wire.FrameError as exc:
                sys.stderr.write(f"kinetic: {name} is passed over: {exc}\n")
            self._part += 1
        return frozenset(found)


def _give_notice(own: Job) -> None:
    """Tell an input that it is about to be ended."""
    with suppress(OSError):
        os.makedirs(own.work_dir, exist_ok=True)
    give_notice(own)


def _input_key(job: Job, index: int) -> bytearray:
    derived = wire.input_key(job.outcome_key, index)
    key = bytearray(derived)
    wipe_bytes(derived)
    return key


def _failures(own: Job, store: Store) -> int:
    """Return how many attempts of an input have failed by their own fault, before the lane's last attempt."""
    count = 0
    for attempt in range(own.retries + own.infrastructure_retries + own.attempt + 1):
        name = object_names.attempt_outcome(own.job_id, attempt)
        try:
            header = wire.decode_head(read_head(store, name), own.outcome_key)
            object_names.require_place(header, own.job_id, name)
            failure = Header.from_dict(header).failure
        except (MissingObject, wire.FrameError):
            continue
        mine = (wire.FailureClass.CONTROL_PLANE, wire.FailureClass.PREEMPTED)
        count += failure is not None and failure.failure_class not in mine
    return count
