"""Metrics as Prometheus reads them, from plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def gauge(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """Values by the words of their labels, as a tuple."""
    family = GaugeMetricFamily(name, help_, labels=labels)
    for own, value in values.items():
        family.add_metric(list(own), value)
    return family


def counter(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=labels)
    for own, value in values.items():
        family.add_metric(list(own), value)
    return family


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Summed up, as Prometheus wants them."""
    found, total = [], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), list(counts), strict=True):
        total += count
        found.append((bound, float(total)))
    return found
