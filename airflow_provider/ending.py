"""End of a task whose job has ended: by its trigger, or by one more leg in a worker (ADR 0065).

The first leg knows the task and decides; what the trigger needs for its part travels in its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Self

from airflow_provider.access import Access
from airflow_provider.records import JobRecord, evidence, finished
from airflow_provider.task_logs import Cursor, LogTail, RemoteLog, describe
from airflow_provider.xcom import read_plain_value
from kinetic_core.backends.base import Backend
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.collect import Outcome, StoredParts, collect, result_reference
from kinetic_core.jobs.references import ResultReference

SUCCESS, FAILED = "success", "failed"
MOST_LINES = 100
"""Lines of a job's log that a trigger shows at the end; each takes time of the triggerer's event loop."""


@dataclass(frozen=True)
class Installation:
    """Facts about an Airflow on which it depends who ends a task.

    `listens`: the states of a task for which a listener, for instance that of OpenLineage, is installed.
    """

    listens: frozenset[str] = frozenset()
    has_own_xcoms: bool = False
    is_traced: bool = False
    clears_task_state: bool = False

    @classmethod
    def here(cls) -> Self:
        """Return the facts about the Airflow of this worker."""
        from airflow.sdk.bases.xcom import BaseXCom
        from airflow.sdk.execution_time.xcom import XCom

        from airflow_provider.airflow_sdk import conf

        hooks = _listeners().hook
        return cls(
            listens=frozenset(
                state
                for state in (SUCCESS, FAILED)
                if getattr(hooks, f"on_task_instance_{state}").get_hookimpls()
            ),
            has_own_xcoms=XCom is not BaseXCom,
            is_traced=conf.getboolean("traces", "otel_on", fallback=False),
            clears_task_state=conf.getboolean("state_store", "clear_on_success", fallback=False),
        )


def _listeners() -> Any:
    try:
        module = import_module("airflow.sdk.listener")
    except ModuleNotFoundError:  # before 3.2
        module = import_module("airflow.listeners.listener")
    return module.get_listener_manager()


def needs_worker(task: Any, ti: Any, airflow: Installation) -> Iterator[tuple[str, str]]:
    """Yield the states that only a worker can give a task, each with the reason (ADR 0065).

    `task` and `ti` are the operator and the task instance of the leg that is about to defer.
    """
    is_mapped = ti.map_index is not None and ti.map_index >= 0
    for state in (SUCCESS, FAILED):
        if state in airflow.listens:
            yield state, "a listener, such as OpenLineage's, waits for it in a worker"
        if airflow.is_traced:
            yield state, "Airflow closes the span of a try when a worker ends it"
        if getattr(task, f"on_{state if state == SUCCESS else 'failure'}_callback", None):
            yield state, "its callback gets the context of a worker"

    if task.outlets:
        yield SUCCESS, "its outlets become asset events"
    if getattr(task, "multiple_outputs", False):
        yield SUCCESS, "multiple_outputs"
    if not is_mapped and any(True for _ in task.iter_mapped_dependants()):
        yield SUCCESS, "a task expands over its value"
    if getattr(task, "returns_dag_result", False):
        yield SUCCESS, "its value is the DAG's result"
    if getattr(task, "_post_execute_hook", None) or _overrides(task, "post_execute"):
        yield SUCCESS, "post_execute"
    if airflow.has_own_xcoms:
        yield SUCCESS, "[core] xcom_backend is a class of its own"
    if airflow.clears_task_state:
        yield SUCCESS, "[state_store] clear_on_success"

    if ti.try_number <= ti.max_tries:
        yield FAILED, "retries are left, whose rules a worker applies"
    if getattr(task, "email", None) and getattr(task, "email_on_failure", True):
        yield FAILED, "email_on_failure"
    if getattr(getattr(task, "dag", None), "fail_fast", False):
        yield FAILED, "fail_fast"


def _overrides(task: Any, name: str) -> bool:
    """Return whether a class of the task's own, not Airflow's, defines the method."""
    defined = next(each for each in type(task).__mro__ if name in vars(each))
    return not defined.__module__.startswith(("airflow.sdk.", "airflow.models."))


@dataclass(frozen=True)
class Ending:
    """Part of a trigger in the end of its task: the states it may give it, and what it reports of it.

    `run_began` and `try_number` are those of the try that started the job. `name` is that of the instance of
    a mapped task. `pushes` says whether the value becomes an XCom, `signs` whether the triggerer may sign a
    reference to it: a team's secret is for its own workers. `log` is the URI of the task's log, to which the
    job's pods write, "" if they do not.
    """

    states: tuple[str, ...]
    run_began: str
    try_number: int
    name: str = ""
    pushes: bool = True
    signs: bool = True
    log: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for a trigger's arguments."""
        return asdict(self) | {"states": list(self.states)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict()`. Raises TypeError for fields of another version."""
        return cls(**{**fields, "states": tuple(fields["states"])})


class NeedsWorker(Exception):
    """Only a worker can end this task; the text says why."""


@dataclass(frozen=True)
class End:
    """How a trigger ends its task: a state, XCom values, and lines for its log."""

    state: str
    record: JobRecord
    fenced: int
    lines: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    value: Any = None
    reference: ResultReference | None = field(default=None)
    """Reference, not yet signed, to a value that XCom cannot carry."""


def end_of(
    backend: Backend,
    reference: JobReference,
    observation: JobObservation,
    ending: Ending,
    cursor: Cursor,
    access: Access,
) -> End:
    """Collect the outcome of a job that has ended, and return how its task ends. Unpickles nothing.

    Raises NeedsWorker, and as `collect` does; then a worker collects it again, and says what is wrong.
    """
    outcome = collect(backend, reference, allow_pickle=False)
    state = SUCCESS if outcome.succeeded else FAILED
    if state not in ending.states:
        raise NeedsWorker(f"its trigger may not make it {state!r}")
    tail = LogTail(backend, reference, cursor, RemoteLog(ending.log) if ending.log else None)
    lines = tail.short_rest(observation.attempt, MOST_LINES, outcome.log_size)
    if lines is None:
        raise NeedsWorker(f"more than {MOST_LINES} lines of its log are to be shown")
    value, referred = None, None
    if outcome.succeeded and ending.pushes:
        value, referred = _value(reference, outcome)
    if referred is not None and not ending.signs:
        raise NeedsWorker("a worker of its team signs the reference to its value")
    record, fenced = finished(
        backend, reference, observation, outcome, ending.run_began, ending.try_number, access
    )
    return End(
        state=state,
        record=record,
        fenced=fenced,
        lines=(*lines, describe(reference, observation)),
        evidence=() if outcome.succeeded else tuple(evidence(outcome, ending.name)),
        value=value,
        reference=referred,
    )


def _value(reference: JobReference, outcome: Outcome) -> tuple[Any, ResultReference | None]:
    """Return a plain value, or a reference to any other."""
    if outcome.codec == "typed" and isinstance(outcome.parts, StoredParts):
        raise NeedsWorker("its value is large")
    try:
        is_plain, value = read_plain_value(outcome)
    except ImportError as error:
        raise NeedsWorker(f"its value cannot be read here: {error}") from error
    if is_plain:
        return value, None
    if not outcome.verified:
        raise NeedsWorker("its outcome cannot be verified")
    return None, result_reference(reference, outcome)
