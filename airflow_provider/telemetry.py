"""Metrics and spans of jobs, sent through Airflow's own stats and tracer to wherever Airflow's go.

Since 3.2 Airflow has one client of stats in the processes of tasks and another in the rest, each behind its
own module: a metric sent through the wrong one is lost silently.

Airflow sets the tracer up; where it does not trace, nothing is recorded. While a worker has the task, before
a deferral and after it, a span `worker.TASK` is the current one, below that of the try, `task_run.TASK`.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kinetic_core.job import JobObservation, JobStatus, Step, StepBegun
from kinetic_core.jobs.phases import Phase

if TYPE_CHECKING:
    from kinetic_core.jobs.warm import WorkerSummary

IN_TASKS = "airflow.sdk.observability.stats"
IN_TRIGGERS = "airflow.observability.stats"
"""Modules of Airflow, by the processes in which they are set up."""
_BEFORE_3_2 = "airflow.stats"


@dataclass(frozen=True)
class Metric:
    """Metric with its documentation. `kind` is counter, gauge or timer (Airflow sends milliseconds)."""

    name: str
    kind: str
    tags: tuple[str, ...]
    meaning: str


_TASK = ("dag_id", "task_id")
SUBMITTED = Metric("kinetic.job.submitted", "counter", (*_TASK, "accelerator"), "jobs that were started")
ADOPTED = Metric("kinetic.job.adopted", "counter", _TASK, "jobs found again instead of started twice")
SHIPPED = Metric(
    "kinetic.job.shipped_bytes", "counter", _TASK, "project, data and arguments of started jobs, in bytes"
)
FINISHED = Metric("kinetic.job.finished", "counter", (*_TASK, "state", "failure_class"), "jobs that ended")
FENCED = Metric("kinetic.job.fenced", "counter", _TASK, "pods turned away: another might have been alive")
PHASE = Metric("kinetic.job.phase.duration", "timer", (*_TASK, "phase"), "time in each phase of an ended job")
WAITING = Metric(
    "kinetic.jobs.waiting", "gauge", ("hostname", "reason"), "jobs of deferred tasks that wait, by cause"
)
RUNNING = Metric("kinetic.jobs.running", "gauge", ("hostname",), "jobs of deferred tasks that run")
RELISTS = Metric("kinetic.watch.relists", "counter", ("kind",), "watches that expired and began anew")

_PHASE = ("hostname", "accelerator", "phase")
WORKER_TIME = Metric("kinetic.worker.seconds", "counter", _PHASE, "time of warm workers, by phase")

METRICS = (SUBMITTED, ADOPTED, SHIPPED, FINISHED, FENCED, PHASE, WAITING, RUNNING, RELISTS, WORKER_TIME)


class Stats:
    """Stats of Airflow for processes of one kind: `Stats(IN_TASKS)` or `Stats(IN_TRIGGERS)`."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._client: Any = None

    def count(self, metric: Metric, tags: Mapping[str, str], amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            self._found.incr(metric.name, amount, tags=dict(tags))

    def set(self, metric: Metric, tags: Mapping[str, str], value: int) -> None:
        """Set a gauge."""
        self._found.gauge(metric.name, value, tags=dict(tags))

    def time(self, metric: Metric, tags: Mapping[str, str], seconds: float) -> None:
        """Record a duration in seconds."""
        self._found.timing(metric.name, timedelta(seconds=seconds), tags=dict(tags))

    @property
    def _found(self) -> Any:
        """Import Airflow's stats at first use, so that importing a DAG does not wait for them."""
        if self._client is None:
            self._client = _module(self._module)
        return self._client


def _module(name: str) -> ModuleType | Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module(_BEFORE_3_2).Stats


_State = tuple[JobStatus, str]


class StateBoard:
    """Last state of every watched job; a gauge is set whenever its number changes."""

    def __init__(self, stats: Stats, hostname: Callable[[], str]) -> None:
        """Start without jobs. `hostname` gives the tag of this triggerer, as in Airflow's own metrics."""
        self._stats, self._hostname = stats, hostname
        self._states: dict[object, _State] = {}
        self._numbers: Counter[_State] = Counter()
        self._lock = threading.Lock()

    def seen(self, watcher: object, observation: JobObservation) -> None:
        """Count a watcher's job under its state; a job that has ended is no longer counted."""
        if observation.is_terminal:
            self.gone(watcher)
            return
        is_running = observation.status is JobStatus.RUNNING
        self._move(watcher, (observation.status, "" if is_running else observation.reason or "unknown"))

    def gone(self, watcher: object) -> None:
        """Stop counting the job of a watcher that has ended."""
        self._move(watcher, None)

    def _move(self, watcher: object, state: _State | None) -> None:
        with self._lock:
            before = self._states.pop(watcher, None)
            if state is not None:
                self._states[watcher] = state
            if before == state:
                return
            for each, change in ((before, -1), (state, 1)):
                if each is not None:
                    self._numbers[each] += change
                    self._set(each, self._numbers[each])

    def _set(self, state: _State, number: int) -> None:
        tags = {"hostname": self._hostname()}
        if state[0] is JobStatus.RUNNING:
            self._stats.set(RUNNING, tags, number)
        else:
            self._stats.set(WAITING, {**tags, "reason": state[1]}, number)


class WorkerClock:
    """Time of the warm workers of places, counted at each look from the one before."""

    def __init__(
        self, stats: Stats, hostname: Callable[[], str], clock: Callable[[], float] = time.time
    ) -> None:
        """Count nothing yet. `hostname` gives the tag of this triggerer, as in Airflow's own metrics.

        `clock` gives Unix seconds, in which the starts of workers are told.
        """
        self._stats, self._hostname, self._clock = stats, hostname, clock
        self._looked: dict[str, float] = {}
        self._rest: dict[tuple[str, str], float] = {}
        """Parts of a second that were not counted yet, by accelerator and phase."""
        self._lock = threading.Lock()

    def seen(self, place: str, workers: Iterable[WorkerSummary]) -> None:
        """Count the time since the last look at this place for each worker that runs: `idle` or `calls`."""
        with self._lock:
            now = self._clock()
            before = self._looked.get(place, now)
            self._looked[place] = now
            for worker in workers:
                if worker.seen.status is JobStatus.RUNNING:
                    key = worker.accelerator, "idle" if worker.is_idle else "calls"
                    since = max(before, worker.seen.started_at or before)  # nobody may have looked for hours
                    self._rest[key] = self._rest.get(key, 0.0) + max(0.0, now - since)
            for (accelerator, phase), whole in self._rest.items():
                self._rest[accelerator, phase] = whole % 1
                tags = {"hostname": self._hostname(), "accelerator": accelerator, "phase": phase}
                self._stats.count(WORKER_TIME, tags, int(whole))


class Steps:
    """Spans of preparing a job, from its lines of progress, which are passed on."""

    def __init__(self, say: Callable[[str], None], tracer: trace.Tracer | None = None) -> None:
        self._say, self._tracer = say, tracer or _tracer()
        self._step: Step | None = None
        self._span: trace.Span = trace.INVALID_SPAN

    def __call__(self, text: str) -> None:
        self._say(text)
        if isinstance(text, StepBegun) and text.step is not self._step:
            self.close()
            self._step, self._span = text.step, self._tracer.start_span(f"kinetic.{text.step}")

    def close(self) -> None:
        """End the span of the last step."""
        self._span.end()


@contextmanager
def steps(say: Callable[[str], None]) -> Iterator[Steps]:
    """Make spans inside the block from a progress callback."""
    found = Steps(say)
    try:
        yield found
    finally:
        found.close()


def span(name: str) -> Any:
    """Return a context manager for a span of that name, below the current one."""
    return _tracer().start_as_current_span(f"kinetic.{name}")


def trace_environment() -> dict[str, str]:
    """Return the current span as variables (W3C) for another process; {} if nothing is recorded."""
    if not trace.get_current_span().is_recording():
        return {}
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def tell_phases(
    job_id: str,
    phases: Iterable[Phase],
    carrier: Mapping[str, str] | None = None,
    tracer: trace.Tracer | None = None,
) -> None:
    """Record spans of a job on its cluster: `wait` and `run` of each attempt, and the phases inside them.

    Their parent is the span that `carrier` (W3C) names, else the current one. For a deferred task, that is
    the span of its try, in whichever leg this is called.
    """
    tracer = tracer or _tracer()
    above = TraceContextTextMapPropagator().extract(carrier or {}, get_current())
    for (runs, attempt), group in itertools.groupby(phases, lambda each: (each.has_container, each.attempt)):
        parts = list(group)
        whole = Phase("run" if runs else "wait", attempt, parts[0].began, parts[-1].end - parts[0].began)
        parent = trace.set_span_in_context(_told(whole, job_id, tracer, above))
        for part in parts:
            _told(part, job_id, tracer, parent)


def _told(phase: Phase, job_id: str, tracer: trace.Tracer, parent: Context | None) -> trace.Span:
    attributes: dict[str, str | int] = {"kinetic.job_id": job_id, "kinetic.attempt": phase.attempt}
    made = tracer.start_span(
        f"kinetic.{phase.name}", parent, start_time=int(phase.began * 1e9), attributes=attributes
    )
    made.end(int(phase.end * 1e9))
    return made


def _tracer() -> trace.Tracer:
    return trace.get_tracer("airflow_provider")
