"""Spans of a job below its task's span, where Airflow traces; elsewhere nothing is recorded.

Airflow sets the tracer up. While a worker has the task, before a deferral and after it, a span `worker.TASK`
is the current one, below that of the try, `task_run.TASK`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kinetic_core.jobs.phases import Phase, Step, StepBegun


class Steps:
    """Spans of preparing a job, from its lines of progress, which are passed on."""

    def __init__(self, say: Callable[[str], None], tracer: trace.Tracer | None = None) -> None:
        self._say, self._tracer = say, tracer or _tracer()
        self._step: Step | None = None
        self._span: trace.Span = trace.INVALID_SPAN

    def __call__(self, text: str) -> None:
        self._say(text)
        if isinstance(text, StepBegun) and text.step is not self._step:
            self.close()
            self._step, self._span = text.step, self._tracer.start_span(f"kinetic.{text.step}")

    def close(self) -> None:
        """End the span of the last step."""
        self._span.end()


@contextmanager
def steps(say: Callable[[str], None]) -> Iterator[Steps]:
    """Make spans inside the block from a progress callback."""
    found = Steps(say)
    try:
        yield found
    finally:
        found.close()


def span(name: str) -> Any:
    """Return a context manager for a span of that name, below the current one."""
    return _tracer().start_as_current_span(f"kinetic.{name}")


def trace_environment() -> dict[str, str]:
    """Return the current span as variables (W3C) for another process; {} if nothing is recorded."""
    if not trace.get_current_span().is_recording():
        return {}
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def tell_phases(
    job_id: str,
    phases: Iterable[Phase],
    carrier: Mapping[str, str] | None = None,
    tracer: trace.Tracer | None = None,
) -> None:
    """Record spans of a job on its cluster: `wait` and `run` of each attempt, and the phases inside them.

    Their parent is the span that `carrier` (W3C) names, else the current one. For a deferred task, that is
    the span of its try, in whichever leg this is called.
    """
    tracer = tracer or _tracer()
    above = TraceContextTextMapPropagator().extract(carrier or {}, get_current())
    for (runs, attempt), group in itertools.groupby(phases, lambda each: (each.has_container, each.attempt)):
        parts = list(group)
        whole = Phase("run" if runs else "wait", attempt, parts[0].began, parts[-1].end - parts[0].began)
        parent = trace.set_span_in_context(_told(whole, job_id, tracer, above))
        for part in parts:
            _told(part, job_id, tracer, parent)


def _told(phase: Phase, job_id: str, tracer: trace.Tracer, parent: Context | None) -> trace.Span:
    attributes: dict[str, str | int] = {"kinetic.job_id": job_id, "kinetic.attempt": phase.attempt}
    made = tracer.start_span(
        f"kinetic.{phase.name}", parent, start_time=int(phase.began * 1e9), attributes=attributes
    )
    made.end(int(phase.end * 1e9))
    return made


def _tracer() -> trace.Tracer:
    return trace.get_tracer("airflow_provider")
