"""Spans as a collector gets them: steps one after the other, phases at their times."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kinetic_core.lifecycle.explaining import Phase

pytestmark = pytest.mark.airflow


def test_the_steps_of_preparing_follow_each_other() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from airflow_provider.tracing import Steps, tell_phases

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, said = provider.get_tracer("tests"), []
    steps = Steps(said.append, tracer)
    texts = ["packing", "dependencies: uv.lock", "cpu: step 1", "uploading", "uploading 3 files, 2 MiB"]
    for text in texts:
        steps(text)
    steps.close()
    tell_phases("job-1", [Phase("image", 1, 1000.0, 2.5)], tracer)
    spans = exporter.get_finished_spans()
    assert said == texts
    assert [span.name for span in spans] == [
        "kinetic.pack",
        "kinetic.build",
        "kinetic.upload",
        "kinetic.image",
    ]
    assert all(one.end_time <= other.start_time for one, other in pairwise(spans[:3]))
    last = spans[-1]
    assert (last.start_time, last.end_time) == (1_000_000_000_000, 1_002_500_000_000)
    assert dict(last.attributes) == {"kinetic.job_id": "job-1", "kinetic.attempt": 1}


def test_a_job_gets_its_trace_only_where_one_is_recorded() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from airflow_provider.tracing import trace_environment

    assert trace_environment() == {}
    with trace.use_span(TracerProvider().get_tracer("tests").start_span("task"), end_on_exit=True) as span:
        told = trace_environment()
        number = f"{span.get_span_context().trace_id:032x}"
    assert told["TRACEPARENT"].split("-")[1] == number


def test_without_tracing_steps_cost_nothing_and_pass_on() -> None:
    from airflow_provider.tracing import span, steps

    said: list[str] = []
    with span("submit"), steps(said.append) as progress:
        progress("packing")
    assert said == ["packing"]
