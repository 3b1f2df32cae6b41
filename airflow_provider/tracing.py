"""Spans of a job inside the task's own span, where Airflow traces; nothing where it does not.

Airflow sets the tracer up; its span of the task is the current one while the task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kinetic_core.lifecycle.explaining import Phase

_STEPS = {"packing": "pack", "dependencies": "build", "uploading": "upload"}
"""What preparing says when a step begins, and what the step's span is called."""


class Steps:
    """Spans of preparing, from what it says of its progress; what it says is passed on."""

    def __init__(self, say: Callable[[str], None], tracer: trace.Tracer | None = None) -> None:
        self._say, self._tracer = say, tracer or _tracer()
        self._step = ""
        self._span: trace.Span = trace.INVALID_SPAN

    def __call__(self, text: str) -> None:
        self._say(text)
        step = next((name for sign, name in _STEPS.items() if text.startswith(sign)), self._step)
        if step != self._step:
            self.close()
            self._step, self._span = step, self._tracer.start_span(f"kinetic.{step}")

    def close(self) -> None:
        """The last step has ended."""
        self._span.end()


@contextmanager
def steps(say: Callable[[str], None]) -> Iterator[Steps]:
    """A progress callback that makes spans inside the block."""
    found = Steps(say)
    try:
        yield found
    finally:
        found.close()


def span(name: str) -> Any:
    """A context manager: a span of that name, below the current one."""
    return _tracer().start_as_current_span(f"kinetic.{name}")


def trace_environment() -> dict[str, str]:
    """The current span for a process elsewhere, as variables (W3C): none if nothing is recorded."""
    if not trace.get_current_span().is_recording():
        return {}
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def tell_phases(job_id: str, phases: Iterable[Phase], tracer: trace.Tracer | None = None) -> None:
    """Spans of what a job did on its cluster, at the times it did it."""
    for phase in phases:
        attributes: dict[str, str | int] = {"kinetic.job_id": job_id, "kinetic.attempt": phase.attempt}
        began, end = int(phase.began * 1e9), int((phase.began + phase.seconds) * 1e9)
        made = (tracer or _tracer()).start_span(
            f"kinetic.{phase.name}", start_time=began, attributes=attributes
        )
        made.end(end)


def _tracer() -> trace.Tracer:
    return trace.get_tracer("airflow_provider")
