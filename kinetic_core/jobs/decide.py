"""State of a job and the actions it needs: a pure function of facts.

`decide` turns facts into an observation and actions. It reads and writes nothing; for a fact that it needs
and that has not been read it raises `Unknown`. `jobs.facts` reads facts, and only `jobs.reconcile` carries
actions out (ADR 0054).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.chunks import variable
from kinetic_core.backends.kubernetes.fallbacks import (
    Choice,
    accelerator_of,
    carrying,
    choice_number,
    choice_of,
)
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CHUNK,
    FAILED_CREATE,
    NEEDS_CONTROL,
    NODE_SILENT,
    QUEUED,
    SUSPENDED,
    UNSCHEDULABLE,
    WORKER,
)
from kinetic_core.backends.kubernetes.objects import NO_CONDITION, Job
from kinetic_core.backends.kubernetes.set_objects import is_live, runs_in_set, waits_for_worker
from kinetic_core.backends.kubernetes.verdict import observe as verdict
from kinetic_core.job import JobObservation, JobStatus

MOVED_ON = "NextAccelerator"
"""Reason of an observation: the job goes to its next accelerator."""
ON_WORKER = "OnWorker"
"""Reason of an observation: a worker runs the call, or is about to."""
OWN_POD = "OwnPod"
"""Reason of an observation: a call that its worker does not run gets a pod of its own."""
_TAKING_SECONDS = 15.0
"""Seconds in which a worker that has started must begin with a call."""
_NO_CAPACITY = frozenset({UNSCHEDULABLE, FAILED_CREATE, QUEUED})

Object = Mapping[str, Any]
T = TypeVar("T")


class Fact(Enum):
    """Fact that is read only when `decide` needs it; as a value: the fact has not been read."""

    PODS = "the pods of the Job"
    OUTCOME = "what the store says of the outcome"
    REFUSAL = "why nothing here can ever run the newest pod"
    LATER_REFUSALS = "why nothing here can ever run the Jobs of later accelerators"
    PASSED_OVER = "whether somebody has given the accelerator up"
    CANCEL_MARKER = "whether somebody has stored that the job is cancelled"
    CLAIMS = "how many attempts of a call were claimed"
    WORKER = "what is known of the worker of a call"


class Unknown(Exception):
    """Fact that `decide` needs and that has not been read."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(fact.value)
        self.fact = fact


@dataclass(frozen=True)
class WorkerState:
    """State of a call's worker. `is_over`: none of its processes lives, and none ever will."""

    job_id: str
    seen: JobObservation
    is_over: bool


@dataclass(frozen=True)
class Facts:
    """Facts read of a job at `now`, in Unix seconds; `created_at` is when the job was submitted.

    `job` is None if the Job does not exist. `outcome` is NOT_FOUND if no signed outcome is stored.
    `later_refusals` maps the numbers of later accelerators that can never be provided to the reason.
    """

    now: float
    created_at: str
    job: Object | None
    pods: Sequence[Object] | Fact = Fact.PODS
    outcome: JobObservation | Fact = Fact.OUTCOME
    refusal: str | Fact | None = Fact.REFUSAL
    later_refusals: Mapping[int, str] | Fact = Fact.LATER_REFUSALS
    passed_over: bool | Fact = Fact.PASSED_OVER
    cancel_marker: bool | Fact = Fact.CANCEL_MARKER
    claims: int | Fact = Fact.CLAIMS
    worker: WorkerState | Fact = Fact.WORKER


@dataclass(frozen=True)
class Control:
    """Action for a backend without a controller: do the controller's work; see `Backend.control`."""


@dataclass(frozen=True)
class RecordFailure:
    """Action: store a failure in place of the job's outcome, unless an outcome has been stored."""

    failure: wire.Failure


@dataclass(frozen=True)
class EndJob:
    """Action: end a Job that can never run, unless its outcome turns out to be a success."""


@dataclass(frozen=True)
class ReleasePods:
    """Action: end the pods of a finished job that do not end by themselves."""


@dataclass(frozen=True)
class GivenUp:
    """Accelerator that is given up for a later one, and the reason."""

    number: int
    accelerator: str
    why: str


@dataclass(frozen=True)
class MoveOn:
    """Action: give up accelerators and create the Job for a later one, unless one has a started pod.

    `message` is the message of the resulting observation, `at` (Unix seconds) the time of the decision.
    """

    given_up: tuple[GivenUp, ...]
    manifest: Object
    message: str
    at: float


@dataclass(frozen=True)
class GivePod:
    """Action: give a call a pod of its own in the place of its worker.

    `attempts` is how many attempts have ended with the worker, 0 if none had begun there.
    """

    attempts: int


@dataclass(frozen=True)
class EndWorker:
    """Action: end a worker that can never run, or does not begin with its call."""

    job_id: str


Action = Control | RecordFailure | EndJob | ReleasePods | MoveOn | GivePod | EndWorker


@dataclass(frozen=True)
class Decision:
    """Observation of a job, and the actions that the job needs, in order."""

    observation: JobObservation
    actions: tuple[Action, ...] = ()


def decide(facts: Facts) -> Decision:
    """Compute a job's state and the actions it needs. Raises Unknown for a fact that has not been read.

    An observation that is not terminal but has a failure describes a job that can never run and has not been
    ended yet.
    """
    job = facts.job
    if job is None:
        return Decision(_known(facts.outcome))
    decision = _decided(facts, job)
    if NEEDS_CONTROL in (job["metadata"].get("annotations") or {}):
        return replace(decision, actions=(Control(), *decision.actions))
    return decision


def _decided(facts: Facts, job: Object) -> Decision:
    if waits_for_worker(job):
        return _on_worker(facts, job)
    if (stored := _stored_failure(facts, job)) is not None:
        return Decision(stored)
    pods = _known(facts.pods)
    seen = verdict(job, pods)
    if seen.reason == UNSCHEDULABLE and (text := _known(facts.refusal)):
        seen = impossible(seen, text)
    choice = None if _is_cancelled(job) else choice_of(job)
    if choice is not None:
        fallback = _fallback(facts, choice, seen)
        if isinstance(fallback, Decision):
            return fallback
        seen = fallback
    seen = _in_queue(job, seen, facts.now)
    if seen.failure is not None and not seen.is_terminal:
        return _never_runs(facts, seen, seen.failure)
    if runs_in_set(job):
        return _of_set(facts, pods, seen)
    waits_for_its_turn = CHUNK in job["metadata"]["labels"] and seen.status is JobStatus.PENDING
    may_be_over = seen.is_terminal or _is_cancelled(job) or seen.reason == NODE_SILENT or waits_for_its_turn
    may_be_over = may_be_over or WORKER in (
        job["metadata"].get("labels") or {}
    )  # the worker may have been quicker
    if seen.status is JobStatus.SUCCEEDED or not may_be_over:
        return Decision(seen)
    return _of_store(facts, seen)


def _on_worker(facts: Facts, job: Object) -> Decision:
    """Decide about a call that has no pod of its own: it gets one once its worker is dead, not earlier.

    Where a worker comes late nevertheless, it and the pod claim the attempt, and one of them runs nothing
    (runner/claims.py).
    """
    alone = verdict(job, ())
    stored = _known(facts.outcome)
    if stored.status is not JobStatus.NOT_FOUND:
        ended = replace(stored, created_at=alone.created_at)
        return Decision(ended, () if alone.is_terminal else (ReleasePods(),))
    claims, worker = _known(facts.claims), _known(facts.worker)
    seen = JobObservation(JobStatus.PENDING, attempt=max(0, claims - 1), created_at=alone.created_at)
    if alone.is_terminal and (worker.is_over or not claims):
        seen = replace(alone, attempt=seen.attempt)
        return Decision(seen, (RecordFailure(seen.failure or _without_reason(seen)),))
    if alone.is_terminal:  # by its deadline: the worker keeps it as well
        text = f"it was told to end; its worker, {worker.job_id}, has still to say how it ended"
        return Decision(replace(seen, status=JobStatus.RUNNING, reason=ON_WORKER, message=text))
    since = max(alone.created_at or 0.0, worker.seen.started_at or 0.0)
    is_late = facts.now >= since + _TAKING_SECONDS
    if worker.is_over and (claims or is_late or worker.seen.status is not JobStatus.NOT_FOUND):
        return _after_worker(job, worker, seen, claims)
    if claims:
        text = f"it runs on the worker {worker.job_id}"
        return Decision(replace(seen, status=JobStatus.RUNNING, reason=ON_WORKER, message=text))
    if worker.seen.is_terminal:
        text = f"its worker, {worker.job_id}, ends: it gets a pod of its own once nothing of it lives"
        return Decision(replace(seen, reason=OWN_POD, message=text))
    if worker.seen.failure is not None:
        seen = replace(
            seen, reason=worker.seen.reason, message=worker.seen.message, failure=worker.seen.failure
        )
        return Decision(seen, (RecordFailure(worker.seen.failure), EndJob(), EndWorker(worker.job_id)))
    if worker.seen.status is JobStatus.PENDING:
        text = f"its worker, {worker.job_id}, waits: {worker.seen.message}"
        return Decision(replace(seen, reason=worker.seen.reason, message=text))
    if not is_late:
        text = f"its worker, {worker.job_id}, is about to begin with it"
        return Decision(replace(seen, reason=ON_WORKER, message=text))
    text = f"its worker, {worker.job_id}, does not begin with it, and is ended: it gets a pod of its own"
    return Decision(replace(seen, reason=OWN_POD, message=text), (EndWorker(worker.job_id),))


def _after_worker(job: Object, worker: WorkerState, seen: JobObservation, claims: int) -> Decision:
    """Decide about a call whose worker is dead: it goes on in a pod, if it may have another attempt."""
    if not claims:
        text = f"its worker, {worker.job_id}, has ended: it gets a pod of its own"
        return Decision(replace(seen, reason=OWN_POD, message=text), (GivePod(0),))
    if int(variable(job, "KINETIC_INFRASTRUCTURE_RETRIES") or 0) > 0:
        text = f"its worker, {worker.job_id}, has died: it goes on in a pod of its own"
        return Decision(replace(seen, reason=OWN_POD, message=text), (GivePod(claims),))
    text = f"its worker, {worker.job_id}, has died, and infrastructure_retries=0 allows no other attempt"
    failure = wire.Failure(wire.FailureClass.PREEMPTED, text, "execute")
    seen = replace(seen, status=JobStatus.FAILED, reason="WorkerLost", message=text, failure=failure)
    return Decision(seen, (RecordFailure(failure), ReleasePods()))


def _known(value: T | Fact) -> T:
    if isinstance(value, Fact):
        raise Unknown(value)
    return value


def _is_cancelled(job: Object) -> bool:
    return CANCELLED in (job["metadata"].get("annotations") or {})


def _stored_failure(facts: Facts, job: Object) -> JobObservation | None:
    """Return the stored outcome of a failed Job whose pods need not be read; None for any other Job."""
    alone = verdict(job, ())
    if not alone.status.ended_without_value or runs_in_set(job) or choice_of(job) is not None:
        return None
    stored = _known(facts.outcome)
    if stored.status is JobStatus.NOT_FOUND:
        return None
    return replace(stored, created_at=alone.created_at, finished_at=alone.finished_at or stored.finished_at)


def impossible(seen: JobObservation, text: str) -> JobObservation:
    """Add the failure of a job that nothing there can ever run."""
    failure = wire.Failure(wire.FailureClass.IMPOSSIBLE_REQUEST, text, "scheduling")
    return replace(seen, message=text, failure=failure)


def _in_queue(job: Object, seen: JobObservation, now: float) -> JobObservation:
    """Fail a queued job whose `timeout=` is over, because Kubernetes counts no deadline for a suspended Job.

    The count restarts when the Job is resumed, and here when the Job is suspended again.
    """
    limit = job["spec"].get("activeDeadlineSeconds")
    if seen.reason != QUEUED or limit is None or _is_cancelled(job):
        return seen
    since = Job(job).conditions.get(SUSPENDED, NO_CONDITION).since
    over_at = max(seen.created_at or now, since or 0.0) + limit
    if now < over_at:
        return replace(seen, moves_on_at=min(over_at, seen.moves_on_at or over_at))
    text = f"it waited {limit} seconds in vain, its timeout=: {seen.message}"
    failure = wire.Failure(wire.FailureClass.DEADLINE, text, "scheduling")
    return replace(seen, message=text, failure=failure)


def _never_runs(facts: Facts, seen: JobObservation, failure: wire.Failure) -> Decision:
    """Decide to end a job that can never run."""
    stored = _known(facts.outcome)
    if stored.status is JobStatus.NOT_FOUND:
        return Decision(seen, (RecordFailure(failure), EndJob()))
    return Decision(_with_times(stored, seen), (EndJob(),))


def _of_store(facts: Facts, seen: JobObservation) -> Decision:
    """Observe a job that may be over by its stored outcome.

    An outcome counts even if the runner was killed between committing the outcome and exiting.
    """
    stored = _known(facts.outcome)
    if stored.status is not JobStatus.NOT_FOUND:
        return Decision(_with_times(stored, seen))
    if not seen.is_terminal:
        return Decision(seen)
    return Decision(seen, (RecordFailure(seen.failure or _without_reason(seen)),))


def _without_reason(seen: JobObservation) -> wire.Failure:
    return wire.Failure(wire.FailureClass.CONTROL_PLANE, seen.message)


def _with_times(stored: JobObservation, seen: JobObservation) -> JobObservation:
    """Return the stored end with the Job's times; a Job that has not ended yet does not say when it did."""
    started, finished = seen.started_at or stored.started_at, seen.finished_at or stored.finished_at
    return replace(stored, created_at=seen.created_at, started_at=started, finished_at=finished)


def _of_set(facts: Facts, pods: Sequence[Object], seen: JobObservation) -> Decision:
    """Decide by the outcome whether a LeaderWorkerSet's pods, which never end by themselves, are done."""
    held = any(map(is_live, pods))
    if seen.status is JobStatus.SUCCEEDED and not held:
        return Decision(seen)
    decision = _of_store(facts, seen)
    if decision.observation.is_terminal and (held or not seen.is_terminal):
        return replace(decision, actions=(*decision.actions, ReleasePods()))
    return decision


def _fallback(facts: Facts, choice: Choice, seen: JobObservation) -> JobObservation | Decision:
    """Observe a job with several accelerators, or decide to move to another accelerator if it is time."""
    if seen.status is JobStatus.RUNNING:
        return replace(seen, message=f"{seen.message}, on {choice.accelerator}")
    if not choice.later or seen.status is JobStatus.SUCCEEDED:
        return seen
    return _after_the_end(facts, choice, seen) if seen.is_terminal else _in_time(facts, choice, seen)


def _in_time(facts: Facts, choice: Choice, seen: JobObservation) -> JobObservation | Decision:
    """Move a job without a node on when its time is up, or at once if it can never have one."""
    if seen.reason not in _NO_CAPACITY or seen.attempt:
        return seen
    due = (seen.created_at or 0.0) + choice.capacity_timeout
    if seen.failure is None and facts.now < due:
        return replace(seen, moves_on_at=due)
    manifest = _possible(choice, _known(facts.later_refusals))
    if manifest is None or _known(facts.cancel_marker):
        return seen
    return Decision(seen, (_move_on(facts, choice, seen, manifest),))


def _after_the_end(facts: Facts, choice: Choice, seen: JobObservation) -> JobObservation | Decision:
    """Move on from a Job whose pod came too late and ran nothing: whoever passed it over has died."""
    if not _known(facts.passed_over):
        return seen
    if _known(facts.cancel_marker):
        text = "it was cancelled before it started"
        failure = wire.Failure(wire.FailureClass.CANCELLED, text, "start")
        return replace(seen, status=JobStatus.CANCELLED, message=text, failure=failure)
    manifest = _possible(choice, _known(facts.later_refusals)) or choice.later[0]
    text = f"{choice.accelerator} was given up; {accelerator_of(manifest)} is next"
    waits = JobObservation(JobStatus.PENDING, MOVED_ON, text, created_at=seen.created_at)
    return Decision(waits, (_move_on(facts, choice, seen, manifest),))


def _possible(choice: Choice, refusals: Mapping[int, str]) -> dict[str, Any] | None:
    """Return the Job for the next accelerator that can be provided, None if there is none."""
    return next((each for each in choice.later if choice_number(each) not in refusals), None)


def _move_on(facts: Facts, choice: Choice, seen: JobObservation, manifest: dict[str, Any]) -> MoveOn:
    number = choice_number(manifest)
    later = [each for each in choice.later if choice_number(each) > number]
    text = f"no capacity for {choice.accelerator}: {seen.message}; trying {accelerator_of(manifest)}"
    given_up = tuple(_given_up_for(number, choice, seen, _known(facts.later_refusals)))
    carried = _in_rest_of_timeout(carrying(manifest, later), facts)
    return MoveOn(given_up, carried, text, facts.now)


def _given_up_for(
    number: int, choice: Choice, seen: JobObservation, refusals: Mapping[int, str]
) -> Iterator[GivenUp]:
    yield GivenUp(choice.number, choice.accelerator, seen.message)
    for manifest in choice.later:
        if (passed := choice_number(manifest)) < number:
            yield GivenUp(passed, accelerator_of(manifest), refusals.get(passed, "it could not be had"))


def _in_rest_of_timeout(manifest: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """Shorten a Job's timeout to the rest of the job's timeout, which counts from submission."""
    limit = manifest["spec"].get("activeDeadlineSeconds")
    if limit is None:
        return manifest
    used = facts.now - datetime.fromisoformat(facts.created_at).timestamp()
    spec = {**manifest["spec"], "activeDeadlineSeconds": max(1, round(limit - used))}
    return {**manifest, "spec": spec}
