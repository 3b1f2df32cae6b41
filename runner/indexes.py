"""Sets of numbers as Kubernetes writes them in a Job's status: `0,2-4`; two in a row are `1,2`."""

from __future__ import annotations

from collections.abc import Iterable


def parse_indexes(text: str) -> list[int]:
    """Parse a set into numbers in rising order. Raises ValueError for any other text."""
    found: list[int] = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """Format numbers as a set."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    if last - first > 1:
        return f"{first}-{last}"
    return f"{first}" if first == last else f"{first},{last}"
