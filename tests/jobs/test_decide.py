"""What is decided about a job, case by case: facts in, an observation and actions out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.fallbacks import carrying
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CAPACITY_TIMEOUT,
    CHOICE,
    CHUNK,
    CONTAINER,
    LEADER_WORKER_SET,
    NEEDS_CONTROL,
    QUEUE,
    WORKER,
)
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs.decide import (
    Control,
    EndJob,
    EndWorker,
    Fact,
    Facts,
    GivePod,
    MoveOn,
    RecordFailure,
    ReleasePods,
    Unknown,
    WorkerState,
    decide,
)
from tests.kubernetes.looks import AT, FAILED, ended, pod
from tests.kubernetes.looks import job as shown

MADE = 1767225600.0
"""`AT` in Unix seconds."""
NONE = JobObservation(JobStatus.NOT_FOUND, "NotFound", "neither a running job nor an outcome exists")
SUCCEEDED = JobObservation(JobStatus.SUCCEEDED, "Completed", "the outcome is committed")
KILLED = JobObservation(JobStatus.FAILED, "Failed", "mine")
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no TPU"}
COMPLETE = ("Complete", "", "")
REFUSED = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}


def job(*conditions: tuple[str, str, str], accelerator: str = "first", **annotations: str) -> dict[str, Any]:
    made = shown(*conditions)
    made["metadata"] |= {"labels": {}, "annotations": dict(annotations)}
    env = [{"name": "KINETIC_ACCELERATOR", "value": accelerator}]
    containers = [{"name": CONTAINER, "env": env}]
    return {**made, "spec": {"template": {"metadata": {}, "spec": {"containers": containers}}}}


def choices(number: int, names: list[str], *conditions: tuple[str, str, str]) -> dict[str, Any]:
    """The Job for one of several accelerators, which may wait 600 s for it; the later ones follow it."""

    def one(each: int) -> dict[str, Any]:
        made = job(*conditions, accelerator=names[each], **{CAPACITY_TIMEOUT: "600"})
        made["metadata"]["labels"][CHOICE] = str(each)
        made["spec"]["activeDeadlineSeconds"] = 3600
        return made

    return carrying(one(number), [one(each) for each in range(number + 1, len(names))])


def labelled(made: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {**made, "metadata": {**made["metadata"], "labels": labels}}


def queued(limit: int) -> dict[str, Any]:
    made = labelled(job(("Suspended", "", "")), **{QUEUE: "research"})
    return {**made, "spec": {**made["spec"], "suspend": True, "activeDeadlineSeconds": limit}}


def facts(made: dict[str, Any] | None, *pods: dict[str, Any], **known: Any) -> Facts:
    return Facts(MADE + known.pop("after", 1.0), AT, made, pods, **known)


WAITS = pod(conditions=[NO_NODE])
RUNS = pod({"running": {"startedAt": AT}})
LIVES = pod({"running": {"startedAt": AT}}, phase="Running")
SET = {LEADER_WORKER_SET: "true"}

CASES: dict[str, tuple[Facts, JobStatus, tuple[type, ...]]] = {
    "no Job, no outcome": (facts(None, outcome=NONE), JobStatus.NOT_FOUND, ()),
    "no Job, an outcome": (facts(None, outcome=SUCCEEDED), JobStatus.SUCCEEDED, ()),
    "no pod yet": (facts(job()), JobStatus.PENDING, ()),
    "running": (facts(job(), RUNS), JobStatus.RUNNING, ()),
    "complete": (facts(job(COMPLETE)), JobStatus.SUCCEEDED, ()),
    "failed, recorded": (facts(job(FAILED), outcome=KILLED), JobStatus.FAILED, ()),
    "failed, committed": (facts(job(FAILED), outcome=SUCCEEDED), JobStatus.SUCCEEDED, ()),
    "failed, unrecorded": (facts(job(FAILED), outcome=NONE), JobStatus.FAILED, (RecordFailure,)),
    "no node now": (facts(job(), WAITS, refusal=None), JobStatus.PENDING, ()),
    "no node ever": (
        facts(job(), WAITS, refusal="no", outcome=NONE),
        JobStatus.PENDING,
        (RecordFailure, EndJob),
    ),
    "no image": (facts(job(), pod(REFUSED), outcome=NONE), JobStatus.PENDING, (RecordFailure, EndJob)),
    "no image, recorded": (facts(job(), pod(REFUSED), outcome=KILLED), JobStatus.FAILED, (EndJob,)),
    "told to end": (
        facts(job(**{CANCELLED: "true"}), pod(ended(143)), outcome=NONE),
        JobStatus.RUNNING,
        (),
    ),
    "told to end, committed": (
        facts(job(**{CANCELLED: "true"}), RUNS, outcome=SUCCEEDED),
        JobStatus.SUCCEEDED,
        (),
    ),
    "queued": (facts(queued(600), after=10), JobStatus.PENDING, ()),
    "queued too long": (
        facts(queued(600), after=601, outcome=NONE),
        JobStatus.PENDING,
        (RecordFailure, EndJob),
    ),
    "input cancelled before its turn": (
        facts(labelled(job(), **{CHUNK: "0"}), outcome=KILLED),
        JobStatus.FAILED,
        (),
    ),
    "lost on this machine": (
        facts(job(FAILED, **{NEEDS_CONTROL: "true"}), outcome=NONE),
        JobStatus.FAILED,
        (Control, RecordFailure),
    ),
    "waits for a supervisor": (facts(job(**{NEEDS_CONTROL: "true"})), JobStatus.PENDING, (Control,)),
    "set runs": (facts(labelled(job(), **SET), LIVES, outcome=NONE), JobStatus.RUNNING, ()),
    "set has committed": (
        facts(labelled(job(), **SET), LIVES, outcome=SUCCEEDED),
        JobStatus.SUCCEEDED,
        (ReleasePods,),
    ),
    "set is past its deadline": (
        facts(labelled(job(FAILED), **SET), LIVES, outcome=NONE),
        JobStatus.FAILED,
        (RecordFailure, ReleasePods),
    ),
    "set has ended and gone": (facts(labelled(job(COMPLETE), **SET)), JobStatus.SUCCEEDED, ()),
    "first of two, in time": (facts(choices(0, ["a", "b"]), WAITS, refusal=None), JobStatus.PENDING, ()),
    "first of two, time is up": (
        facts(choices(0, ["a", "b"]), WAITS, refusal=None, after=601, later_refusals={}, cancel_marker=False),
        JobStatus.PENDING,
        (MoveOn,),
    ),
    "first of two, can never be had": (
        facts(choices(0, ["a", "b"]), WAITS, refusal="no", later_refusals={}, cancel_marker=False),
        JobStatus.PENDING,
        (MoveOn,),
    ),
    "neither can ever be had": (
        facts(choices(0, ["a", "b"]), WAITS, refusal="no", later_refusals={1: "no"}, outcome=NONE),
        JobStatus.PENDING,
        (RecordFailure, EndJob),
    ),
    "time is up, cancelled": (
        facts(choices(0, ["a", "b"]), WAITS, refusal=None, after=601, later_refusals={}, cancel_marker=True),
        JobStatus.PENDING,
        (),
    ),
    "the last waits on": (
        facts(choices(1, ["a", "b"]), WAITS, refusal=None, after=9999),
        JobStatus.PENDING,
        (),
    ),
    "a pod came too late": (
        facts(choices(0, ["a", "b"], FAILED), passed_over=True, cancel_marker=False, later_refusals={}),
        JobStatus.PENDING,
        (MoveOn,),
    ),
    "a pod came too late, cancelled": (
        facts(choices(0, ["a", "b"], FAILED), passed_over=True, cancel_marker=True, outcome=NONE),
        JobStatus.CANCELLED,
        (RecordFailure,),
    ),
    "the first of two failed": (
        facts(choices(0, ["a", "b"], FAILED), passed_over=False, outcome=NONE),
        JobStatus.FAILED,
        (RecordFailure,),
    ),
}


def lacking_fact(facts: Facts) -> Fact | None:
    try:
        decide(facts)
    except Unknown as exc:
        return exc.fact
    return None


@pytest.mark.parametrize("case", CASES)
def test_what_is_decided(case: str) -> None:
    known, status, actions = CASES[case]
    decision = decide(known)
    assert decision.observation.status is status
    assert tuple(map(type, decision.actions)) == actions


@pytest.mark.parametrize("case", CASES)
def test_a_fact_that_is_lacking_is_asked_for(case: str) -> None:
    """Read one after the other as they are asked for, they suffice, and nothing else is asked for."""
    known, _, _ = CASES[case]
    there = [fact for fact in Fact if not isinstance(getattr(known, fact.name.lower()), Fact)]
    asked, lacking = [], Facts(known.now, known.created_at, known.job)
    while fact := lacking_fact(lacking):
        asked.append(fact)
        lacking = replace(lacking, **{fact.name.lower(): getattr(known, fact.name.lower())})
        assert len(asked) <= len(there), f"{fact} is not needed in this case"
    assert set(asked) <= set(there)
    assert decide(lacking) == decide(known)


def test_a_job_that_can_never_run_says_so_before_anybody_ends_it() -> None:
    seen = decide(CASES["no node ever"][0]).observation
    assert seen.failure is not None
    assert (seen.reason, seen.message) == ("Unschedulable", "no")
    assert seen.failure.failure_class == wire.FailureClass.IMPOSSIBLE_REQUEST


def test_accelerators_nobody_has_are_given_up_with_the_first() -> None:
    made = choices(0, ["a", "b", "c"])
    (action,) = decide(
        facts(made, WAITS, refusal=None, after=601, later_refusals={1: "no pool"}, cancel_marker=False)
    ).actions
    assert isinstance(action, MoveOn)
    told = [(one.number, one.accelerator, one.why) for one in action.given_up]
    assert told == [(0, "a", "no TPU"), (1, "b", "no pool")]
    assert action.message == "no capacity for a: no TPU; trying c"
    assert action.manifest["spec"]["activeDeadlineSeconds"] == 3600 - 601


def call(*conditions: tuple[str, str, str], retries: int = 10) -> dict[str, Any]:
    """The Job of a call that was given to a worker."""
    made = labelled(job(*conditions), **{WORKER: "job-w"})
    made["spec"]["parallelism"] = 0
    variable = {"name": "KINETIC_INFRASTRUCTURE_RETRIES", "value": str(retries)}
    made["spec"]["template"]["spec"]["containers"][0]["env"].append(variable)
    return made


RUNS = WorkerState("job-w", JobObservation(JobStatus.RUNNING, "Running", "", started_at=MADE), is_over=False)
LOST = wire.Failure(wire.FailureClass.PREEMPTED, "killed", "execute")
DEAD = WorkerState("job-w", JobObservation(JobStatus.FAILED, "Failed", "killed", failure=LOST), is_over=True)
DYING = replace(DEAD, is_over=False)
STARTS = replace(RUNS, seen=JobObservation(JobStatus.PENDING, "Unschedulable", "no TPU"))


def test_a_call_is_what_its_worker_makes_of_it() -> None:
    seen = decide(facts(call(), outcome=NONE, claims=1, worker=RUNS)).observation
    assert (seen.status, seen.reason, seen.attempt) == (JobStatus.RUNNING, "OnWorker", 0)
    seen = decide(facts(call(), outcome=NONE, claims=3, worker=RUNS)).observation
    assert (seen.status, seen.attempt) == (JobStatus.RUNNING, 2)
    waits = decide(facts(call(), outcome=NONE, claims=0, worker=STARTS, after=9999.0))
    assert (waits.observation.status, waits.observation.reason) == (JobStatus.PENDING, "Unschedulable")
    assert waits.actions == ()
    about_to = decide(facts(call(), outcome=NONE, claims=0, worker=RUNS))
    assert (about_to.observation.status, about_to.actions) == (JobStatus.PENDING, ())


def test_the_outcome_of_a_call_ends_its_job() -> None:
    decision = decide(facts(call(), outcome=SUCCEEDED))
    assert (decision.observation.status, decision.actions) == (JobStatus.SUCCEEDED, (ReleasePods(),))
    assert decide(facts(call(COMPLETE), outcome=SUCCEEDED)).actions == ()


def test_a_pod_is_given_when_the_worker_is_dead_only() -> None:
    late = {"after": 9999.0, "outcome": NONE}
    assert decide(facts(call(), **late, claims=0, worker=RUNS)).actions == (EndWorker("job-w"),)
    for claims in (0, 1):
        dying = decide(facts(call(), **late, claims=claims, worker=DYING))
        assert (dying.observation.is_terminal, dying.actions) == (False, ())
        assert decide(facts(call(), **late, claims=claims, worker=DEAD)).actions == (GivePod(claims),)


def test_a_call_that_may_not_be_repeated_fails_with_its_worker() -> None:
    decision = decide(facts(call(retries=0), outcome=NONE, claims=1, worker=DEAD))
    record, release = decision.actions
    assert isinstance(record, RecordFailure)
    assert (record.failure.failure_class, release) == (wire.FailureClass.PREEMPTED, ReleasePods())
    assert decide(facts(call(retries=0), outcome=NONE, claims=0, worker=DEAD)).actions == (GivePod(0),)


def test_a_worker_that_can_never_run_ends_its_call() -> None:
    failure = wire.Failure(wire.FailureClass.IMPOSSIBLE_REQUEST, "no such TPU", "scheduling")
    never = replace(STARTS, seen=replace(STARTS.seen, failure=failure))
    actions = decide(facts(call(), outcome=NONE, claims=0, worker=never)).actions
    assert actions == (RecordFailure(failure), EndJob(), EndWorker("job-w"))


def test_a_worker_may_come_a_moment_after_its_call() -> None:
    absent = replace(DEAD, seen=JobObservation(JobStatus.NOT_FOUND, "NotFound", ""))
    assert decide(facts(call(), outcome=NONE, claims=0, worker=absent)).actions == ()
    later = facts(call(), outcome=NONE, claims=0, worker=absent, after=60.0)
    assert decide(later).actions == (GivePod(0),)


def test_a_deadline_ends_a_call_when_its_worker_has_stopped() -> None:
    over = ("Failed", "DeadlineExceeded", "too long")
    seen = decide(facts(call(over), outcome=NONE, claims=1, worker=RUNS))
    assert (seen.observation.status, seen.actions) == (JobStatus.RUNNING, ())
    for claims, worker in ((0, RUNS), (1, DEAD)):
        (action,) = decide(facts(call(over), outcome=NONE, claims=claims, worker=worker)).actions
        assert isinstance(action, RecordFailure)
