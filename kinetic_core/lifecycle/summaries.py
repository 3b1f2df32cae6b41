"""All jobs of a store at a glance, for a handful of requests however many they are.

What never changes is in the metadata of index entries, which one page of a listing names a thousand of; how
jobs ended is in the metadata of their outcomes, likewise; what still lives the backend lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kinetic_core._runner import wire
from kinetic_core.cluster.pod_sets import runs_in_set
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.errors import KineticError, OtherCluster
from kinetic_core.lifecycle import observing
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.storage.protocol import ObjectStore

_CLUSTER = "cluster"
_FACTS = ("func_name", "accelerator", "namespace", "created_at", "group_id")
"""Fields of a reference, and of a summary."""
_LONGEST = 200


@dataclass(frozen=True)
class JobSummary:
    """One job of a list. `reason` is empty for a job that has ended; `problem` says why little is known."""

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


def index_metadata(reference: JobReference) -> dict[str, str]:
    """What an index entry says of its job."""
    facts = {name: str(getattr(reference, name) or "")[:_LONGEST] for name in _FACTS}
    return {**facts, _CLUSTER: "/".join(reference.cluster or ())}


def summaries(backend: Backend, namespace: str | None = None, limit: int | None = None) -> list[JobSummary]:
    """The newest jobs of the backend's cluster, `limit` at most, newest first.

    A job whose stored handle would be needed and cannot be read is listed with its `problem`.
    """
    wanted = (job for job in _indexed(backend) if namespace in (None, job.namespace) or job.problem)
    found = list(itertools.islice(wanted, limit))
    if not found:
        return []
    ended = _ended(backend.store)
    alive: dict[str, JobObservation] = {}
    for each in {job.namespace for job in found if job.namespace}:
        alive |= {
            job_id: verdict(*objects)
            for job_id, objects in backend.all(each).items()
            if not (job_id in ended and runs_in_set(objects[0]))  # whose pods do not end by themselves
        }
    return [_with_state(job, ended, alive) for job in found]


def _indexed(backend: Backend) -> Iterator[JobSummary]:
    here = "/".join(backend.cluster or ()) if backend.name != "local" else ""
    for info in backend.store.list("index/"):
        job_id = info.name.partition("/")[2].partition("-")[2]
        if "func_name" in info.metadata:
            if info.metadata.get(_CLUSTER) in ("", here) or not here:
                yield _summary(job_id, backend, info.metadata)
        elif (summary := _from_handle(backend, job_id)) is not None:
            yield summary


def _from_handle(backend: Backend, job_id: str) -> JobSummary | None:
    """For an entry without metadata."""
    try:
        reference = observing.find(backend, job_id)
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
    )


def _ended(store: ObjectStore) -> dict[str, str]:
    """The states of all committed outcomes; one that does not carry it is read."""
    listed = store.list("jobs/", wire.result_object("*"))
    return {
        info.name.split("/")[1]: info.metadata.get(wire.STATE) or _stored_state(store, info.name)
        for info in listed
    }


def _stored_state(store: ObjectStore, name: str) -> str:
    try:
        return str(wire.decode_frame(store.read(name))[0].get("state"))
    except (KineticError, wire.FrameError):
        return "failed"  # as `settling.look` has it: what cannot be read is no value


def _with_state(job: JobSummary, ended: Mapping[str, str], alive: Mapping[str, JobObservation]) -> JobSummary:
    seen = alive.get(job.job_id)
    if job.job_id in ended and (seen is None or seen.is_terminal):
        state = JobStatus.SUCCEEDED if ended[job.job_id] == "succeeded" else JobStatus.FAILED
        return replace(job, status=state)
    if seen is None:
        return job
    return replace(job, status=seen.status, reason="" if seen.is_terminal else seen.reason)
