"""Spans of a job below the task's own, where Airflow traces; nothing where it does not.

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

from kinetic_core.lifecycle.explaining import Phase

_STEPS = {"packing": "pack", "dependencies": "build", "uploading": "upload"}
"""What preparing says when a step begins, and what the step's span is called."""
_RUN = frozenset({"start", "dependencies", "data", "debugger", "function", "result"})
"""The phases in which a pod has its container; in the others the job waits for one."""


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


def tell_phases(
    job_id: str,
    phases: Iterable[Phase],
    carrier: Mapping[str, str] | None = None,
    tracer: trace.Tracer | None = None,
) -> None:
    """Spans of what a job did on its cluster, at the times it did it: `wait` and `run` of each attempt, and
    inside them the phases they consist of.

    They are below the span that `carrier` (W3C) names, else below the current one. Of a task that was
    deferred, that is the span of its try, whichever leg of it gets to know.
    """
    tracer = tracer or _tracer()
    above = TraceContextTextMapPropagator().extract(carrier or {}, get_current())
    for (waits, attempt), group in itertools.groupby(phases, lambda each: (_waits(each), each.attempt)):
        parts = list(group)
        whole = Phase("wait" if waits else "run", attempt, parts[0].began, _end(parts[-1]) - parts[0].began)
        parent = trace.set_span_in_context(_told(whole, job_id, tracer, above))
        for part in parts:
            _told(part, job_id, tracer, parent)


def _waits(phase: Phase) -> bool:
    return phase.name not in _RUN


def _end(phase: Phase) -> float:
    return phase.began + phase.seconds


def _told(phase: Phase, job_id: str, tracer: trace.Tracer, parent: Context | None) -> trace.Span:
    attributes: dict[str, str | int] = {"kinetic.job_id": job_id, "kinetic.attempt": phase.attempt}
    made = tracer.start_span(
        f"kinetic.{phase.name}", parent, start_time=int(phase.began * 1e9), attributes=attributes
    )
    made.end(int(_end(phase) * 1e9))
    return made


def _tracer() -> trace.Tracer:
    return trace.get_tracer("airflow_provider")
