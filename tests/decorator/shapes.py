"""A module of a user's project: in a job, everything in it must be itself."""

from __future__ import annotations

import enum
import os
import threading
from pathlib import Path

import kinetic_core


class Circle:
    def __init__(self, radius: float) -> None:
        self.radius = radius


class NotRound(Exception):
    pass


class Style(enum.Enum):
    """Its members travel by their names: not all of their values can."""

    FILLED = enum.auto()
    OUTLINED = threading.Lock()


_count = 0
UNIT = "cm"
DRAWINGS = Path("drawings")
STYLE = Style.FILLED
LIMITS = {"most": 10}
BOUNDS = LIMITS
"""The same dict under another name, as another module would have it."""


def area(shape: object) -> float | None:
    return 3.0 * shape.radius**2 if isinstance(shape, Circle) else None


def check(shape: object) -> None:
    if not isinstance(shape, Circle):
        raise NotRound("no radius")


def count() -> int:
    global _count
    _count += 1
    return _count


def here() -> str:
    return Path(__file__).read_text().splitlines()[0]


def unit() -> str:
    return UNIT


@kinetic_core.run(accelerator="tpu-v5e-1")
def job_id() -> str | None:
    return os.environ.get("KINETIC_JOB_ID")


class Drawing:
    @kinetic_core.run(accelerator="gpu-l4")
    def job_id(self) -> str:
        return "drawn"
