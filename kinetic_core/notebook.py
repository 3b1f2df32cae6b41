"""HTML of jobs, batches, explanations and usage, as notebooks show them below a cell.

Everything that users or jobs have written is escaped. Colours are legible on light and dark pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinetic_core.job import JobObservation, JobReference, JobStatus

if TYPE_CHECKING:
    from kinetic_core.jobs.cost import Usage
    from kinetic_core.jobs.timeline import Explanation

Display = Callable[..., Any]
"""`IPython.display.display`, as far as it is used here."""


class Picture:
    """An object as a notebook's cell shows it, drawn anew in place; nothing where no notebook runs this."""

    def __init__(self, shown: object, display: Display | None = None) -> None:
        self._shown, self._display = shown, display or _notebook_display()
        self._drawn: Any = None

    def draw(self) -> None:
        """Show the object as it is now: first below the cell that runs, from then on in that place."""
        if self._drawn is not None:
            self._drawn.update(self._shown)
        elif self._display is not None:
            self._drawn = self._display(self._shown, display_id=True)


def _notebook_display() -> Display | None:
    """Return what shows objects in a notebook's cells; None unless a kernel of IPython's runs this."""
    ipython = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    display: Display = import_module("IPython.display").display
    return display


_COLOURS = {
    JobStatus.PENDING: "#b08800",
    JobStatus.RUNNING: "#2f81f7",
    JobStatus.SUCCEEDED: "#2da44e",
    JobStatus.FAILED: "#cf222e",
    JobStatus.CANCELLED: "#8250df",
    JobStatus.NOT_FOUND: "#6e7781",
}
NOT_BEGUN = "not submitted"
"""Word for an input that has no job yet."""
SUBMITTED = "submitted"
"""Word for an input whose job has not ended."""
_OF_INPUTS = {
    NOT_BEGUN: "#6e778155",
    SUBMITTED: "#2f81f7",
    **{status.value.lower(): colour for status, colour in _COLOURS.items()},
}
_BAR_PIXELS = 240
_LARGEST_BOARD = 10_000
"""Inputs up to which a board has a square for each."""


def job_html(job: JobReference, seen: JobObservation | None, trouble: str = "") -> str:
    """Describe a job as it was seen, or, with None, why it could not be looked at."""
    status = _badge(seen.status) if seen else ""
    said = f"{seen.reason}: {seen.message}" if seen and seen.message else (seen.reason if seen else trouble)
    facts = {"function": job.func_name, "accelerator": job.hardware, "backend": job.backend}
    told = _table([(name, escape(text)) for name, text in facts.items()])
    return f"<div><b>{escape(job.job_id)}</b> {status} {escape(said)}{told}</div>"


def explanation_html(told: Explanation) -> str:
    """Draw a job's phases as bars, each as long as its share of the job's time."""
    seen = told.observation
    whole = sum(phase.seconds for phase in told.phases) or 1.0
    rows = [
        (
            f"{escape(phase.name)}{f' (attempt {phase.attempt + 1})' if phase.attempt else ''}",
            _bar(phase.seconds / whole),
            f"{phase.seconds:.1f} s",
            escape(phase.advice),
        )
        for phase in told.phases
    ]
    passed = "".join(
        f"<div>no capacity for {escape(one.accelerator)}: {escape(one.why)}</div>" for one in told.passed_over
    )
    head = f"<b>{escape(told.job_id)}</b> {_badge(seen.status)} {escape(seen.message)}"
    return f"<div>{head}{passed}{_table(rows)}</div>"


def usage_html(usage: Usage) -> str:
    """Show what a job has held, by use, and what that costs if there is a price."""
    rows = [(escape(use), f"{seconds:.1f} s") for use, seconds in usage.seconds.items()]
    used = f"{usage.held:.1f} {usage.unit}-seconds"
    if usage.cost is not None:
        used += f", {usage.cost:.4f} {escape(usage.currency)}"
    head = f"<b>{escape(usage.job_id)}</b> {escape(str(usage.accelerator))}: {used}"
    return f"<div>{head}{_table(rows)}</div>"


def batch_html(group_id: str, name: str | None, states: Sequence[str]) -> str:
    """Draw a batch as a board with a square for each input, in input order.

    `states` has for each input the lower-case name of its status if it has ended, else `SUBMITTED` or
    `NOT_BEGUN`. A batch of more than 10,000 inputs is counted without squares.
    """
    counts: dict[str, int] = {}
    for state in states:
        counts[state] = counts.get(state, 0) + 1
    told = ", ".join(f"{count} {escape(state)}" for state, count in _in_order(counts))
    label = f"{escape(group_id)}{f' ({escape(name)})' if name else ''}"
    return f"<div><b>{label}</b> {len(states)} inputs: {told}{_board(states)}</div>"


def _board(states: Sequence[str]) -> str:
    """Draw all inputs of a state as one path, so that 10,000 squares are a small text."""
    if len(states) > _LARGEST_BOARD:
        return ""
    columns = 100 if len(states) > 400 else 40
    rows = -(-len(states) // columns)
    paths = []
    for state in dict.fromkeys(states):
        squares = (number for number, each in enumerate(states) if each == state)
        path = "".join(f"M{number % columns * 7} {number // columns * 7}h6v6h-6z" for number in squares)
        colour = _OF_INPUTS.get(state, "#6e7781")
        paths.append(f'<path fill="{colour}" d="{path}"><title>{escape(state)}</title></path>')
    size = f'width="{columns * 7}" height="{rows * 7}"'
    return f'<br><svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(paths)}</svg>'


def _in_order(counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return (
        (state, counts[state]) for state in [*_OF_INPUTS, *(counts.keys() - _OF_INPUTS)] if state in counts
    )


def _bar(share: float) -> str:
    width = max(1.0, _BAR_PIXELS * share)
    return f'<div style="background:#2f81f7;height:.8em;width:{width:.0f}px"></div>'


def _badge(status: JobStatus) -> str:
    style = f"background:{_COLOURS[status]};color:#fff;border-radius:3px;padding:0 .4em"
    return f'<span style="{style}">{status.value}</span>'


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Lay out cells that are HTML already."""
    lines = ("".join(f'<td style="text-align:left">{cell}</td>' for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
