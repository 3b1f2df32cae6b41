"""Report of a task's job to Airflow: its record, metrics and spans, its failure, the events of its outlets.

The record is an XCom that the page, a dashboard or a person reads. Whoever can write XComs can forge one, so
a reader checks that the job is the task's own: the job's id is a function of the task instance (see
`TaskIdentity`), to which another job's id cannot fit.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Self

from airflow_provider import telemetry
from airflow_provider.access import ENVIRONMENT, Access
from airflow_provider.deployment import Kept, deployment_name
from airflow_provider.job_of_task import Announce, Origin, Started, TaskIdentity, start_or_adopt
from airflow_provider.task_logs import VARIABLE, RemoteLog
from airflow_provider.telemetry import IN_TASKS, Stats, span, steps, tell_phases, trace_environment
from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobCancelled,
    JobFailed,
    JobMisconfigured,
    KineticError,
    ProtocolMismatch,
    UnserializableResult,
)
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.bundle import Progress
from kinetic_core.jobs.collect import Outcome, collect
from kinetic_core.jobs.observe import observe
from kinetic_core.jobs.outputs import find_outputs
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.submit import Call
from kinetic_core.jobs.timeline import known_phases
from kinetic_core.options import RunOptions

KEY = "kinetic_job"
"""The XCom's key."""
EARLIER_KEY = "kinetic_earlier_jobs"
"""The key of the jobs that the task instance had before this one."""
BUILD_KEY = "kinetic_build"
"""The key of a try's wait for its image."""
_JOB_ID = re.compile(r"job-[0-9a-f]{16}")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CONN_ID = re.compile(r"[\w#!()\-.:/]{0,250}")
"""Connection ids that Airflow itself allows, except the backslash; "" for the settings of the machine."""
_LONGEST = 1000
_BUILD_PAGES = "https://console.cloud.google.com/cloud-build/"
"""Begin of the address of a build's page, which becomes a link: authors of DAGs can write XComs, too."""
_MOST_PHASES = 100
_MOST_EARLIER = 20
_MOST_SECONDS, _MOST_TRIES = 1e15, 1 << 31
"""Numbers that a record may name: the page could neither multiply nor write all that a forged one can."""


@dataclass(frozen=True)
class JobEnd:
    """End of a job. `failure_class` is "" for a job that succeeded; `attempt` counts from 0.

    `resumed`: when a worker went on with the task to end it, in Unix seconds; None if the task was never
    deferred, or its trigger ended it.
    """

    status: JobStatus
    reason: str
    message: str
    failure_class: str
    attempt: int
    phases: tuple[Phase, ...]
    resumed: float | None = None

    @classmethod
    def of(cls, observation: JobObservation, phases: tuple[Phase, ...]) -> Self:
        """Make the end from the final observation."""
        failure = observation.failure
        return cls(
            status=observation.status,
            reason=observation.reason,
            message=readable(observation.message),
            failure_class="" if failure is None else str(failure.failure_class),
            attempt=observation.attempt,
            phases=phases,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON of bounded size."""
        return asdict(self) | {
            "status": self.status.value,
            "message": self.message[:_LONGEST],
            "phases": [asdict(each) for each in self.phases[-_MOST_PHASES:]],
        }


@dataclass(frozen=True)
class JobRecord:
    """Record of a task instance's job, and of its end once it has ended.

    `run_began` and `try_number` identify the tries among which the job's id is one.
    `conn_id` names the connection that said where the job runs, "" if the worker's environment did;
    `gcp_conn_id` the Google Cloud connection that the task named. Service accounts that the task impersonates
    are left out: the page would follow an XCom, which authors of DAGs can write, to what they may not see.
    """

    reference: JobReference
    run_began: str
    try_number: int
    end: JobEnd | None = None
    conn_id: str = ""
    gcp_conn_id: str = ""

    @classmethod
    def of(
        cls,
        identity: TaskIdentity,
        reference: JobReference,
        end: JobEnd | None = None,
        access: Access = ENVIRONMENT,
    ) -> Self:
        """Make the record of a try's job."""
        names = access.conn_id, access.gcp_conn_id
        return cls(reference, identity.run_began, identity.try_number, end, *names)

    @property
    def access(self) -> Access:
        """Return the connections with which the page reads the job."""
        return Access(self.conn_id, self.gcp_conn_id)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for XCom, without values or secrets."""
        return {
            "reference": self.reference.to_dict(),
            "run_began": self.run_began,
            "try_number": self.try_number,
            "end": None if self.end is None else self.end.to_dict(),
            "conn_id": self.conn_id,
            "gcp_conn_id": self.gcp_conn_id,
        }

    @classmethod
    def from_value(cls, value: Any) -> Self | None:
        """Decode the value of an XCom; None if it is no record of this version."""
        try:
            reference = JobReference.from_dict(value["reference"])
            end = value["end"]
            record = cls(
                reference=reference,
                run_began=_text(value["run_began"]),
                try_number=_whole(value["try_number"]),
                end=None if end is None else _end(end),
                conn_id=str(value.get("conn_id") or ""),
                gcp_conn_id=str(value.get("gcp_conn_id") or ""),
            )
        except (TypeError, ValueError, OverflowError, KeyError, ProtocolMismatch):
            return None
        return record if is_sound(reference, record.access) else None

    def started_by(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> int | None:
        """Return the try that started the job; None if this task instance cannot have started it."""
        identity = TaskIdentity(dag_id, run_id, self.run_began, task_id, map_index, self.try_number)
        return identity.starter(self.reference.job_id, self.reference.spec_digest)


@dataclass(frozen=True)
class EarlierJob:
    """Job of an earlier try of a task instance, shown to people only."""

    try_number: int
    job_id: str
    status: str
    reason: str
    message: str

    @classmethod
    def of(cls, try_number: int, job_id: str, observation: JobObservation) -> Self:
        """Make it from an observation."""
        end = JobEnd.of(observation, ())
        return cls(try_number, job_id, end.status.value, end.failure_class or end.reason, end.message)


@dataclass(frozen=True)
class BuildWait:
    """Wait of a try for its image, in Unix seconds: from when, until when, and when a worker went on.

    `sent`: when the trigger that waited sent its event, which it holds for a while after the deferral. None
    stands for what has not come. Airflow keeps no times of a leg after the next one has begun.
    `page` is the address of the build's page, the same for all tasks that wait for the build.
    """

    try_number: int
    began: float
    ended: float | None = None
    resumed: float | None = None
    page: str = ""
    sent: float | None = None

    @classmethod
    def from_value(cls, value: Any) -> Self | None:
        """Decode the value of an XCom; None if it is no such wait."""
        try:
            found = cls(**value)
        except TypeError:
            return None
        noted = found.began, found.ended, found.resumed, found.sent
        times = [each for each in noted if each is not None]
        known = type(found.page) is str and (found.page == "" or found.page.startswith(_BUILD_PAGES))
        known = known and len(found.page) <= _LONGEST and wire.is_encodable(found.page)
        sound = all(map(is_seconds, times)) and known
        return found if sound and type(found.try_number) is int and found.began is not None else None


def earlier_to_value(jobs: Sequence[EarlierJob]) -> list[dict[str, Any]]:
    """Return plain JSON of bounded size for XCom."""
    return [asdict(each) | {"message": each.message[:_LONGEST]} for each in jobs[:_MOST_EARLIER]]


def earlier_from_value(value: Any) -> tuple[EarlierJob, ...]:
    """Decode the value of an XCom, ignoring entries that are not such jobs."""
    listed = value[:_MOST_EARLIER] if isinstance(value, list) else []
    return tuple(found for each in listed if (found := _earlier(each)) is not None)


def _earlier(told: Any) -> EarlierJob | None:
    try:
        found = EarlierJob(**told)
    except TypeError:
        return None
    texts = (found.job_id, found.status, found.reason, found.message)
    sound = isinstance(found.try_number, int) and all(
        isinstance(text, str) and len(text) <= _LONGEST and wire.is_encodable(text) for text in texts
    )
    return found if sound else None


def _whole(told: Any) -> int:
    number = int(told)
    if not 0 <= number < _MOST_TRIES:
        raise ValueError("no such number of tries or attempts")
    return number


def _end(told: Mapping[str, Any]) -> JobEnd:
    return JobEnd(
        status=JobStatus(told["status"]),
        reason=_text(told["reason"]),
        message=_text(told["message"]),
        failure_class=_text(told["failure_class"]),
        attempt=_whole(told["attempt"]),
        phases=tuple(found for each in told["phases"] if (found := _phase(each)) is not None),
        resumed=_time(told.get("resumed")),
    )


def _text(told: Any) -> str:
    """Return a text; the page could send nothing at all with one that is not UTF-8. Raises ValueError."""
    text = str(told)
    if not wire.is_encodable(text):
        raise ValueError("a text of a record cannot be encoded as UTF-8")
    return text


def _time(told: Any) -> float | None:
    if told is not None and not is_seconds(told):
        raise ValueError("no such time")
    return None if told is None else float(told)


def _phase(told: Mapping[str, Any]) -> Phase | None:
    """Return a phase; None if its times or its name are none, which a job's own code may have noted."""
    began, seconds, name = told["began"], told["seconds"], str(told["name"])
    if not is_seconds(began) or not is_seconds(seconds) or not wire.is_encodable(name):
        return None
    return Phase(name, _whole(told["attempt"]), float(began), float(seconds))


def is_seconds(value: object) -> bool:
    """Return whether the value is a time or a duration in seconds, of a size that clocks can have told."""
    return type(value) in (int, float) and 0 <= value <= _MOST_SECONDS  # type: ignore[operator]


def is_sound(reference: JobReference, access: Access, ids: re.Pattern[str] = _JOB_ID) -> bool:
    """Return whether reference and connections are safe in the names of objects and in requests.

    `ids` matches the ids of what is referred to.
    """
    texts = [getattr(reference, each.name) for each in fields(reference) if each.type == "str"]
    if not all(isinstance(text, str) for text in texts):
        return False
    try:
        datetime.fromisoformat(reference.created_at)
    except ValueError:
        return False
    named = (
        ids.fullmatch(reference.job_id),
        _NAMESPACE.fullmatch(reference.namespace),
        _CONN_ID.fullmatch(access.conn_id),
        _CONN_ID.fullmatch(access.gcp_conn_id),
    )
    return None not in named


_LOG = logging.getLogger(__name__)


def origin_of(identity: TaskIdentity) -> Origin | None:
    """Return the origin that a new job carries; None if this Airflow has no name."""
    kept = Kept.here(identity.team)
    name = kept.name
    if not name and (name := deployment_name(make=True, team=identity.team)):
        kept.keep(name=name)
    return Origin.of(identity, name) if name else None


def traced_start(
    call: Call,
    options: RunOptions,
    connections: Connections,
    identity: TaskIdentity,
    say: Progress,
    remote: RemoteLog | None,
    origin: Origin | None,
    announce: Announce = lambda _place: None,
) -> Started:
    """Start or adopt the job, with its steps as spans; a new job gets its trace and its task's log.

    Asks Airflow nothing, except through `announce`: a worker may be interrupted here, and half a question
    would confuse the next one.
    """
    log = {VARIABLE: remote.uri} if remote is not None else {}
    with span("submit"), steps(say) as progress:
        environment = {**trace_environment(), **log}
        return start_or_adopt(call, options, connections, identity, progress, environment, origin, announce)


def tell_start(context: Any, identity: TaskIdentity, started: Started, access: Access) -> None:
    """Report the task's job, adopted or new, to Airflow; `access`: the task's connections."""
    reference = started.reference
    _push(context, JobRecord.of(started.starter or identity, reference, access=access))
    if started.earlier:  # Airflow forgets the XComs of a try when the next one begins
        jobs = [EarlierJob.of(each.try_number, each.job_id, each.observation) for each in started.earlier]
        push(context["ti"], EARLIER_KEY, earlier_to_value(jobs))
    tags, stats = _tags(identity), Stats(IN_TASKS)
    if started.adopted:
        stats.count(telemetry.ADOPTED, tags)
    else:
        stats.count(telemetry.SUBMITTED, {**tags, "accelerator": reference.accelerator})
        stats.count(telemetry.SHIPPED, tags, started.shipped)


def tell_end(
    context: Any,
    identity: TaskIdentity,
    backend: Backend,
    reference: JobReference,
    observation: JobObservation,
    outcome: Outcome,
    access: Access,
    resumed: float | None = None,
) -> JobRecord:
    """Report a job's end to Airflow; return its record. `identity`: the try that started the job.

    `resumed`: when this worker went on with the task, None if it began the task.
    """
    began, number = identity.run_began, identity.try_number
    record, fenced = finished(backend, reference, observation, outcome, began, number, access)
    if record.end is not None:
        record = replace(record, end=replace(record.end, resumed=resumed))
    _push(context, record)
    count_end(record, fenced, _tags(identity), Stats(IN_TASKS))
    if record.end is not None:
        tell_phases(reference.job_id, record.end.phases, getattr(context["ti"], "context_carrier", None))
    return record


def record_of_cancelled(value: object, backend: Backend, reference: JobReference) -> JobRecord | None:
    """Return the record of a job that was cancelled because somebody ended its task, with the job's end.

    `value` is that of the record's XCom. None if it is of another job or has an end, or the job goes on.
    Raises KineticError.
    """
    record = JobRecord.from_value(value)
    if record is None or record.end is not None or record.reference.job_id != reference.job_id:
        return None
    observation = observe(backend, reference)
    if not observation.is_terminal:
        return None
    outcome = collect(backend, reference, allow_pickle=False)
    began, number = record.run_began, record.try_number
    return finished(backend, record.reference, observation, outcome, began, number, record.access)[0]


def finished(
    backend: Backend,
    reference: JobReference,
    observation: JobObservation,
    outcome: Outcome,
    run_began: str,
    try_number: int,
    access: Access,
) -> tuple[JobRecord, int]:
    """Return the record of a job that has ended, and the number of its pods that were turned away.

    `run_began` and `try_number` are those of the try that started the job.
    """
    phases, fenced = _history(backend, reference, outcome)
    end = JobEnd.of(observation, phases)
    record = JobRecord(reference, run_began, try_number, end, access.conn_id, access.gcp_conn_id)
    return record, fenced


def count_end(record: JobRecord, fenced: int, tags: Mapping[str, str], stats: Stats) -> None:
    """Count the end of a record's job, if it has ended, and the time of its phases. `tags`: the task's."""
    end = record.end
    if end is None:
        return
    state = end.status.value.lower()
    stats.count(telemetry.FINISHED, {**tags, "state": state, "failure_class": _tag(end.failure_class)})
    stats.count(telemetry.FENCED, tags, fenced)
    for phase in end.phases:
        stats.time(telemetry.PHASE, {**tags, "phase": phase.name}, phase.seconds)


def _history(backend: Backend, reference: JobReference, outcome: Outcome) -> tuple[tuple[Phase, ...], int]:
    """Return the phases of a finished job and the number of refused pods; empty if they cannot be read."""
    try:
        header = {"times": outcome.times, "attempt": outcome.attempt}
        found = backend.get(reference.namespace, reference.job_id)
        phases = known_phases(backend, reference, found, header, is_over=True)
    except (KineticError, OSError) as error:
        _LOG.info("where the time of %s went is not known: %s", reference.job_id, error)
        return (), 0
    codes = [Pod(pod).exit_code for pod in (found[1] if found else ())]
    return phases, sum(code in (wire.EXIT_FENCED, wire.EXIT_UNSURE) for code in codes)


# The page reads records in Airflow's database. An XCom backend that a deployment has written keeps values
# elsewhere, and leaves an address there. So the provider's own XComs go around it, as Airflow's links do.


def store(ti: Any, key: str, value: Any) -> None:
    """Store such an XCom of a task instance that a trigger knows."""
    from airflow.sdk.execution_time.xcom import XCom

    XCom._set_xcom_in_db(key=key, value=value, **_place(ti))


def push(ti: Any, key: str, value: Any) -> None:
    """Store an XCom of the task instance, plain JSON, in Airflow's database."""
    backend = _backend_of_its_own()
    if backend is None:
        ti.xcom_push(key=key, value=value)
    else:
        backend._set_xcom_in_db(key=key, value=value, **_place(ti))


def pulled(ti: Any, key: str) -> object:
    """Return such an XCom; None if there is none."""
    backend = _backend_of_its_own()
    if backend is None:
        place = _place(ti)
        return ti.xcom_pull(task_ids=ti.task_id, key=key, map_indexes=place["map_index"])
    value = backend._get_xcom_db_ref(key=key, **_place(ti)).value
    return json.loads(value) if isinstance(value, str) else value


def stored_value(ti: Any, key: str) -> object:
    """Return such an XCom of a task instance, also in a trigger; None if there is none."""
    from airflow.sdk.execution_time.xcom import XCom

    value = XCom._get_xcom_db_ref(key=key, **_place(ti)).value
    return json.loads(value) if isinstance(value, str) else value


def _place(ti: Any) -> dict[str, Any]:
    mapped = ti.map_index is not None and ti.map_index >= 0
    names = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id}
    return {**names, "map_index": ti.map_index if mapped else -1}


def _backend_of_its_own() -> Any:
    """Return the XCom backend that the configuration names; None for Airflow's. A task has it loaded."""
    module = sys.modules.get("airflow.sdk.execution_time.xcom")
    if module is None or module.XCom is module.BaseXCom:
        return None
    return module.XCom


def _push(context: Any, record: JobRecord) -> None:
    push(context["ti"], KEY, record.to_dict())


def _tags(identity: TaskIdentity) -> dict[str, str]:
    return {"dag_id": identity.dag_id, "task_id": identity.task_id}


def _tag(text: str) -> str:
    """Turn a failure class into one word, because not every metrics backend accepts spaces."""
    return re.sub("[^a-z0-9]+", "_", text) or "none"


_NO_RETRY = (JobMisconfigured, JobCancelled, JobBudgetExceeded, UnserializableResult)


def failure_of(outcome: Outcome, name: str = "") -> BaseException:
    """Write the evidence to the log, and return the job's failure; both name the task instance.

    Returns the user's exception if it is a built-in one, AirflowFailException if trying again cannot help,
    AirflowException otherwise.
    """
    from airflow_provider.airflow_sdk import AirflowException, AirflowFailException

    error = outcome.exception()
    for line in evidence(outcome, name):
        logging.getLogger(__name__).error("%s", line)
    text = named(name, readable(str(error)))
    if isinstance(error, _NO_RETRY):
        return AirflowFailException(text)
    if isinstance(error, JobFailed):
        return AirflowException(text)
    if name:
        error.add_note(name)
    return error


def publish(
    connections: Connections, reference: JobReference, digest: str, outlets: Iterable[Any], outlet_events: Any
) -> None:
    """Complete the events that Airflow makes of a task's outlets when it succeeds.

    An Asset's event says which job made it and where its outputs are. An AssetAlias becomes an event of the
    Asset whose URI is the output directory. The extra: `job`, `uri`, `files`, `bytes`, and `digest`, that
    of the job's outcome. Raises StoreError if the outputs cannot be listed.
    """
    from airflow.sdk import Asset, AssetAlias

    found = [each for each in outlets if isinstance(each, Asset | AssetAlias)]
    if not found:
        return
    outputs = find_outputs(connections, reference)
    place = outputs.location
    uri = place if "://" in place else Path(place).as_uri()
    extra = {
        "job": reference.job_id,
        "uri": uri,
        "files": len(outputs),
        "bytes": sum(file.size for file in outputs),
        "digest": digest,
    }
    for outlet in found:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(Asset(uri), extra=extra)
        else:
            outlet_events[outlet].extra.update(extra)


Redact = Callable[[str, str], Any]
"""Airflow's `redact`: from a value and its name to the value as it may be shown."""
_LONGEST_SHOWN = 40
_LONGEST_ARGUMENTS = 120


def instance_name(
    ti: Any, function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> str:
    """Return `train[2] (rate=0.3)` for an instance of a mapped task, "" for a task that is not mapped.

    The brackets contain the task's rendered `map_index_template`, or else its arguments that are numbers,
    truth values or short texts. `redact` hides secrets by name or value.
    """
    if ti.map_index is None or ti.map_index < 0:
        return ""
    label = getattr(ti, "rendered_map_index", None) or _shortened(_shown(function, args, kwargs, redact))
    return f"{ti.task_id}[{ti.map_index}]" + (f" ({label})" if label else "")


def named(name: str, text: object) -> str:
    """Prefix a text with the name of a task instance; "" adds nothing."""
    return f"{name}: {text}" if name else str(text)


def _shown(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> Iterator[str]:
    given = chain(zip(inspect.signature(function).parameters, args, strict=False), kwargs.items())
    for parameter, value in given:
        if type(value) in (bool, int, float) or (type(value) is str and len(value) <= _LONGEST_SHOWN):
            yield f"{parameter}={redact(repr(value), parameter)}"


def _shortened(parts: Iterator[str]) -> str:
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST_ARGUMENTS else f"{text[:_LONGEST_ARGUMENTS]}..."


_REMEDIES: dict[str, str] = {
    FailureClass.OUT_OF_MEMORY: "ask for more with memory=, or use less",
    FailureClass.OUT_OF_DISK: "ask for more with disk=, or write large files to KINETIC_OUTPUT_DIR",
    FailureClass.PREEMPTED: "not the function's fault: retries= starts it again, infrastructure_retries= "
    "allows more losses within a job, and spot=False avoids preemption",
    FailureClass.IMAGE: "look at the image's name, and at whether the cluster's nodes may pull it",
    FailureClass.CONFIGURATION: "correct what the message names; trying again would not help",
    FailureClass.IMPOSSIBLE_REQUEST: "ask for hardware the cluster has, or give it a node pool that has this",
    FailureClass.QUOTA: "ask for less, for more quota, or in another zone",
    FailureClass.DEADLINE: "raise timeout=, which counts waiting too, or do less in one job",
    FailureClass.BUDGET: "raise budget=, if it is worth it; with checkpoints a new job goes on from here",
    FailureClass.CANCELLED: "somebody cancelled the job, or ended or cleared its task in Airflow",
    FailureClass.CONTROL_PLANE: "a service did not answer: retries= starts it again",
}


def evidence(outcome: Outcome, name: str = "") -> Iterator[str]:
    """Yield log lines: class, message, exit code, the traceback or else the last lines, and what to do.

    `name`: the name of the instance of a mapped task.
    """
    failure = outcome.failure or Failure(FailureClass.CONTROL_PLANE, "the job failed without a reason")
    where = f"attempt {outcome.attempt + 1}, phase {failure.phase}"
    if failure.signal is not None:
        where += f", signal {failure.signal}"
    if failure.exit_code is not None:
        where += f", exit code {failure.exit_code}"
    yield named(name, f"{outcome.job_id} failed: {failure.failure_class}: {failure.message} ({where})")
    if failure.traceback:
        yield f"traceback in the job:\n{readable(failure.traceback.rstrip())}"
    elif failure.last_lines:
        yield "the last lines of its log:\n" + "\n".join(failure.last_lines)
    if remedy := advice(failure):
        yield f"what to do: {remedy}"


def advice(failure: Failure) -> str:
    """Return what to do about a failure; "" for an exception of the function, which speaks for itself."""
    return _REMEDIES.get(failure.failure_class, "")


_DAG_MODULE = re.compile(r"\bunusual_prefix_[0-9a-f]{40}_")


def readable(text: str) -> str:
    """Return a text without the prefix that Airflow puts before the names of modules of DAG files.

    Lone surrogates, which Airflow could neither log nor store, become escapes.
    """
    return wire.encodable(_DAG_MODULE.sub("", text))


def loggable(error: BaseException) -> BaseException:
    """Return an exception with escapes for lone surrogates in its text, its notes and its causes.

    Airflow logs a traceback as JSON, and a text that is not UTF-8 would end the worker before the task has a
    state. The exceptions are changed in place; if the text of one is not in its arguments, an
    AirflowException is returned.
    """
    from airflow_provider.airflow_sdk import AirflowException

    def is_loggable() -> bool:
        return wire.is_encodable("".join(traceback.format_exception(error)))

    if is_loggable():
        return error
    chain = [error]
    for each in chain:
        each.args = tuple(wire.encodable(one) if isinstance(one, str) else one for one in each.args)
        if notes := getattr(each, "__notes__", None):
            each.__notes__ = [wire.encodable(str(note)) for note in notes]
        chain += [other for other in (each.__cause__, each.__context__) if other and other not in chain]
    if is_loggable():
        return error
    return AirflowException(wire.encodable("".join(traceback.format_exception_only(error)).strip()))
