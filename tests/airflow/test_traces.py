"""The traces of a real Airflow, as a collector gets them."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.airflow


def below(spans: list[Any], parent: Any) -> set[str]:
    """The names of the spans that hang directly below one."""
    return {each.name for each in spans if each.parent_id == parent.span_id}


@pytest.mark.parametrize(("task_id", "legs"), [("count", 2), ("inline", 1)])
def test_the_spans_of_a_job_are_in_its_runs_trace(cases: Any, task_id: str, legs: int) -> None:
    """Also of a task that is deferred: another process of another worker tells what became of its job."""
    assert cases.end("waiting") == "success"
    spans = cases.spans

    def ended() -> Any:
        """The spans of the run and of the task's try in it, which come when these have ended."""
        runs = {each.trace_id: each for each in spans if each.name == "dag_run.waiting"}
        tries = [each for each in spans if each.name == f"task_run.{task_id}" and each.trace_id in runs]
        return [(runs[each.trace_id], each) for each in tries]

    ((run, whole),) = cases.airflow.until(ended, 60, "the spans of the run and the task to arrive")
    assert whole.parent_id == run.span_id
    workers = sorted(
        (each for each in spans if each.name == f"worker.{task_id}" and each.trace_id == run.trace_id),
        key=lambda each: each.start,
    )
    assert [each.parent_id for each in workers] == [whole.span_id] * legs
    (submit,) = (
        each for each in spans if each.name == "kinetic.submit" and each.parent_id == workers[0].span_id
    )
    assert below(spans, submit) == {"kinetic.pack", "kinetic.upload"}
    phases = [each for each in spans if each.parent_id == whole.span_id and each.name.startswith("kinetic.")]
    assert [each.name for each in phases] == ["kinetic.wait", "kinetic.run"]
    assert "kinetic.function" in below(spans, phases[1])
    # Airflow's span of a try that was deferred begins with its last leg; that of the run has it all.
    assert all(run.start <= each.start <= each.end <= run.end for each in phases)
    assert (phases[1].end - phases[1].start) / 1e9 > (15 if task_id == "count" else 5)
