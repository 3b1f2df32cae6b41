"""One cell's place: its folder, its DAG run, and what can be seen of its task and its jobs."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from demo_airflow import AirflowTrouble

from matrix.cells import COLLECTED, COLLECTING, CREATING, STEPS, Cell, Phase
from matrix.places import Place

DAGS = Path(__file__).parent / "dags"
PATIENCE = 900.0
"""Seconds until a cell is where it should be; many share one machine, which may be busy with others."""


def write_dags(home: Path, cells: Iterable[Cell], place: Place) -> Path:
    """The DAGs folder of these cells. Those whose file is edited get a project of their own."""
    projects: dict[str, dict[str, Any]] = {}
    for cell in cells:
        name = cell.dag_id if cell.action.name == "edit" else "table"
        projects.setdefault(name, {})[cell.dag_id] = {**cell.options, "job": place.options(cell)}
        (home / "cells" / cell.dag_id).mkdir(parents=True)
    for name, dags in projects.items():
        folder = home / "dags" / name
        shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "pyproject.toml").write_text("[project]\nname = 'matrix'\nversion = '0'\n")
        table = {"folder": str(home / "cells"), "data": place.data, "steps": place.steps, "dags": dags}
        (folder / "cells.json").write_text(json.dumps(table))
        (folder / "cells.py").rename(folder / f"cells_{name.replace('-', '_')}.py")
    return home / "dags"


class Stage:
    """A cell in a running Airflow, and its jobs."""

    def __init__(self, airflow: Any, cell: Cell, place: Place) -> None:
        self.airflow, self.api, self.cell = airflow, airflow.api, cell
        self.dag_id = cell.dag_id
        self.folder = airflow.home / "cells" / cell.dag_id
        self.jobs = place.jobs(cell, self.folder)
        self.run_id = ""
        self.acted = 0.0
        self.note = ""

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def put(self, name: str, text: str = "") -> None:
        """Make a file that the worker looks for."""
        (self.folder / name).write_text(text)

    def drop(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def until(self, ask: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        return self.airflow.until(ask, seconds, f"{self.dag_id}: {what}")

    def start(self) -> None:
        """Start the DAG run and return when its task is in the cell's phase."""
        phase = self.cell.phase
        self._set_up()
        if not self.run_id:
            self.until(lambda: self.api.find(f"/dags/{self.dag_id}"), "to be parsed")
            self.run_id = self.api.run(self.dag_id)
        if phase == Phase.SUBMITTING or (phase in STEPS and phase != COLLECTING):
            self._reach(lambda: self.has("reached"), phase)
            return
        self._reach(self.jobs.living if phase == Phase.QUEUED else self.executions, "its job")
        if self.cell.options.get("deferrable", True):
            self._reach(lambda: self.state() == "deferred" and self._is_watched(), "deferred")
        if self.cell.holds_trigger:
            self.finish_before_trigger()
        elif phase in (Phase.FINISHED, COLLECTING) and not self.cell.ends_unwatched:
            self.finish()

    def _reach(self, ask: Callable[[], Any], what: str) -> None:
        """Wait until the task is at a place before its end. Raises AirflowTrouble if it has ended."""

        def asked() -> Any:
            found = ask()
            if not found and (state := self.state()) in ("failed", "success"):
                raise AirflowTrouble(f"{self.dag_id}: {state} before {what}")
            return found

        self.until(asked, what)

    def _set_up(self) -> None:
        phase = self.cell.phase
        if phase == Phase.SUBMITTING:
            self.put("stop", CREATING)
        elif phase in STEPS and phase != COLLECTING:
            self.put("stop", phase)
        if phase == COLLECTED or self.cell.is_reporting:
            self.jobs.put("go")
        if phase == Phase.QUEUED:
            self.jobs.take_room()

    def finish(self) -> None:
        """Let the job end, and stop the worker that is about to collect it."""
        self.put("stop", COLLECTING)
        self.jobs.put("go")
        self.until(lambda: self.has("reached"), COLLECTING)

    def finish_before_trigger(self) -> None:
        """Let the job end, and stop the trigger that is about to end the task."""
        self.until(self.jobs.ids, "its job to be known")
        self.put("hold", f"{self.jobs.ids()[0]} {self.cell.phase}")
        self.jobs.put("go")
        self.until(lambda: self.has("held"), f"its trigger to be at {self.cell.phase!r}")

    @property
    def worker(self) -> int:
        """The process of the worker that is stopped."""
        return int((self.folder / "reached").read_text())

    def is_held(self) -> bool:
        """Whether a stopped worker is still alive."""
        try:
            os.kill(self.worker, 0)
        except ProcessLookupError:
            return False
        return True

    def release(self) -> None:
        """Let a stopped worker or trigger go on, and what is queued have its room."""
        self.drop("stop")
        self.drop("hold")
        if self.cell.phase == Phase.QUEUED:
            self.jobs.give_room()

    def act(self, do: Callable[[Stage], object]) -> None:
        """Let the action happen, and remember when."""
        self.acted = time.time()
        do(self)

    @property
    def instance(self) -> dict[str, Any] | None:
        """Airflow's task instance; None if it is gone."""
        return self.api.find(f"{self.run_path}/taskInstances/work") if self.run_id else None

    @property
    def run_path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        """Of the task; "gone" if it was deleted, "none" if Airflow has none."""
        try:
            found = self.instance
        except HTTPError as error:
            if error.code < 500:
                raise
            return "unknown"
        return "gone" if found is None else found["state"] or "none"

    def executions(self) -> list[float]:
        """When the user's function began, in Unix seconds."""
        return self.jobs.journal("start")

    def legs(self) -> int:
        """How many workers have had the task's last try: each names the DAG's file that it has read."""
        instance = self.instance
        return self.api.log(instance).count("DAG bundles loaded") if instance else 0

    def _is_watched(self) -> bool:
        instance = self.instance
        return instance is not None and "no worker is held" in self.api.log(instance)
