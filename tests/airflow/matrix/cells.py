"""The table: which actions there are, which phases, and what must come of each pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """How far a task's job has come."""

    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished, not collected"


class TriggerPhase(StrEnum):
    """How far the end of a task has come that its trigger ends, not a worker (ADR 0065)."""

    RUNNING = "running"
    FINISHED = "finished, not collected"
    PUSHED = "pushed, not ended"


HELD_TRIGGER = (TriggerPhase.FINISHED, TriggerPhase.PUSHED)
STEPS = (
    "before the payload is stored",
    "before the handle is stored",
    "before the job is created",
    "when the job has just been created",
    "while it waits for the job",
    "before the outcome is read",
    "after the outcome is read",
    "when its deferral, or its end, is accepted",
)
"""Where a worker can be stopped."""

CREATING, WAITING, COLLECTING, COLLECTED, REPORTED = (STEPS[place] for place in (2, 4, 5, 6, 7))


class Then(StrEnum):
    """What must come of it."""

    KILLED = "nothing of the job lives, and nobody starts another"
    AGAIN = "the function runs again, after the earlier execution has ended"
    GOES_ON = "the one execution goes on and its result arrives"


@dataclass(frozen=True)
class Action:
    """Something that happens to a task, what must come of it, and the DAG it needs.

    `states`: in which of Airflow's states the task may end. `disturbs`: it hits a component of Airflow and
    thereby every task, so that only one such action is under way at a time.
    """

    name: str
    title: str
    then: Then
    states: tuple[str, ...] = ("success",)
    phases: tuple[str, ...] = tuple(Phase)
    disturbs: bool = False
    dag: dict[str, Any] = field(default_factory=dict)


_HELD = {"deferrable": False}
_CANCEL = "its job is cancelled, as `kinetic jobs cancel` does"
_DEFERRED = ("queued", "running", Phase.FINISHED)
ACTIONS = (
    Action("clear", "clear", Then.AGAIN),
    Action("clear_held", "clear, a worker waiting (`deferrable=False`)", Then.AGAIN, dag=_HELD),
    Action("mark_success", "mark success", Then.KILLED),
    Action("mark_failed", "mark failed", Then.KILLED, ("failed",)),
    Action("mark_failed_held", "mark failed, a worker waiting", Then.KILLED, ("failed",), dag=_HELD),
    Action("fail_run", "fail the run", Then.KILLED, ("failed",)),
    Action("delete_run", "fail the run and delete it", Then.KILLED, ("gone",)),
    Action("task_timeout", "`execution_timeout`", Then.KILLED, ("failed",), dag={"execution_timeout": 75}),
    Action("run_timeout", "`dagrun_timeout`", Then.KILLED, ("skipped", "failed"), dag={"dagrun_timeout": 90}),
    Action("pause", "pause the DAG, later unpause it", Then.GOES_ON),
    Action("backfill", "backfill, cancelled meanwhile", Then.GOES_ON, dag={"schedule": "0 0 1 1 *"}),
    Action(
        "retry", "the worker's leg raises, `retries=1`", Then.GOES_ON, phases=("submitting", Phase.FINISHED)
    ),
    Action("retry_job", "the function raises, `retries=1`", Then.AGAIN, phases=("running",)),
    Action("edit", "the DAG's file is edited", Then.GOES_ON),
    Action("worker_killed", "kill -9", Then.GOES_ON, phases=STEPS),
    Action("worker_told", "SIGTERM", Then.GOES_ON, phases=STEPS),
    Action("worker_told_held", "SIGTERM, `deferrable=False`", Then.GOES_ON, phases=STEPS, dag=_HELD),
    Action("drained", "its pod is drained: SIGTERM to its supervisor, kill -9", Then.GOES_ON, phases=STEPS),
    Action("triggerer_stopped", "SIGTERM to the triggerer, another is started", Then.GOES_ON, disturbs=True),
    Action("triggerer_killed", "kill -9 of the triggerer, another is started", Then.GOES_ON, disturbs=True),
    Action(
        "triggerer_stalled",
        "the triggerer stalls, a second takes over, the first wakes up",
        Then.GOES_ON,
        disturbs=True,
    ),
    Action(
        "triggerer_upgraded",
        "upgrade: the class of its trigger is gone",
        Then.GOES_ON,
        disturbs=True,
        phases=_DEFERRED,
    ),
    Action(
        "triggerer_upgraded_arguments",
        "upgrade: its trigger takes other arguments",
        Then.GOES_ON,
        disturbs=True,
        phases=_DEFERRED,
    ),
    Action("scheduler_stopped", "SIGTERM to the scheduler, another is started", Then.GOES_ON, disturbs=True),
    Action("scheduler_killed", "kill -9 of the scheduler, another is started", Then.GOES_ON, disturbs=True),
    Action("api_restarted", "Airflow's API server is restarted", Then.GOES_ON, disturbs=True),
    Action(
        "unseen",
        "mark failed while no triggerer is alive",
        Then.KILLED,
        ("failed",),
        disturbs=True,
        phases=("queued", "running"),
    ),
)
HEARTBEAT_TIMEOUT = 45
"""Seconds after which Airflow gives up on a task whose worker is dead, and of which nobody told it."""
BY_TRIGGER = "_by_trigger"
_ENDED_BY_TRIGGER = {"ended_by": "trigger"}
_DEFERRING = (*STEPS[:4], REPORTED)


def _by_trigger(name: str, title: str, then: Then, *states: str, **fields: Any) -> Action:
    fields = {"phases": tuple(TriggerPhase), **fields}
    return Action(f"{name}{BY_TRIGGER}", title, then, states or ("success",), dag=_ENDED_BY_TRIGGER, **fields)


ENDED_BY_TRIGGER = (
    _by_trigger("clear", "clear", Then.AGAIN),
    _by_trigger("mark_success", "mark success", Then.KILLED),
    _by_trigger("mark_failed", "mark failed", Then.KILLED, "failed"),
    _by_trigger("fail_run", "fail the run", Then.KILLED, "failed"),
    _by_trigger("cancel", _CANCEL, Then.KILLED, "failed", phases=(TriggerPhase.RUNNING,)),
    _by_trigger("worker_told", "SIGTERM to the worker that defers", Then.GOES_ON, phases=_DEFERRING),
    _by_trigger("worker_killed", "kill -9 of the worker that defers", Then.GOES_ON, phases=_DEFERRING),
    _by_trigger(
        "triggerer_stopped", "SIGTERM to the triggerer, another is started", Then.GOES_ON, disturbs=True
    ),
    _by_trigger(
        "triggerer_killed", "kill -9 of the triggerer, another is started", Then.GOES_ON, disturbs=True
    ),
    _by_trigger(
        "scheduler_stopped", "SIGTERM to the scheduler, another is started", Then.GOES_ON, disturbs=True
    ),
    _by_trigger(
        "scheduler_killed", "kill -9 of the scheduler, another is started", Then.GOES_ON, disturbs=True
    ),
)
"""What may happen while a trigger ends its task. All other tasks of the table are ended by a worker."""

CELERY = (
    Action(
        "celery_stopped",
        "SIGTERM to its Celery worker (warm shutdown), another is started",
        Then.GOES_ON,
        disturbs=True,
        phases=STEPS,
    ),
    Action(
        "celery_killed",
        "kill -9 of its Celery worker and supervisor, another is started",
        Then.GOES_ON,
        disturbs=True,
        phases=STEPS,
    ),
)
"""What may happen where workers of Celery run the tasks: to both of them."""
KUBERNETES = (
    Action("pod_deleted", "its worker's pod is deleted: SIGTERM, soon kill -9", Then.GOES_ON, phases=STEPS),
    Action(
        "pod_evicted",
        "its worker's node is drained: the pod is evicted, the node takes no other meanwhile",
        Then.GOES_ON,
        phases=STEPS,
    ),
)
"""What may happen where workers are pods: to the task's own."""
OF_EXECUTOR = {"celery": CELERY, "kubernetes": KUBERNETES}
"""What may happen under one executor only, by the name that `MATRIX_EXECUTOR` has for it."""
_OFTEN = ("clear", "mark_failed", "cancel", "worker_told", "triggerer_killed")
_AWAY = {"seconds": 20}
_STORED = (STEPS[0], Phase.FINISHED)
OUTAGES = (
    Action("store_lost", "the store is away", Then.GOES_ON, phases=_STORED, dag=_AWAY),
    Action("store_lost_held", "the same", Then.GOES_ON, phases=_STORED, dag={**_AWAY, **_HELD}),
)
"""Of jobs of the local backend, whose store is a directory of their own; no part of the table."""
BY_NAME = {action.name: action for action in (*ACTIONS, *ENDED_BY_TRIGGER, *CELERY, *KUBERNETES, *OUTAGES)}


@dataclass(frozen=True)
class Cell:
    """One action in one phase; for the worker's end, the step it is at."""

    action: Action
    phase: str

    @property
    def dag_id(self) -> str:
        return f"{self.action.name}-{''.join(c if c.isalnum() else '_' for c in self.phase)}"

    @property
    def is_ended_by_trigger(self) -> bool:
        """Its job's trigger ends the task, and no worker."""
        return "ended_by" in self.action.dag

    @property
    def holds_trigger(self) -> bool:
        """Its trigger is stopped on its way to the task's end."""
        return self.is_ended_by_trigger and self.phase in HELD_TRIGGER and not self.ends_unwatched

    @property
    def is_reporting(self) -> bool:
        """Its worker is stopped when it has told Airflow that the task is done, not merely deferred."""
        return self.phase == REPORTED and not self.action.dag.get("deferrable", True)

    @property
    def ends_unwatched(self) -> bool:
        """Its job ends while no triggerer is there, rather than before a worker that is stopped."""
        return self.action.name.startswith("triggerer") and self.phase == Phase.FINISHED

    @property
    def waits(self) -> int:
        """The seconds for which it does nothing but wait for a clock, its own or Airflow's."""
        if self.action.name == "drained":
            return HEARTBEAT_TIMEOUT
        clocks = ("seconds", "execution_timeout", "dagrun_timeout")
        return max(self.action.dag.get(clock, 0) for clock in clocks)

    @property
    def options(self) -> dict[str, Any]:
        """What the DAG's file needs to know."""
        return {
            "retries": int("retry" in self.action.name or self.action.then is Then.GOES_ON),
            **self.action.dag,
        }


def all_cells(*executors: str) -> Iterator[Cell]:
    """The whole table, with what may happen under these of `OF_EXECUTOR` only."""
    besides = (action for executor in executors for action in OF_EXECUTOR[executor])
    for action in (*ACTIONS, *ENDED_BY_TRIGGER, *besides):
        for phase in action.phases:
            yield Cell(action, str(phase))


def outages(seconds: float) -> Iterator[Cell]:
    """A job is being started, or has succeeded, and its store gives no answer for so long."""
    for action in OUTAGES:
        for phase in action.phases:
            yield Cell(replace(action, dag={**action.dag, "seconds": seconds}), str(phase))


def one_of_each() -> Iterator[Cell]:
    """One cell of every action: while its job runs, where that is a phase of it."""
    for action in ACTIONS:
        wanted = WAITING if action.phases == STEPS else "running"
        yield Cell(action, wanted if wanted in action.phases else str(action.phases[0]))


def while_a_trigger_ends() -> Iterator[Cell]:
    """A few cells of tasks that their trigger ends: those that come closest to its end."""
    for action in ENDED_BY_TRIGGER:
        if action.name.removesuffix(BY_TRIGGER) in _OFTEN:
            yield Cell(action, str(action.phases[-1]))
