"""Jobs as processes of this machine: the local backend, a store for every cell."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.backends.local.record import take_lock
from kinetic_core.backends.local.slots import core_count
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.observe import find, observe
from matrix.cells import STEPS, Cell
from matrix.places import LIVING, REPORTING, Jobs, Steps

_PATHS = (
    ("os.link", r"/payload-[0-9a-f]+\.pkl$"),
    ("os.link", r"/handle\.json$"),
    ("os.link", r"/cluster/.*\.json$"),
    ("open", r"/agent\.log$"),
    ("open", r"-0\.log$"),
    ("open", r"/jobs/[^/]+/result$"),
    ("os.remove", r"/payload-[0-9a-f]+\.pkl$"),
    (REPORTING, ""),
)


class Processes:
    """The place of all cells' jobs."""

    name = ""

    def __init__(self, home: Path) -> None:
        self.steps: Steps = dict(zip(STEPS, _PATHS, strict=True))
        self.data = str(home / "cells")

    def prepare(self, cells: Iterable[Cell]) -> Mapping[str, str]:
        """Name each cell's store to the API server, which cancels jobs in no other."""
        stores = [str(Path(self.data, cell.dag_id, "kinetic")) for cell in cells]
        profiles = {
            f"cell-{number}": {"backend": "local", "local_store": store}
            for number, store in enumerate(stores)
        }
        file = Path(self.data).with_name("profiles.json")
        file.write_text(json.dumps({"profiles": profiles}))
        return {"KINETIC_PROFILES_FILE": str(file)}

    def options(self, cell: Cell) -> dict[str, Any]:
        return {"backend": "local"}

    def jobs(self, cell: Cell, folder: Path) -> Jobs:
        return _Jobs(folder)

    def close(self) -> None:
        """Airflow's home goes, and all with it."""


class _Jobs:
    def __init__(self, folder: Path) -> None:
        self._folder, self._store = folder, folder / "kinetic"
        self._slots: list[int] = []

    def put(self, name: str) -> None:
        (self._folder / name).touch()

    def drop(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def journal(self, event: str) -> list[float]:
        path = self._folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line["at"] for line in map(json.loads, lines) if line["event"] == event]

    def overlaps(self) -> int:
        return len(self.journal("overlap"))

    def ids(self) -> list[str]:
        return [reference.job_id for _, reference in self._stored()]

    def states(self) -> list[str]:
        return [observe(backend, reference).status.value for backend, reference in self._stored()]

    def _stored(self) -> Iterator[tuple[Backend, JobReference]]:
        backend = LocalBackend(self._store)
        handles = sorted(self._store.glob("store/jobs/*/handle.json"), key=lambda each: each.stat().st_mtime)
        for handle in handles:
            if (reference := find(backend, handle.parent.name)) is not None:
                yield backend_of(reference, default_connections()), reference

    def cancel(self) -> None:
        for backend, reference in self._stored():
            cancel(backend, reference)

    def living(self) -> int:
        return sum(state in LIVING for state in self.states())

    def take_room(self) -> None:
        folder = self._store / "slots"
        folder.mkdir(parents=True)
        taken = (take_lock(str(folder / f"cpu-{number}.lock")) for number in range(core_count()))
        self._slots = [each for each in taken if each is not None]

    def give_room(self) -> None:
        for slot in self._slots:
            os.close(slot)
        self._slots = []
