"""What a task tells of its job besides its value: the record for the page, and metrics."""

from __future__ import annotations

import logging
import re
from typing import Any

from airflow_provider import metrics
from airflow_provider.adoption import Started, start_or_adopt
from airflow_provider.identity import TaskIdentity
from airflow_provider.metrics import IN_TASKS, Stats
from airflow_provider.origin import Origin, deployment
from airflow_provider.records import EARLIER_KEY, KEY, EarlierJob, JobEnd, JobRecord, earlier_to_value
from airflow_provider.remote_logs import VARIABLE, RemoteLog
from airflow_provider.tracing import span, steps, tell_phases, trace_environment
from kinetic_core._runner import wire
from kinetic_core.cluster.pods import terminated
from kinetic_core.errors import KineticError
from kinetic_core.lifecycle.backends import backend_of
from kinetic_core.lifecycle.explaining import Phase, known_phases
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.outcome import Outcome
from kinetic_core.lifecycle.packing import Progress
from kinetic_core.lifecycle.submission import Call
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.model.states import JobStatus

_LOG = logging.getLogger(__name__)


def traced_start(
    call: Call,
    options: RunOptions,
    identity: TaskIdentity,
    say: Progress,
    build_patience: float | None,
    remote: RemoteLog | None,
) -> Started:
    """`start_or_adopt`, its steps as spans. A new job is told its trace, its task and the log of that."""
    name = deployment(make=True)
    origin = Origin.of(identity, name).to_text() if name else ""
    log = {VARIABLE: remote.uri} if remote is not None else {}
    with span("submit"), steps(say) as progress:
        environment = {**trace_environment(), **log}
        return start_or_adopt(call, options, identity, progress, environment, build_patience, origin)


def tell_start(context: Any, identity: TaskIdentity, started: Started, conn_id: str | None) -> None:
    """The task has its job, an adopted one or a new one; `conn_id` is that of its connection."""
    reference = started.reference
    _push(context, JobRecord.of(identity, reference, conn_id=conn_id or ""))
    if started.earlier:  # Airflow forgets the XComs of a try when the next one begins
        jobs = [
            EarlierJob.of(each.try_number, each.reference.job_id, each.observation)
            for each in started.earlier
        ]
        context["ti"].xcom_push(key=EARLIER_KEY, value=earlier_to_value(jobs))
    tags, stats = _tags(identity), Stats(IN_TASKS)
    if started.adopted:
        stats.count(metrics.ADOPTED, tags)
    else:
        stats.count(metrics.SUBMITTED, {**tags, "accelerator": reference.accelerator})
        stats.count(metrics.SHIPPED, tags, started.shipped)


def tell_end(
    context: Any,
    reference: JobReference,
    observation: JobObservation,
    outcome: Outcome,
    conn_id: str | None,
) -> None:
    """The job has ended, and its outcome is known."""
    identity = TaskIdentity.of(context)
    phases, fenced = _history(reference, outcome)
    end = JobEnd.of(observation, phases)
    _push(context, JobRecord.of(identity, reference, end, conn_id or ""))
    tags, stats = _tags(identity), Stats(IN_TASKS)
    state = "succeeded" if end.status is JobStatus.SUCCEEDED else "failed"
    stats.count(metrics.FINISHED, {**tags, "state": state, "failure_class": _tag(end.failure_class)})
    stats.count(metrics.FENCED, tags, fenced)
    tell_phases(reference.job_id, phases, getattr(context["ti"], "context_carrier", None))
    for phase in phases:
        stats.time(metrics.PHASE, {**tags, "phase": phase.name}, phase.seconds)


def _history(reference: JobReference, outcome: Outcome) -> tuple[tuple[Phase, ...], int]:
    """The phases of an ended job, and how many pods were turned away; nothing if nobody can say now."""
    try:
        backend = backend_of(reference)
        header = {"times": outcome.times, "attempt": outcome.attempt}
        found = backend.get(reference.namespace, reference.job_id)
        phases = known_phases(backend, reference, found, header)
    except (KineticError, OSError) as error:
        _LOG.info("where the time of %s went is not known: %s", reference.job_id, error)
        return (), 0
    ends = [terminated(pod) or {} for pod in (found[1] if found else ())]
    return phases, sum(each.get("exitCode") == wire.EXIT_FENCED for each in ends)


def _push(context: Any, record: JobRecord) -> None:
    context["ti"].xcom_push(key=KEY, value=record.to_dict())


def _tags(identity: TaskIdentity) -> dict[str, str]:
    return {"dag_id": identity.dag_id, "task_id": identity.task_id}


def _tag(text: str) -> str:
    """A failure class as one word: not every backend of metrics takes spaces."""
    return re.sub("[^a-z0-9]+", "_", text) or "none"
