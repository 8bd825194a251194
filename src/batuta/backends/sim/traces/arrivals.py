"""When jobs arrive: a Poisson process whose rate follows the hours of a week."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

HOUR_S = 3600.0
WEEK_HOURS = 168


@dataclass(frozen=True, slots=True)
class WeeklyRate:
    """Relative arrival rate by hour of the week, Monday 0:00 first; on average 1."""

    by_hour: tuple[float, ...]
    before: tuple[float, ...]
    """Expected arrivals before each hour at an average of one per hour; 169 values."""

    @staticmethod
    def of(by_weekday: Sequence[float], by_hour: Sequence[float]) -> WeeklyRate:
        """Weekday and hour taken as independent."""
        product = [day * hour for day in by_weekday for hour in by_hour]
        scale = len(product) / math.fsum(product)
        rates = tuple(rate * scale for rate in product)
        return WeeklyRate(rates, (0.0, *accumulate(rates)))

    def expected(self, hours: float) -> float:
        """Arrivals up to a moment (hours since the first Monday 0:00), at one per hour on average."""
        weeks, within = divmod(hours, WEEK_HOURS)
        hour = min(int(within), WEEK_HOURS - 1)
        return weeks * self.before[-1] + self.before[hour] + (within - hour) * self.by_hour[hour]

    def moment(self, expected: float) -> float:
        """The inverse of `expected`."""
        weeks, within = divmod(expected, self.before[-1])
        hour = min(bisect_right(self.before, within) - 1, WEEK_HOURS - 1)
        return weeks * WEEK_HOURS + hour + (within - self.before[hour]) / self.by_hour[hour]


FLAT = WeeklyRate.of([1.0] * 7, [1.0] * 24)


def arrivals_in(rate: WeeklyRate, start_hour: float, span_s: float, draws: Sequence[float]) -> list[float]:
    """Ascending seconds from the start: as many arrivals as draws, within a span.

    Given how many arrive, the moments of a Poisson process are independent draws from its rate.
    """
    low = rate.expected(start_hour)
    high = rate.expected(start_hour + span_s / HOUR_S)
    return [_seconds(rate, start_hour, low + draw * (high - low)) for draw in sorted(draws)]


def arrivals_at(
    rate: WeeklyRate, start_hour: float, jobs_per_hour: float, draws: Sequence[float]
) -> list[float]:
    """Ascending seconds from the start: one arrival per draw, at an average rate."""
    gaps = (-math.log(1.0 - draw) / jobs_per_hour for draw in draws)
    low = rate.expected(start_hour)
    return [_seconds(rate, start_hour, low + passed) for passed in accumulate(gaps)]


def _seconds(rate: WeeklyRate, start_hour: float, expected: float) -> float:
    return max(0.0, (rate.moment(expected) - start_hour) * HOUR_S)
