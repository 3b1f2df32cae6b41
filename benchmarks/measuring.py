"""How the benchmarks measure: medians of several runs, and a verdict against a target."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """One measured figure, its target and whether it holds. `unit` is printed after both."""

    what: str
    measured: float
    target: float
    unit: str
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.target

    def line(self) -> str:
        mark = "ok  " if self.holds else "MISS"
        note = f"   ({self.note})" if self.note else ""
        return f"{mark}  {self.what:<58} {self.measured:10.3f} {self.unit:<4} target {self.target:g}{note}"


def seconds(action: Callable[[], object]) -> float:
    """Wall seconds of one run."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_seconds(action: Callable[[], object], runs: int = 5) -> float:
    """Median wall seconds of several runs."""
    return statistics.median(seconds(action) for _ in range(runs))


def report(verdicts: list[Verdict]) -> int:
    """Print them; the exit status: 0 if every target holds."""
    for verdict in verdicts:
        print(verdict.line())
    return 0 if all(verdict.holds for verdict in verdicts) else 1
