"""What OpenTelemetry calls a collector: the traces of a real Airflow arrive here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.serving import Answering, serving


@dataclass(frozen=True)
class Span:
    """One that has ended: hexadecimal ids, times in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int


@contextmanager
def collector() -> Iterator[tuple[dict[str, str], list[Span]]]:
    """The settings of an Airflow that traces, and the spans that it has sent by now."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Span] = []

    class Collector(Answering):
        def do_POST(self) -> None:
            told = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in told.resource_spans:
                for scope in resource.scope_spans:
                    for each in scope.spans:
                        ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
                        times = (each.start_time_unix_nano, each.end_time_unix_nano)
                        spans.append(Span(each.name, *ids, *times))
            self.answer(200)

    with serving(Collector) as place:
        settings = {
            "AIRFLOW__TRACES__OTEL_ON": "True",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{place}",
        }
        yield settings, spans
