"""What happens to a component of Airflow, and thereby to every task that is under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery_airflow import WORKERS
from demo_processes import free_ports, start

from matrix.actions import mark_failed
from matrix.cells import BY_TRIGGER
from matrix.stage import Stage

_SECONDS = 120.0
_NOTICES = 8.0
"""Seconds within which a triggerer that wakes up has noticed what it lost."""
Disturbance = Callable[[Any, Sequence[Stage]], None]


def end(airflow: Any, name: str, number: signal.Signals = signal.SIGTERM) -> None:
    """End a component by a signal. One that does not follow within half a minute is killed."""
    process = airflow.processes.pop(name)
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def begin(airflow: Any, name: str) -> None:
    """Start it, and wait until Airflow calls itself healthy."""
    airflow.start_component(name)
    airflow.until(lambda: not airflow.api.unhealthy(), _SECONDS, f"Airflow to be healthy with another {name}")


def triggerer(number: signal.Signals) -> Disturbance:
    """End the triggerer, let jobs end meanwhile, start another."""

    def restart(airflow: Any, stages: Sequence[Stage]) -> None:
        end(airflow, "triggerer", number)
        for stage in stages:
            stage.drop("hold")
        _finish_unwatched(stages)
        begin(airflow, "triggerer")

    return restart


def upgrade(change: str) -> Disturbance:
    """End the triggerer, and let its triggers be those of another version of the provider, by a statement."""

    def restart(airflow: Any, stages: Sequence[Stage]) -> None:
        end(airflow, "triggerer")
        _finish_unwatched(stages)
        dags = {stage.dag_id for stage in stages}
        subprocess.run(
            [sys.executable, "-c", _CHANGE_TRIGGERS.format(dags=dags, change=change)],
            check=True,
            env=airflow.environment,
            capture_output=True,
        )
        begin(airflow, "triggerer")

    return restart


_CHANGE_TRIGGERS = """
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from sqlalchemy import select

with create_session() as session:
    of_tasks = select(Trigger).join(TaskInstance, TaskInstance.trigger_id == Trigger.id)
    for trigger in session.scalars(of_tasks.where(TaskInstance.dag_id.in_({dags}))):
        {change}
"""


def scheduler(number: signal.Signals) -> Disturbance:
    """End the scheduler and with it LocalExecutor, whose workers may be in the middle of something.

    Workers that outlived a killed scheduler would keep its connection to PostgreSQL open, and its locks.
    """

    def restart(airflow: Any, stages: Sequence[Stage]) -> None:
        if number == signal.SIGKILL:  # as a container ends: its workers go too
            os.killpg(airflow.processes["scheduler"].pid, number)
        airflow.processes["scheduler"].send_signal(number)
        for stage in stages:
            stage.drop("stop")  # it waits for its workers
        end(airflow, "scheduler", number)
        begin(airflow, "scheduler")

    return restart


def api_server(airflow: Any, stages: Sequence[Stage]) -> None:
    """Restart it; workers are released while it is away."""
    end(airflow, "api-server")
    for stage in stages:
        stage.drop("stop")
    begin(airflow, "api-server")


def celery_workers(number: signal.Signals) -> Disturbance:
    """End both Celery workers, which wait for their tasks after a SIGTERM, and start others."""

    def restart(airflow: Any, stages: Sequence[Stage]) -> None:
        if number == signal.SIGTERM:
            for name in WORKERS:
                airflow.processes[name].send_signal(number)
            for stage in stages:
                stage.drop("stop")
        for name in WORKERS:
            airflow.end_worker(name, number)
        for stage in stages:
            stage.drop("stop")
        airflow.start_workers()

    return restart


def stall(airflow: Any, stages: Sequence[Stage]) -> None:
    """The triggerer stands still until a second one has its triggers; then it wakes up and finds out."""
    first = airflow.processes["triggerer"].pid
    waiting = [stage for stage in stages if stage.state() == "deferred"]
    before = {stage.dag_id: _triggerer_of(stage) for stage in waiting}
    os.killpg(first, signal.SIGSTOP)
    try:
        _start_second(airflow)
        for stage in waiting:
            stage.until(
                lambda stage=stage: _triggerer_of(stage) not in (None, before[stage.dag_id]),
                "another triggerer",
            )
        _finish_unwatched(stages)
    finally:
        os.killpg(first, signal.SIGCONT)
    woken = time.monotonic()
    airflow.until(lambda: time.monotonic() - woken > _NOTICES, _SECONDS, "the first triggerer to notice")
    end(airflow, "triggerer")
    airflow.processes["triggerer"] = airflow.processes.pop("triggerer-2")


def unseen(airflow: Any, stages: Sequence[Stage]) -> None:
    """Tasks are marked failed while nobody is there to see it."""
    end(airflow, "triggerer")
    for stage in stages:
        mark_failed(stage)
    begin(airflow, "triggerer")


DISTURB: dict[str, Disturbance] = {
    "triggerer_stopped": triggerer(signal.SIGTERM),
    "triggerer_killed": triggerer(signal.SIGKILL),
    "triggerer_stalled": stall,
    "triggerer_upgraded": upgrade("trigger.classpath = 'airflow_provider.triggers.earlier.JobTrigger'"),
    "triggerer_upgraded_arguments": upgrade("trigger.kwargs = dict(trigger.kwargs, earlier=1)"),
    "scheduler_stopped": scheduler(signal.SIGTERM),
    "scheduler_killed": scheduler(signal.SIGKILL),
    "celery_stopped": celery_workers(signal.SIGTERM),
    "celery_killed": celery_workers(signal.SIGKILL),
    "api_restarted": api_server,
    "unseen": unseen,
}
DISTURB |= {f"{name}{BY_TRIGGER}": disturb for name, disturb in DISTURB.items()}
"""What happens to all tasks that are under way, by the action's name."""


def _start_second(airflow: Any) -> None:
    port = {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_ports(1)[0])}
    command = list(airflow.processes["triggerer"].args)
    second = start(airflow.home, "triggerer-2", command, {**airflow.environment, **port})
    airflow.processes["triggerer-2"] = second


def _triggerer_of(stage: Stage) -> int | None:
    instance = stage.instance
    trigger = instance["trigger"] if instance else None
    return trigger["triggerer_id"] if trigger else None


def _finish_unwatched(stages: Sequence[Stage]) -> None:
    """Jobs end while their triggerer is away, where that is the cell's phase."""
    for stage in stages:
        if stage.cell.ends_unwatched:
            stage.jobs.put("go")
            stage.until(lambda stage=stage: stage.jobs.states() == ["SUCCEEDED"], "its job to end")
