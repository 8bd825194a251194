"""What became of the spans that were to be sent, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.telemetry.exporter import SpanExporter


def telemetry_metrics(exporter: SpanExporter | None) -> Iterator[Metric]:
    """Nothing where no traces are sent."""
    if exporter is None:
        return
    outcomes = {(outcome,): count for outcome, count in dict(exporter.counts).items()}
    yield counter("batuta_otlp_spans", "Spans, by what became of them.", ["outcome"], outcomes)
    yield gauge("batuta_otlp_queued_spans", "Spans that wait to be sent.", [], {(): exporter.queued})
