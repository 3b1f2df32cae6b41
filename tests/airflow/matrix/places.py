"""Where the jobs of the table run, and what the table needs of such a place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from matrix.cells import Cell

Steps = Mapping[str, tuple[str, str]]
"""For each of `cells.STEPS`: the event of Python's audit table by which a worker is known to be there, and a
pattern of what that event is about: a path, or the beginning of what is sent."""
LIVING = ("PENDING", "RUNNING")
REPORTING = "matrix.reported"
"""The event that a link of the DAG's raises: Airflow asks for a task's links when its state is accepted."""


class Jobs(Protocol):
    """Those of one cell."""

    def put(self, name: str) -> None:
        """Leave a sign that the user's function looks for."""

    def drop(self, name: str) -> None:
        """Take it back."""

    def journal(self, event: str) -> list[float]:
        """The Unix times at which the user's function has recorded this, the earliest first."""

    def overlaps(self) -> int:
        """How many executions began while another one lived."""

    def ids(self) -> list[str]:
        """Those of all jobs there ever were, the earliest first."""

    def states(self) -> list[str]:
        """The states of all jobs there ever were, the earliest first."""

    def living(self) -> int:
        """How many have not ended."""

    def cancel(self) -> None:
        """Cancel all that have not ended, as a person does."""

    def take_room(self) -> None:
        """Nothing that begins from now on finds room to run."""

    def give_room(self) -> None:
        """It does again."""


class Place(Protocol):
    """For all cells; `name` is "" for the local backend, `steps` are where a worker can be stopped.

    `data` is the folder, or the bucket's prefix, in which user functions find their cells' signs.
    """

    name: str
    steps: Steps
    data: str

    def prepare(self, cells: Iterable[Cell]) -> Mapping[str, str]:
        """Make what these cells need; return the environment of Airflow, besides."""

    def options(self, cell: Cell) -> dict[str, Any]:
        """What a cell's `@task.kinetic` is given besides."""

    def jobs(self, cell: Cell, folder: Path) -> Jobs:
        """Those of a cell, which has that folder."""

    def close(self) -> None:
        """Leave nothing there."""
