"""All jobs of a store at a glance, for a handful of requests however many they are.

What never changes is in the metadata of index entries, which one page of a listing names a thousand of; how
jobs ended is in the metadata of their outcomes, likewise; what still lives the backend lists.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.pod_sets import runs_in_set
from kinetic_core.cluster.verdict import observe as verdict
from kinetic_core.errors import KineticError, OtherCluster
from kinetic_core.lifecycle import observing
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.whole_batches import INPUTS, ended_of, indexed_id, progress
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus
from kinetic_core.storage.protocol import ObjectInfo, ObjectStore

_CLUSTER = "cluster"
_ORIGIN = "origin"
_FACTS = ("func_name", "accelerator", "namespace", "created_at", "group_id")
"""Fields of a reference, and of a summary."""
_LONGEST = 200


@dataclass(frozen=True)
class JobSummary:
    """One job of a list. `reason` is empty for a job that has ended; `problem` says why little is known.

    Or one batch whose inputs share Jobs: `job_id` is the batch's; of its `inputs` so many have ended. All
    three are 0 for a job.
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
    """Who asked for it: of Airflow's tasks `dag_id`, `run_id`, `task_id`, `map_index` and `deployment`."""
    inputs: int = 0
    succeeded: int = 0
    failed: int = 0


def index_metadata(reference: JobReference, origin: str = "") -> dict[str, str]:
    """What an index entry says of its job."""
    facts = {name: str(getattr(reference, name) or "")[:_LONGEST] for name in _FACTS}
    facts["accelerator"] = reference.hardware[:_LONGEST]
    told = {_ORIGIN: origin} if origin else {}
    return {**facts, _CLUSTER: "/".join(reference.cluster or ()), **told}


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
    for each in {job.namespace for job in found if job.namespace and not job.inputs}:
        alive |= {
            job_id: verdict(*objects)
            for job_id, objects in backend.all(each).items()
            if not (job_id in ended and runs_in_set(objects[0]))  # whose pods do not end by themselves
        }
    batches = [job for job in found if job.inputs]
    whole = {job.job_id: job for job in _with_progress(backend, batches, ended)} if batches else {}
    return [whole.get(job.job_id) or _with_state(job, ended, alive) for job in found]


def _indexed(backend: Backend) -> Iterator[JobSummary]:
    here = "/".join(backend.cluster or ()) if backend.name != "local" else ""
    for info in backend.store.list("index/"):
        job_id = indexed_id(info.name)
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
        origin=_origin(facts.get(_ORIGIN, "")),
        inputs=int(facts.get(INPUTS, 0)),
    )


def _origin(text: str) -> dict[str, str]:
    """Nothing, if it is not what `submit` was given: whoever may write there could write anything."""
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}


def _ended(store: ObjectStore) -> dict[str, str]:
    """The states of all committed outcomes."""
    listed = store.list("jobs/", wire.result_object("*"))
    return {info.name.split("/")[1]: state_of(store, info) for info in listed}


def state_of(store: ObjectStore, outcome: ObjectInfo) -> str:
    """The state in a listed outcome; one that does not carry it is read."""
    if wire.STATE in outcome.metadata:
        return outcome.metadata[wire.STATE]
    try:
        return str(wire.decode_frame(store.read(outcome.name))[0].get("state"))
    except (KineticError, wire.FrameError):
        return "failed"  # as `settling.look` has it: what cannot be read is no value


def _with_progress(
    backend: Backend, batches: Sequence[JobSummary], ended: Mapping[str, str]
) -> Iterator[JobSummary]:
    """Batches with how far they are: a request for each namespace, and what outcomes tell already."""
    counts = ended_of(ended)
    parts: dict[str, Sequence[Mapping[str, Any]]] = {}
    if backend.parts is not None:
        for namespace in {job.namespace for job in batches}:
            parts |= backend.parts.all(namespace)
    for job in batches:
        seen = progress(job.inputs, counts.get(job.job_id, {}), parts.get(job.job_id, ()))
        yield replace(
            job, status=seen.status, reason=seen.reason, succeeded=seen.succeeded, failed=seen.failed
        )


def _with_state(job: JobSummary, ended: Mapping[str, str], alive: Mapping[str, JobObservation]) -> JobSummary:
    seen = alive.get(job.job_id)
    if job.job_id in ended and (seen is None or seen.is_terminal):
        state = JobStatus.SUCCEEDED if ended[job.job_id] == "succeeded" else JobStatus.FAILED
        return replace(job, status=state)
    if seen is None:
        return job
    return replace(job, status=seen.status, reason="" if seen.is_terminal else seen.reason)
