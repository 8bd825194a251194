"""Whether what was told of the lengths of jobs came true, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.prediction.duration_calibration import Calibration


def duration_metrics(calibration: Calibration) -> Iterator[Metric]:
    """The coverage of a quantile is its level when all is well: 0.9 of the jobs stay within their P90."""
    coverage = {(f"{level:g}",): share for level, share in calibration.coverage}
    yield gauge(
        "batuta_duration_forecast_coverage",
        "Share of the jobs that ended last which took no longer than the quantile told at their submit.",
        ["quantile"],
        coverage,
    )
    yield gauge(
        "batuta_duration_forecast_window_jobs",
        "Jobs over which the coverage is measured.",
        [],
        {(): calibration.jobs},
    )
    yield counter(
        "batuta_duration_forecasts",
        "Jobs with a forecast that have ended since the start.",
        [],
        {(): calibration.total},
    )
