"""What is measured, through Airflow's own stats: wherever its metrics go, these go.

Airflow keeps one client in the processes of tasks and another in the rest, each behind a module of its own
since 3.2: a metric sent through the wrong one is lost without a word.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

IN_TASKS = "airflow.sdk.observability.stats"
IN_TRIGGERS = "airflow.observability.stats"
"""Airflow's modules, by where they are set up."""
_BEFORE_3_2 = "airflow.stats"


@dataclass(frozen=True)
class Metric:
    """A metric as it is documented. `kind` is counter, gauge or timer (Airflow sends milliseconds)."""

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
FENCED = Metric("kinetic.job.fenced", "counter", _TASK, "pods turned away: another had claimed the attempt")
PHASE = Metric("kinetic.job.phase.duration", "timer", (*_TASK, "phase"), "time in each phase of an ended job")
WAITING = Metric(
    "kinetic.jobs.waiting", "gauge", ("hostname", "reason"), "jobs of deferred tasks that wait, by cause"
)
RUNNING = Metric("kinetic.jobs.running", "gauge", ("hostname",), "jobs of deferred tasks that run")
RELISTS = Metric("kinetic.watch.relists", "counter", ("kind",), "watches that expired and began anew")

METRICS = (SUBMITTED, ADOPTED, SHIPPED, FINISHED, FENCED, PHASE, WAITING, RUNNING, RELISTS)


class Stats:
    """Airflow's stats for the processes of one kind: `Stats(IN_TASKS)` or `Stats(IN_TRIGGERS)`."""

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
        """A duration."""
        self._found.timing(metric.name, timedelta(seconds=seconds), tags=dict(tags))

    @property
    def _found(self) -> Any:
        """Imported late: importing a DAG must not wait for it."""
        if self._client is None:
            self._client = _module(self._module)
        return self._client


def _module(name: str) -> ModuleType | Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module(_BEFORE_3_2).Stats
