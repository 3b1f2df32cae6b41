"""Walking the table in a real Airflow: quiet actions several at a time, disturbing ones in turn."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from demo_airflow import AirflowTrouble, Answer, ComponentEnded, DemoAirflow
from demo_api import AirflowApi

from matrix.actions import DO, start_backfill
from matrix.cells import HEARTBEAT_TIMEOUT, Cell, Phase, Then
from matrix.disturbing import DISTURB
from matrix.places import LIVING, Place
from matrix.stage import PATIENCE, Stage, write_dags
from matrix.verdict import QUIET_SECONDS, Evidence, broken, sentence

AT_ONCE = int(os.environ.get("MATRIX_AT_ONCE", "10"))
"""Quiet cells that are walked at once."""
HOOKS = Path(__file__).parent / "triggerer"
"""Folder from which every component of Airflow imports what stops a triggerer."""
_REPEATS = 10
SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": "6",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
}
"""Airflow gives up on what is dead after minutes; nothing here depends on how many."""


class OneWriter(AirflowApi):
    """Changes one thing at a time, and again if the database was locked: with SQLite, several writers at once
    wait for each other until they give up."""

    _writing = threading.Lock()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        for _ in range(_REPEATS):
            try:
                with self._writing if method != "GET" else nullcontext():
                    return super().call(method, path, body)
            except HTTPError as error:
                if error.code != HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                time.sleep(1)
        return super().call(method, path, body)


class SupervisedAirflow(DemoAirflow):
    """Starts again what died by itself, as whatever runs Airflow in earnest does.

    Airflow 3.3 with SQLite, which locks no rows, loses its scheduler to a DAG run that is deleted while it is
    being scheduled.
    """

    _reviving = threading.Lock()

    def until(self, ask: Callable[[], Answer], timeout: float, what: str) -> Answer:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return super().until(ask, deadline - time.monotonic(), what)
            except ComponentEnded:
                if time.monotonic() > deadline:
                    raise
                self._revive()

    def _revive(self) -> None:
        with self._reviving:
            for name, process in list(self.processes.items()):
                if process.poll() is not None:
                    self.start_component(name)


_TROUBLE = (AirflowTrouble, HTTPError, URLError, LookupError)
"""What a cell may fail of without the others failing with it."""


def walk(
    home: Path,
    cells: Iterable[Cell],
    place: Place,
    say: Callable[[str], object] = print,
    *,
    together: bool = False,
    kind: Callable[..., SupervisedAirflow] = SupervisedAirflow,
    keep: Callable[[str, Evidence], object] = lambda *_: None,
) -> tuple[str, list[Evidence]]:
    """Walk these cells in an Airflow in `home`, with jobs in that place; its version, and what was seen.

    `together`: all disturbing actions, still in turn, hit the tasks of all of them. It is quicker, and says
    less of which one did what. `kind` makes the Airflow; `matrix.executors` has those of other executors.
    `keep` is called with Airflow's version and what was seen of a cell, as soon as it is, by one thread at a
    time.
    """
    keeping = threading.Lock()

    def told(seen: Evidence) -> Evidence:
        for line in broken(seen) or [sentence(seen)]:
            say(f"{seen.action} / {seen.phase}: {line}")
        with keeping:
            keep(version, seen)
        return seen

    table = list(cells)
    settings = {**SETTINGS, **place.prepare(table), "XDG_CACHE_HOME": str(home / "cache")}
    settings["MATRIX_CELLS"] = str(home / "cells")
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    if database := os.environ.get("MATRIX_DATABASE"):
        settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        settings["AIRFLOW__CORE__PARALLELISM"] = str(AT_ONCE)
    airflow = kind(home, write_dags(home, table, place), extra=settings)
    airflow.api = OneWriter(airflow.api.url)
    try:
        airflow.start(say)
        version = str(airflow.api.call("GET", "/version")["version"])
        quiet = [cell for cell in table if not cell.action.disturbs]
        quiet.sort(key=lambda cell: -cell.waits)  # what takes long begins first
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda cell: told(walk_quietly(Stage(airflow, cell, place))), quiet))
        loud = [cell for cell in table if cell.action.disturbs]
        groups = [loud] if together else [list(group) for _, group in groupby(loud, _name_of)]
        for group in filter(None, groups):
            stages = [Stage(airflow, cell, place) for cell in group]
            found += [told(seen) for seen in walk_loudly(airflow, stages)]
        return version, found
    finally:
        airflow.stop(patience=0)


def _name_of(cell: Cell) -> str:
    return cell.action.name


def walk_quietly(stage: Stage) -> Evidence:
    """One cell that concerns nobody else."""
    action = stage.cell.action.name
    try:
        if action == "backfill":
            start_backfill(stage)
        stage.start()
        stage.act(DO[action])
        settle(stage)
        return evidence(stage)
    except _TROUBLE as error:
        return evidence(stage, _shortly(error))
    finally:
        stage.release()


def walk_loudly(airflow: DemoAirflow, stages: Sequence[Stage]) -> list[Evidence]:
    """Cells whose actions concern everybody: all are begun, then the actions happen one after the other."""
    with ThreadPoolExecutor(len(stages)) as pool:
        troubles = list(pool.map(_started, stages))
        for name, group in groupby(stages, lambda stage: stage.cell.action.name):
            members = list(group)
            DISTURB[name](airflow, members)
            for stage in members:
                stage.acted = time.time()
        return list(pool.map(_settled, stages, troubles))


def _shortly(error: Exception) -> str:
    """What went wrong, without the place of logs that will be gone."""
    return f"{type(error).__name__}: {error}".partition("; logs:")[0]


def _started(stage: Stage) -> str:
    try:
        stage.start()
    except _TROUBLE as error:
        return _shortly(error)
    return ""


def _settled(stage: Stage, trouble: str) -> Evidence:
    try:
        if not trouble:
            settle(stage)
    except _TROUBLE as error:
        trouble = _shortly(error)
    finally:
        stage.release()
    return evidence(stage, trouble)


def settle(stage: Stage) -> None:
    """Wait until what must come has come, letting jobs end where they shall."""
    then, states = stage.cell.action.then, stage.cell.action.states
    if stage.has("stop") and then is not Then.GOES_ON:
        stage.until(lambda: stage.has("told") or not stage.is_held(), "its worker to be told")
    queued = stage.cell.phase == Phase.QUEUED
    if then is Then.AGAIN and queued:  # or the job of before would have its turn, and end well
        stage.until(lambda: stage.jobs.states()[0] not in LIVING, "its first job to be dead")
    if then is not Then.KILLED or not queued:
        stage.release()
    if then is Then.AGAIN:
        stage.jobs.drop("go")
        stage.until(lambda: any(at > stage.acted for at in stage.executions()), "to run again")
    if then is not Then.KILLED:
        stage.jobs.put("go")
    stage.until(lambda: stage.state() in states, f"to be {' or '.join(states)}")
    deadline = time.monotonic() + (QUIET_SECONDS if then is Then.KILLED else PATIENCE)
    while stage.jobs.living() and time.monotonic() < deadline:
        time.sleep(0.25)


def evidence(stage: Stage, trouble: str = "") -> Evidence:
    """What is to be seen now."""
    state = stage.state()
    instance = stage.instance if state not in ("gone", "unknown") else None
    return Evidence(
        action=stage.cell.action.name,
        phase=stage.cell.phase,
        state=state,
        tries=instance["try_number"] if instance else 0,
        executions=tuple(stage.executions()),
        overlaps=stage.jobs.overlaps(),
        acted=stage.acted,
        quiet=None if stage.jobs.living() else time.time() - stage.acted,
        value=stage.api.xcom(instance) if instance else None,
        outcomes=tuple(stage.jobs.states()),
        legs=stage.legs() if stage.cell.is_ended_by_trigger and instance else 0,
        note=stage.note,
        trouble=trouble,
    )
