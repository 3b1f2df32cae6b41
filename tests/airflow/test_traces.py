"""The traces of a real Airflow, as a collector gets them."""

from __future__ import annotations

from typing import Any

import pytest
from collector import Span

pytestmark = pytest.mark.airflow


def below(spans: list[Span], parent: Span, name: str = "") -> list[Span]:
    """The spans that hang directly below one, the earliest first, whose names begin so."""
    found = [each for each in spans if each.parent_id == parent.span_id and each.name.startswith(name)]
    return sorted(found, key=lambda each: each.start)


def names(spans: list[Span]) -> list[str]:
    return [each.name for each in spans]


@pytest.mark.promise(
    "page: … in the trace of the DAG's run, by an Airflow with `[traces] otel_on`",
    "deferred, and not",
)
@pytest.mark.parametrize(("task_id", "legs"), [("count", 2), ("inline", 1)])
def test_the_spans_of_a_job_are_in_its_runs_trace(cases: Any, task_id: str, legs: int) -> None:
    """Also of a task that is deferred: another process of another worker tells what became of its job."""
    assert cases.end("waiting") == "success"
    spans = cases.spans

    def arrived() -> list[tuple[Span, Span]]:
        """The spans of the run and of the task's try in it, when all of its workers' are there too."""
        runs = {each.trace_id: each for each in spans if each.name == "dag_run.waiting"}
        tries = [each for each in spans if each.name == f"task_run.{task_id}" and each.trace_id in runs]
        return [(runs[each.trace_id], each) for each in tries if len(below(spans, each, "worker.")) == legs]

    ((run, whole),) = cases.airflow.until(arrived, 300, "the spans of the run and the task to arrive")
    assert whole.parent_id == run.span_id
    first, *_ = below(spans, whole, "worker.")
    (submit,) = below(spans, first, "kinetic.")
    assert (submit.name, names(below(spans, submit))) == (
        "kinetic.submit",
        ["kinetic.pack", "kinetic.upload"],
    )
    phases = below(spans, whole, "kinetic.")
    assert names(phases) == ["kinetic.wait", "kinetic.run"]
    assert "kinetic.function" in names(below(spans, phases[1]))
    # Airflow's span of a try that was deferred begins with its last leg; that of the run has it all.
    assert all(run.start <= each.start <= each.end <= run.end for each in phases)
    assert (phases[1].end - phases[1].start) / 1e9 > (15 if task_id == "count" else 5)
