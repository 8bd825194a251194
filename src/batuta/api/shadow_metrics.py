"""A second policy that only watches, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.engine.shadow import ShadowReport


def shadow_metrics(report: ShadowReport | None) -> Iterator[Metric]:
    """Nothing while nobody watches. Counts begin anew with each policy that does."""
    if report is None or not report.policy:
        return
    outcomes = {
        ("agreed",): report.agreed,
        ("differed",): report.cycles - report.agreed - report.failed,
        ("failed",): report.failed,
        ("skipped",): report.skipped,
    }
    yield counter("batuta_shadow_cycles", "Cycles, by what the shadow made of them.", ["outcome"], outcomes)
    commands = {("would", kind): count for kind, count in report.would.items()}
    commands |= {("did", kind): count for kind, count in report.did.items()}
    yield counter(
        "batuta_shadow_commands",
        "Commands that the shadow would have given, and those that were given, in the same cycles.",
        ["who", "kind"],
        commands,
    )
    yield gauge(
        "batuta_shadow_differences",
        "Jobs that the shadow would have given another number of GPUs, in its last cycle.",
        [],
        {(): len(report.differences)},
    )
