"""Snapshot of a batch: the status of each input at one moment, for readers that follow nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.backends.base import Backend, Found, Parts
from kinetic_core.backends.kubernetes.chunks import indexes_of, input_of
from kinetic_core.backends.kubernetes.names import CHUNK, GROUP_ID, WORKER
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.batches.progress import foremost
from kinetic_core.batches.rerun import stored_states
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.inputs import chunk_reference, observe_chunk, read_manifest, stored_of
from kinetic_core.jobs.lanes import (
    LANE,
    LaneOutcomes,
    ended_as,
    is_on_lanes,
    lane_of,
    lane_reference,
    last_round,
)
from kinetic_core.jobs.observe import observe
from kinetic_core.jobs.signing import variable
from kinetic_core.jobs.timeline import submitted_at
from kinetic_core.store.protocol import ObjectStore

_LANES_LOOKED_AT = 4
_A_PAGE = 1000
"""Outcomes that one request lists."""
_CERTAIN = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED)
"""What a cluster is believed: a container that exits with 0 has stored a value. Only an input that somebody
has cancelled before its pod began is said to wait, until its turn comes and it fails.
"""
_ENDS = {
    "succeeded": JobStatus.SUCCEEDED,
    wire.CANCELLED: JobStatus.CANCELLED,
    wire.DROPPED: JobStatus.CANCELLED,
}


def snapshot(backend: Backend, whole: JobReference, size: int) -> dict[int, JobStatus]:
    """Return the status of the inputs of the batch `whole`, by index; inputs that nobody knows are left out.

    On a cluster takes three requests. The store is asked if the cluster leaves something open: of `size`
    inputs, those that have no Job any more, and those that have failed or were cancelled. That takes a
    request for each of them, or one per thousand stored outcomes if that is less; only verified outcomes
    count. Of a map on workers the store is always asked. Changes nothing.
    """
    if is_on_lanes(whole):
        return dict(_of_lanes(backend, whole))
    if backend.parts is not None:
        jobs = backend.parts.parts(whole.namespace, whole.job_id)
        alive = dict(_of_chunks(backend.parts, whole, jobs))
    else:
        jobs, alive = [], dict(_of_jobs(backend, whole))
    left_open = [index for index in range(size) if alive.get(index) not in _CERTAIN]
    few = left_open if len(left_open) <= size / _A_PAGE else None
    stored = stored_states(backend, whole.namespace, whole.job_id, jobs, few)
    return alive | {index: _ENDS.get(state, JobStatus.FAILED) for index, state in stored.items()}


def state(backend: Backend, whole: JobReference) -> JobObservation | None:
    """Return how the `foremost` input of the batch `whole` is; None while no input is known to live.

    On a cluster takes one request, and up to two for each Job of the batch that goes on. Of a map on workers
    the first few lanes that live are observed. Changes nothing.
    """
    if is_on_lanes(whole):
        living = (lane for lane, _ in _living_lanes(backend, whole))
        return foremost(observe(backend, lane) for lane in islice(living, _LANES_LOOKED_AT))
    if backend.parts is None:
        return foremost(verdict(*found) for _, found in _inputs(backend, whole))
    jobs = backend.parts.parts(whole.namespace, whole.job_id)
    numbers = (int(job["metadata"]["labels"][CHUNK]) for job in jobs if not verdict(job, ()).is_terminal)
    return foremost(observe_chunk(backend, chunk_reference(whole, number)) for number in numbers)


class BatchTimes(NamedTuple):
    """Times of a batch in seconds, as the creation of its stored objects tells them: nobody has signed them.

    `run_seconds`: for how long all attempts of its inputs have run, added up; `seconds`: from its submission
    to its end, or until now; `waited`: from its submission until its first input ran, or as `seconds`.
    """

    run_seconds: float
    seconds: float
    waited: float


def batch_times(
    store: ObjectStore, whole: JobReference, size: int, now: float, *, is_over: bool
) -> BatchTimes:
    """Return the times of the batch `whole` until `now`, in Unix seconds. `is_over`: every input has ended.

    `size` is how many inputs it has: what is stored of others is not its own. An attempt runs from its claim
    to its outcome; a lost one, until the next claim. What the store keeps no longer counts nothing. What
    ended before the batch was submitted, as inputs have that an earlier try of its task ran, counts in
    `run_seconds` alone. Of a map on workers the lanes' times count. Takes three requests per thousand inputs.
    """
    submitted = submitted_at(whole)
    ran, ends = (
        _ran_on_lanes(store, whole, now) if is_on_lanes(whole) else _ran(store, whole.job_id, size, now)
    )
    over = (each for each in (*ends, *(until for _, until in ran)) if each > submitted)
    last = max(over, default=now) if is_over else now
    first = min((began for began, until in ran if until > submitted), default=last)
    return BatchTimes(
        run_seconds=_sum(ran),
        seconds=max(last - submitted, 0.0),
        waited=max(first - submitted, 0.0),
    )


def run_seconds(store: ObjectStore, group_id: str, size: int, now: float) -> float:
    """Return for how long all attempts of a batch's inputs have run, in seconds; see `batch_times`."""
    return _sum(_ran(store, group_id, size, now)[0])


_Stretch = tuple[float, float]
"""When an attempt began to run and when that ended, in Unix seconds."""


def _ran(store: ObjectStore, group_id: str, size: int, now: float) -> tuple[list[_Stretch], list[float]]:
    """Return when the attempts of the first `size` inputs ran, and when the inputs ended."""
    every = f"{group_id}-*"
    results = stored_of(store, group_id, object_names.result(every))
    ends = {index: info.created for index, info in results if index < size}
    ended = dict(_of_attempts(store, group_id, size, object_names.attempt_outcome(every, "*")))
    claimed = dict(_of_attempts(store, group_id, size, object_names.claim(every, "*")))

    def end(index: int, attempt: int) -> float:
        following = claimed.get((index, attempt + 1), ends.get(index, now))
        return ended.get((index, attempt), following)

    return [(began, end(*place)) for place, began in claimed.items()], list(ends.values())


def _ran_on_lanes(store: ObjectStore, whole: JobReference, now: float) -> tuple[list[_Stretch], list[float]]:
    """Return when the attempts of a map's lanes ran, and when the lanes ended."""
    prefix, every = f"jobs/{whole.job_id}-l", f"{whole.job_id}-l*"

    def listed(pattern: str) -> Iterator[tuple[str, str, float]]:
        for info in store.list(prefix, pattern):
            _, job_id, *rest = info.name.split("/")
            if (found := lane_of(job_id)) is not None and found[0] == whole.job_id:
                yield job_id, rest[1] if len(rest) > 1 else "", info.created

    ends = {job_id: created for job_id, _, created in listed(object_names.result(every))}
    ended = {place[:2]: place[2] for place in listed(object_names.attempt_outcome(every, "*"))}
    claimed = {place[:2]: place[2] for place in listed(object_names.claim(every, "*"))}
    ran = []
    for (job_id, attempt), began in claimed.items():
        following = claimed.get((job_id, str(int(attempt) + 1)) if attempt.isdecimal() else ("", ""))
        ran.append((began, ended.get((job_id, attempt)) or following or ends.get(job_id, now)))
    return ran, list(ends.values())


def _sum(ran: Sequence[_Stretch]) -> float:
    return sum((max(until - began, 0.0) for began, until in ran), 0.0)


def _of_attempts(
    store: ObjectStore, group_id: str, size: int, pattern: str
) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield when objects of attempts of the first `size` inputs were stored, by input and attempt."""
    for index, info in stored_of(store, group_id, pattern):
        attempt = info.name.split("/")[3]
        if attempt.isdecimal() and index < size:
            yield (index, int(attempt)), info.created


def _of_chunks(
    parts: Parts, whole: JobReference, jobs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, JobStatus]]:
    """Yield what the Jobs say; a later chunk runs inputs of an earlier one again."""
    running = parts.running(whole.namespace, whole.job_id) if jobs else set()
    for job in jobs:
        inputs, status = indexes_of(job), job.get("status") or {}
        rest = _rest(job)
        yield from ((index, JobStatus.RUNNING if index in running else rest) for index in inputs)
        for name, ended in (
            ("failedIndexes", JobStatus.FAILED),
            ("completedIndexes", JobStatus.SUCCEEDED),
        ):
            yield from ((inputs[own], ended) for own in parse_indexes(status.get(name) or ""))


def _rest(job: Mapping[str, Any]) -> JobStatus:
    """Return the status of a chunk's inputs of which its Job says nothing."""
    return JobStatus.CANCELLED if verdict(job, ()).is_terminal else JobStatus.PENDING


def _of_lanes(backend: Backend, whole: JobReference) -> Iterator[tuple[int, JobStatus]]:
    """Yield what segments say and, of inputs that have not ended, what living lanes have claimed."""
    sizes = [size for _, size in _living_lanes(backend, whole)]
    outcomes = LaneOutcomes(backend, whole)
    states, running = outcomes.states(), outcomes.running() if sizes else set()
    yield from ((index, ended_as(state).status) for index, state in states.items())
    rest = JobStatus.PENDING if sizes else JobStatus.CANCELLED
    for index in range(sizes[0] if sizes else read_manifest(backend.store, whole.job_id)["total_expected"]):
        if index not in states:
            yield index, JobStatus.RUNNING if index in running else rest


def _living_lanes(backend: Backend, whole: JobReference) -> Iterator[tuple[JobReference, int]]:
    """Yield the lanes of a map that have not ended, each with the number of inputs that its Job says."""
    last: int | None = None
    for job_id, (job, pods) in sorted(backend.all(whole.namespace, fresh=False).items()):
        found = lane_of(job_id)
        if found is None or found[0] != whole.job_id or verdict(job, pods).is_terminal:
            continue
        last = last_round(backend, whole) if last is None else last
        told = variable(job, LANE).split()
        if found[1] == last and len(told) > _SIZE:
            number, worker = int(told[1]), str(job["metadata"]["labels"].get(WORKER, ""))
            yield lane_reference(whole, number, worker, last), int(told[_SIZE])


_SIZE = 3
"""Place of the number of inputs in a lane's variable."""


def _of_jobs(backend: Backend, whole: JobReference) -> Iterator[tuple[int, JobStatus]]:
    yield from ((index, verdict(*found).status) for index, found in _inputs(backend, whole))


def _inputs(backend: Backend, whole: JobReference) -> Iterator[tuple[int, Found]]:
    for job_id, found in backend.all(whole.namespace).items():
        child, labels = input_of(job_id), found[0]["metadata"]["labels"]
        if child is not None and labels.get(GROUP_ID) == whole.job_id == child[0]:
            yield child[1], found
