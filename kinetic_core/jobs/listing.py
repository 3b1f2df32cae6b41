"""Lists of stored jobs: one by its id, or all."""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend, Found, known_backend
from kinetic_core.backends.kubernetes.chunks import input_of
from kinetic_core.backends.kubernetes.set_objects import runs_in_set, waits_for_worker
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest, KineticError, OtherCluster
from kinetic_core.job import JobObservation, JobReference, JobStatus, is_timestamp
from kinetic_core.jobs import observe
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import INPUTS, MOST_INPUTS, children, ended_of, indexed_id, progress
from kinetic_core.jobs.signing import UNVERIFIED, Keys
from kinetic_core.store.documents import malformed
from kinetic_core.store.protocol import ObjectInfo

_LOG = logging.getLogger(__name__)


def attach(
    connections: Connections,
    job_id: str,
    project: str | None = None,
    cluster: str | None = None,
    *,
    namespace: str | None = None,
    backend: str | None = None,
) -> JobHandle:
    """Return the handle of a job that any process submitted.

    `project`, `cluster` and `namespace` default to the settings; `backend` too, then to this machine if the
    job ran here. Raises JobNotFound if no such job is stored, OtherCluster or OtherNamespace if the job
    belongs to another cluster or namespace.
    """
    if not isinstance(job_id, str):
        raise TypeError(f"job_id={job_id!r} must be a string such as 'job-0123456789abcdef'")
    if not job_id or "/" in job_id:
        raise InvalidRequest(f"job_id={job_id!r} is not a job id such as 'job-0123456789abcdef'")
    place = connections.with_arguments(project=project, cluster=cluster, namespace=namespace)
    opened = known_backend(backend, place, job_id)
    return JobHandle.of(observe.found(opened, job_id), opened.connections)


def list_jobs(
    connections: Connections,
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    *,
    state: JobStatus | Collection[JobStatus] | None = None,
    limit: int | None = None,
    backend: str | None = None,
) -> list[JobHandle]:
    """List the stored jobs of a namespace, newest first, finished jobs and the inputs of batches included.

    `state` selects jobs by their status now, one or several; `limit` takes the newest so many. The other
    arguments default to the settings; with `backend="local"` and no namespace, all namespaces are listed.
    A job whose handle cannot be read is left out with a warning.
    """
    states = {state} if isinstance(state, JobStatus) else set(state or ())
    if not all(isinstance(each, JobStatus) for each in states) or (state is not None and not states):
        raise InvalidRequest(f"state={state!r} is not a JobStatus or several, such as JobStatus.RUNNING")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InvalidRequest(f"limit={limit!r} must be a whole number from 1 on")
    place = connections.with_arguments(project=project, zone=zone, cluster=cluster, namespace=namespace)
    opened = known_backend(backend, place)
    found = _in_states(opened, states, namespace) if states else _newest_first(opened)
    return list(itertools.islice((one for one in found if namespace in (None, one.namespace)), limit))


def _in_states(backend: Backend, states: set[JobStatus], namespace: str | None) -> Iterator[JobHandle]:
    """Yield the jobs in these states, asking inputs of shared Jobs without an outcome one by one."""
    jobs = summaries(backend, namespace)
    ended = _ended(backend, [job for job in jobs if job.inputs]) if any(job.inputs for job in jobs) else {}
    for job in jobs:
        if job.inputs:
            for child in (JobHandle.of(each, backend.connections) for each in children(backend, job.job_id)):
                stored = ended.get(child.job_id)
                state = stored.state if stored else ""
                if (_STATUSES.get(state, JobStatus.FAILED) if state else child.status()) in states:
                    yield child
        elif job.status in states and (handle := _readable(backend, job.job_id)) is not None:
            yield handle


def _newest_first(backend: Backend) -> Iterator[JobHandle]:
    for info in _entries(backend):
        job_id = indexed_id(info.name)
        if INPUTS in info.metadata:
            for child in children(backend, job_id):
                yield JobHandle.of(child, backend.connections)
        elif (handle := _readable(backend, job_id)) is not None:
            yield handle


def _entries(backend: Backend) -> Iterator[ObjectInfo]:
    """Yield the index entries, newest first: by their names, and those of one second by their own times."""
    stamped = itertools.groupby(backend.store.list("index/"), lambda info: info.name[:_SECOND])
    for _, entries in stamped:
        yield from sorted(entries, key=lambda info: info.metadata.get("created_at", ""), reverse=True)


def _readable(backend: Backend, job_id: str) -> JobHandle | None:
    try:
        reference = observe.find(backend, job_id)
    except OtherCluster:
        return None
    except KineticError as exc:
        _LOG.warning("leaving %s out of the list: %s", job_id, exc)
        return None
    return JobHandle.of(reference, backend.connections) if reference else None


_CLUSTER = "cluster"
_ORIGIN = "origin"
_USER = "user"
_FACTS = ("func_name", "accelerator", "namespace", "created_at", "group_id")
"""Fields that a reference and a summary have in common."""
_LONGEST = 200
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INPUTS = re.compile(r"[0-9]{1,9}")
_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Id of a job or batch, as a label's value can be: by anything else a selector could mean other jobs."""
_STAMP = re.compile(r"[0-9]{12}")
_SECOND = len("index/") + 12
"""Length of the part of an index entry's name that says in which second its job was submitted."""


@dataclass(frozen=True)
class JobSummary:
    """Summary of one job in a list. `reason` is empty for a job that has ended, and `Unverified` for a job or
    batch of which only unverifiable outcomes are left; `problem` says why little is known.

    For a batch whose inputs share Jobs, `job_id` is the batch's, with `inputs` and how many of them have
    ended; these counts are 0 for a job.
    """

    job_id: str
    backend: str
    func_name: str = ""
    accelerator: str = ""
    namespace: str = ""
    created_at: str = ""
    group_id: str = ""
    status: JobStatus = JobStatus.NOT_FOUND
    reason: str = ""
    problem: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    """Origin of the job: a task's `dag_id`, `run_id`, `task_id`, `map_index` and `deployment`."""
    user: str = ""
    """Name under which the job was submitted, as the submitter says; "" if he does not."""
    finished_at: float | None = None
    """When the job's outcome was stored, in Unix seconds; None for a batch."""
    inputs: int = 0
    succeeded: int = 0
    failed: int = 0


def index_metadata(reference: JobReference, origin: str = "", user: str = "") -> dict[str, str]:
    """Return the metadata that an index entry has of its job, which `user` submits."""
    facts = {name: str(getattr(reference, name) or "")[:_LONGEST] for name in _FACTS}
    facts["accelerator"] = reference.hardware[:_LONGEST]
    told = {_ORIGIN: origin} if origin else {}
    return {**facts, _USER: user[:_LONGEST], _CLUSTER: "/".join(reference.cluster or ()), **told}


def summaries(
    backend: Backend,
    namespace: str | None = None,
    limit: int | None = None,
    *,
    and_alive: bool = False,
    of_a_batch: int | None = None,
) -> list[JobSummary]:
    """List the newest jobs of the backend's cluster, newest first, at most `limit`.

    With a namespace, `and_alive` adds, after them, all other jobs that have not ended. Of a batch whose
    inputs have jobs of their own, the newest `of_a_batch` are listed, by default all. A job whose stored
    handle is needed and cannot be read is listed with its `problem`.
    """
    left_out: list[JobSummary] = []
    wanted = submitted(backend, namespace)
    if of_a_batch is not None:
        wanted = _of_each_batch(wanted, of_a_batch, left_out)
    found = list(itertools.islice(wanted, limit))
    if not found:
        return []
    known: dict[str, Mapping[str, Found]] = {}
    if and_alive and namespace is not None and (left_out or len(found) == limit):
        known[namespace] = backend.states(namespace, [job.job_id for job in found], and_alive=True)
        others = itertools.chain(left_out[:], wanted)
        found += _selected(others, _not_ended(backend, namespace, known[namespace]), found)
    ended = _ended(backend, found)
    alive: dict[str, JobObservation] = {}
    for each in {job.namespace for job in found if job.namespace and not job.inputs}:
        job_ids = [job.job_id for job in found if job.namespace == each and not job.inputs]
        states = known[each] if each in known else backend.states(each, job_ids)
        alive |= {
            job_id: _alive(backend, job_id, states[job_id])
            for job_id in job_ids
            if job_id in states
            and not (job_id in ended and ended[job_id].state and _says_no_end(states[job_id][0]))
        }
    batches = [job for job in found if job.inputs]
    whole = {job.job_id: job for job in _with_progress(backend, batches, ended)} if batches else {}
    return [whole.get(job.job_id) or _with_state(job, ended, alive) for job in found]


def submitted(backend: Backend, namespace: str | None = None) -> Iterator[JobSummary]:
    """Yield the jobs of the backend's cluster, newest first, as their index entries say: without status."""
    return (job for job in _indexed(backend) if namespace in (None, job.namespace) or job.problem)


def _of_each_batch(jobs: Iterable[JobSummary], most: int, left_out: list[JobSummary]) -> Iterator[JobSummary]:
    """Yield the jobs, of each batch the first `most` inputs; the others are added to `left_out`."""
    seen = Counter[str]()
    for job in jobs:
        seen[job.group_id] += 1
        if job.group_id and seen[job.group_id] > most:
            left_out.append(job)
        else:
            yield job


def _not_ended(backend: Backend, namespace: str, jobs: Mapping[str, Found]) -> set[str]:
    """Return the ids of the jobs, and of the batches in shared Jobs, that the cluster says have not ended."""
    shared = backend.parts.all(namespace) if backend.parts is not None else {}
    batches = {
        group_id
        for group_id, parts in shared.items()
        if not all(verdict(one, ()).is_terminal for one in parts)
    }
    return batches | {job_id for job_id, objects in jobs.items() if not verdict(*objects).is_terminal}


def _selected(
    older: Iterator[JobSummary], job_ids: set[str], newer: Sequence[JobSummary]
) -> Iterator[JobSummary]:
    """Yield the older jobs of these ids; nothing is read beyond the oldest of them."""
    missing = job_ids - {job.job_id for job in newer}
    while missing and (job := next(older, None)) is not None:
        if job.job_id in missing:
            missing.discard(job.job_id)
            yield job


def _says_no_end(job: Mapping[str, Any]) -> bool:
    """Return whether a Job does not end by itself: its pods are a LeaderWorkerSet's, or a worker runs it."""
    return runs_in_set(job) or waits_for_worker(job)


def _alive(backend: Backend, job_id: str, objects: Found) -> JobObservation:
    """Observe a job by its objects; a call on a worker, of which there are few, by the store as well."""
    seen = verdict(*objects)
    if seen.is_terminal or not waits_for_worker(objects[0]):
        return seen
    reference = observe.find(backend, job_id)
    return seen if reference is None else observe.observe(backend, reference)


def _indexed(backend: Backend) -> Iterator[JobSummary]:
    here = "/".join(backend.cluster or ()) if backend.name != "local" else ""
    for info in _entries(backend):
        job_id = indexed_id(info.name)
        if not _ID.fullmatch(job_id):
            problem = f"{job_id[:80]!r} is no id of a job or batch"
            yield JobSummary(
                info.name, backend.name, problem=str(malformed(backend.store, info.name, problem))
            )
        elif "func_name" in info.metadata:
            if info.metadata.get(_CLUSTER) in ("", here) or not here:
                yield _from_entry(info, job_id, backend)
        elif (summary := _from_handle(backend, job_id)) is not None:
            yield summary


class IndexEntry(NamedTuple):
    """Index entry of a job that is no input of a batch, as anybody may have written it.

    `submitted` is the submitter's time, `stored` the store's, in Unix seconds.
    """

    name: str
    job_id: str
    func_name: str
    submitted: float
    stored: float


def recent(backend: Backend, since: float, limit: int) -> Iterator[IndexEntry]:
    """Yield the entries of jobs submitted since then, newest first; read at most `limit` entries.

    Inputs of batches are left out, and jobs of other clusters.
    """
    here = "/".join(backend.cluster or ()) if backend.name != "local" else ""
    for info in itertools.islice(backend.store.list("index/"), limit):
        stamp, facts = info.name.partition("/")[2].partition("-")[0], info.metadata
        if not _STAMP.fullmatch(stamp) or not _ID.fullmatch(indexed_id(info.name)):
            continue
        submitted = float(10**11 - int(stamp))
        if submitted < since:
            return
        alone = "func_name" in facts and INPUTS not in facts and not facts.get("group_id")
        if alone and (facts.get(_CLUSTER) in ("", here) or not here):
            yield IndexEntry(
                info.name, indexed_id(info.name), sys.intern(facts["func_name"]), submitted, info.created
            )


def _from_entry(info: ObjectInfo, job_id: str, backend: Backend) -> JobSummary:
    """Summarize a job by its index entry; one with unexpected metadata is reported as malformed."""
    facts = info.metadata
    inputs, namespace = facts.get(INPUTS, "0"), facts.get("namespace", "")
    problem = ""
    if not _INPUTS.fullmatch(inputs) or int(inputs) > MOST_INPUTS:
        problem = f"it names {inputs[:40]!r} inputs"
    elif namespace and not _NAMESPACE.fullmatch(namespace):
        problem = f"{namespace[:80]!r} is not a namespace"
    elif not is_timestamp(facts.get("created_at", "")):
        problem = f"{facts.get('created_at', '')[:40]!r} is not a time"
    if problem:
        return JobSummary(job_id, backend.name, problem=str(malformed(backend.store, info.name, problem)))
    return _summary(job_id, backend, facts)


def _from_handle(backend: Backend, job_id: str) -> JobSummary | None:
    """Summarize a job by its stored handle, for an index entry without metadata."""
    try:
        reference = observe.find(backend, job_id)
    except OtherCluster:
        return None
    except KineticError as exc:
        return JobSummary(job_id, backend.name, problem=str(exc))
    if reference is None:
        return None
    return _summary(job_id, backend, index_metadata(reference))


def _summary(job_id: str, backend: Backend, facts: Mapping[str, str]) -> JobSummary:
    return JobSummary(
        job_id=job_id,
        backend=backend.name,
        func_name=facts.get("func_name", ""),
        accelerator=facts.get("accelerator", ""),
        namespace=facts.get("namespace", ""),
        created_at=facts.get("created_at", ""),
        group_id=facts.get("group_id", ""),
        origin=_origin(facts.get(_ORIGIN, "")),
        user=facts.get(_USER, ""),
        inputs=int(facts.get(INPUTS, 0)),
    )


def _origin(text: str) -> dict[str, str]:
    """Parse an entry's origin; return {} for a text that `submit` cannot have written."""
    try:
        told = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    texts = {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}
    return texts if all(map(wire.is_encodable, itertools.chain(texts, texts.values()))) else {}


class _End(NamedTuple):
    """State in a committed outcome, "" for one that cannot be verified, and when the outcome was stored."""

    state: str
    at: float


def _ended(backend: Backend, jobs: Sequence[JobSummary]) -> dict[str, _End]:
    """Return the ends in the committed outcomes of jobs and batches."""
    namespaces = {job.job_id: job.namespace for job in jobs}
    keys = {namespace: Keys(backend, namespace) for namespace in set(namespaces.values())}
    ended: dict[str, _End] = {}
    for info in _outcomes(backend, namespaces):
        job_id = info.name.split("/")[1]
        group_id = None if job_id in namespaces else (input_of(job_id) or (None,))[0]
        if (namespace := namespaces.get(group_id or job_id)) is not None:
            ended[job_id] = _End(keys[namespace].state_of(info, group_id), info.created)
    return ended


def _outcomes(backend: Backend, job_ids: Iterable[str]) -> Iterator[ObjectInfo]:
    """Yield the outcomes of these jobs; in a bucket all that are stored, with a request for each thousand."""
    if backend.name != "local":  # else each of the jobs has an outcome of its own, and a directory
        return backend.store.list("jobs/", object_names.result("*"))
    found = (backend.store.find(object_names.result(job_id)) for job_id in job_ids)
    return (info for info in found if info is not None)


def _with_progress(
    backend: Backend, batches: Sequence[JobSummary], ended: Mapping[str, _End]
) -> Iterator[JobSummary]:
    """Add progress to batches, with one request per namespace and the states that outcomes have given."""
    counts = ended_of({job_id: end.state for job_id, end in ended.items()})
    parts: dict[str, Sequence[Mapping[str, Any]]] = {}
    if backend.parts is not None:
        for namespace in {job.namespace for job in batches}:
            parts |= backend.parts.all(namespace)
    unverified = {child[0] for job_id, end in ended.items() if not end.state and (child := input_of(job_id))}
    for job in batches:
        seen = progress(job.inputs, counts.get(job.job_id, {}), parts.get(job.job_id, ()))
        is_doubted = seen.status is JobStatus.NOT_FOUND and job.job_id in unverified
        reason = UNVERIFIED if is_doubted else seen.reason
        yield replace(job, status=seen.status, reason=reason, succeeded=seen.succeeded, failed=seen.failed)


_STATUSES = {
    "succeeded": JobStatus.SUCCEEDED,
    wire.CANCELLED: JobStatus.CANCELLED,
    wire.DROPPED: JobStatus.CANCELLED,
}


def _with_state(
    job: JobSummary, ended: Mapping[str, _End], alive: Mapping[str, JobObservation]
) -> JobSummary:
    seen, end = alive.get(job.job_id), ended.get(job.job_id)
    if seen is None and end is not None and not end.state:
        return replace(job, reason=UNVERIFIED)
    if end is not None and end.state and (seen is None or seen.is_terminal):
        return replace(job, status=_STATUSES.get(end.state, JobStatus.FAILED), finished_at=end.at)
    if seen is None:
        return job
    reason = "" if seen.is_terminal else seen.reason
    return replace(job, status=seen.status, reason=reason, finished_at=seen.finished_at)
