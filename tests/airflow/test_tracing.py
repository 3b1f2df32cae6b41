"""Spans as a collector gets them: steps in order, phases at their times; a job's process knows its trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.job import Step, StepBegun
from kinetic_core.jobs.phases import Phase

pytestmark = pytest.mark.airflow


TRACED = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

def trace_parent():
    return os.environ.get("TRACEPARENT")

if __name__ == "__main__":
    from airflow_provider.job_of_task import TaskIdentity
    from airflow_provider.records import traced_start
    from kinetic_core.backends.base import backend_of
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.collect import collect
    from kinetic_core.jobs.observe import wait
    from kinetic_core.options import RunOptions
    from kinetic_core.jobs.submit import Call

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    identity = TaskIdentity("dag", os.getcwd(), "", "task", -1, 1)
    with trace.get_tracer("tests").start_as_current_span("kinetic.task") as task:
        options = RunOptions.checked(accelerator="cpu")
        connections = default_connections()
        call = Call(trace_parent, (), {})
        started = traced_start(call, options, connections, identity, print, None, None)
    backend = backend_of(started.reference, default_connections())
    wait(backend, started.reference)
    spans = exporter.get_finished_spans()
    names = {each.context.span_id: each.name.removeprefix("kinetic.") for each in spans}
    print(json.dumps({
        "spans": [(names[each.context.span_id], names[each.parent.span_id]) for each in spans if each.parent],
        "trace": f"{task.get_span_context().trace_id:032x}",
        "submit": next(f"{number:016x}" for number, name in names.items() if name == "submit"),
        "parent": collect(backend, started.reference).value_or_raise(),
    }))
"""


def collector() -> tuple[Any, Any]:
    """What gets the spans, and a tracer that makes them."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider.get_tracer("tests")


@pytest.mark.promise("page: Spans pack, upload, build, submit, wait, run")
def test_the_steps_of_preparing_follow_each_other() -> None:
    from airflow_provider.telemetry import Steps

    exporter, tracer = collector()
    said: list[str] = []
    steps = Steps(said.append, tracer)
    texts = [
        StepBegun(Step.PACK, "packing"),
        StepBegun(Step.BUILD, "dependencies: uv.lock"),
        "cpu: step 1",
        StepBegun(Step.BUILD, "dependencies: uv.lock"),  # of the next accelerator
        "uploading is still to come, says a line that is not ours",
        StepBegun(Step.UPLOAD, "uploading"),
        "uploading 3 files, 2 MiB",
    ]
    for text in texts:
        steps(text)
    steps.close()
    spans = exporter.get_finished_spans()
    assert said == texts
    assert [span.name for span in spans] == ["kinetic.pack", "kinetic.build", "kinetic.upload"]
    assert all(one.end_time <= other.start_time for one, other in pairwise(spans))


@pytest.mark.promise("page: Spans pack, upload, build, submit, wait, run")
def test_each_attempt_waits_and_runs_and_its_phases_are_inside() -> None:
    from airflow_provider.telemetry import tell_phases

    exporter, tracer = collector()
    phases = [
        Phase("queue", 0, 1000.0, 2.0),
        Phase("image", 0, 1002.0, 3.0),
        Phase("start", 0, 1005.0, 1.0),
        Phase("function", 0, 1006.0, 4.0),
        Phase("replacement", 0, 1010.0, 1.0),
        Phase("function", 1, 1011.0, 2.5),
    ]
    tell_phases("job-1", phases, tracer=tracer)
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name.removeprefix("kinetic.") for span in spans}
    told = [
        (
            names[span.context.span_id],
            names[span.parent.span_id] if span.parent else "",
            span.start_time / 1e9,
            span.end_time / 1e9,
        )
        for span in spans
    ]
    assert told == [
        ("wait", "", 1000.0, 1005.0),
        ("queue", "wait", 1000.0, 1002.0),
        ("image", "wait", 1002.0, 1005.0),
        ("run", "", 1005.0, 1010.0),
        ("start", "run", 1005.0, 1006.0),
        ("function", "run", 1006.0, 1010.0),
        ("wait", "", 1010.0, 1011.0),
        ("replacement", "wait", 1010.0, 1011.0),
        ("run", "", 1011.0, 1013.5),
        ("function", "run", 1011.0, 1013.5),
    ]
    assert dict(spans[-1].attributes) == {"kinetic.job_id": "job-1", "kinetic.attempt": 1}


@pytest.mark.promise("page: Spans pack, upload, build, submit, wait, run")
@pytest.mark.promise("page: The trace context reaches the pod")
@pytest.mark.usefixtures("local_jobs")
def test_starting_is_a_span_that_the_job_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(TRACED)  # a process's tracer is set once, so it is one of its own
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KINETIC_PACKAGE_ROOT": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "traced.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["spans"] == [["pack", "submit"], ["upload", "submit"], ["submit", "task"]]
    version, trace_id, span_id, _ = told["parent"].split("-")
    assert (version, trace_id, span_id) == ("00", told["trace"], told["submit"])


@pytest.mark.promise("page: Without tracing nothing is added")
def test_a_job_gets_its_trace_only_where_one_is_recorded() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from airflow_provider.telemetry import trace_environment

    assert trace_environment() == {}
    with trace.use_span(TracerProvider().get_tracer("tests").start_span("task"), end_on_exit=True) as span:
        told = trace_environment()
        number = f"{span.get_span_context().trace_id:032x}"
    assert told["TRACEPARENT"].split("-")[1] == number


@pytest.mark.promise("page: Without tracing nothing is added")
def test_without_tracing_steps_cost_nothing_and_pass_on() -> None:
    from airflow_provider.telemetry import span, steps

    said: list[str] = []
    with span("submit"), steps(said.append) as progress:
        progress("packing")
    assert said == ["packing"]
