"""How far off earlier forecasts turned out to be, and what that says of new ones.

A forecast is quantiles over simulated projections, so it is too sure of itself wherever the simulation is wrong in the
same way in all of them. Each forecast is therefore kept until its job has ended. The error of a forecast is counted in
its own spread: how many times the way from its P50 to its P90 the end lay beyond its P50. Whenever a job ends later
than forecast, the quantile moves up a little, and down by less whenever one does not: in balance, a P90 is exceeded by
one job in ten, whatever the model, the policy or the season (online conformal prediction by quantile tracking;
Angelopoulos, Candès and Tibshirani, NeurIPS 2023). Guesses about jobs of which hardly anything is known are corrected
apart: the correction of one kind would make the other too sure or too cautious.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from batuta.backends.sim.forecast.forecast import P50, P90, Forecast, JobForecast
from batuta.core.job import JobId, JobState
from batuta.core.world import PastJob


class ForecastKind(Enum):
    """What a forecast rests on."""

    KNOWN = "known"
    GUESS = "guess"


STEPS = {ForecastKind.KNOWN: (0.005, 0.3), ForecastKind.GUESS: (0.005, 0.1)}
"""Of both quantiles, in spreads. Larger follows faster, and makes forecasts noisier: the P50 is not far off to
begin with, and the spread of a guess is large."""
GUESS_SPREAD = 1.0  # of log time: a P90 of nearly three times the P50 is more of a guess than of a forecast
MIDDLES, LATES = (-1.5, 2.5), (0.1, 6.0)
"""Between these each quantile may move, in spreads. A P90 that was always met comes down close to the P50."""
MOST = 5_000  # the most forecasts that are kept of living jobs
AGAIN = 0.25  # another forecast of the same job counts when this share of the forecast time has passed
LEAST_SPREAD = 0.1  # of log time: the smallest spread that a forecast is credited with
NEAR_S = 60.0  # errors of less time than this hardly count


class QuantileOffsets(NamedTuple):
    """The corrected quantiles of one kind of forecast, in spreads beyond its P50."""

    middle: float = 0.0
    late: float = 1.0

    def after(self, exceeded: tuple[bool, bool], steps: tuple[float, float]) -> QuantileOffsets:
        """The quantiles after a job ended later than its P50 and its P90, or not."""
        middle = self.middle + steps[0] * (exceeded[0] - (1.0 - P50))
        late = self.late + steps[1] * (exceeded[1] - (1.0 - P90))
        return QuantileOffsets(middle, late).bounded()

    def bounded(self) -> QuantileOffsets:
        middle, late = min(max(self.middle, MIDDLES[0]), MIDDLES[1]), min(max(self.late, LATES[0]), LATES[1])
        return QuantileOffsets(middle, late)


class IssuedForecast(NamedTuple):
    """A forecast of the end of a job that was given out."""

    job: JobId
    at_s: float
    ahead_s: float  # to the P50, as the projections have it
    spread: float  # log of P90 over P50, of the time ahead
    middle: float
    late: float  # the quantiles that were given out, in spreads beyond this P50

    @property
    def kind(self) -> ForecastKind:
        return _kind(self.spread)

    def exceeded(self, end_s: float) -> tuple[bool, bool]:
        """Whether an end at this time is later than the forecast P50 and P90."""
        taken_s = max(end_s - self.at_s, 0.0)
        error = math.log((taken_s + NEAR_S) / (self.ahead_s + NEAR_S)) / self.spread
        return error > self.middle, error > self.late


class ForecastCalibrator:
    """Keeps the forecasts that were given out, and corrects the next ones. One thread at a time."""

    def __init__(self) -> None:
        self.offsets = dict.fromkeys(ForecastKind, QuantileOffsets())
        self.count = 0  # forecasts whose outcome is known
        self._open: dict[JobId, list[IssuedForecast]] = {}

    def calibrate(self, forecast: Forecast) -> Forecast:
        """The forecast with quantiles that are met as often as they say. It is kept to learn from."""
        for one in forecast.jobs:
            self._keep(forecast.now_s, one)
        jobs = tuple(self._calibrated(forecast.now_s, one) for one in forecast.jobs)
        return replace(forecast, jobs=jobs)

    def _keep(self, now_s: float, one: JobForecast) -> None:
        if not one.finish_p90_s < math.inf:
            return
        before = self._open.setdefault(one.job, [])
        if before and now_s - before[-1].at_s < AGAIN * before[-1].ahead_s:
            return
        ahead_s = max(one.finish_p50_s - now_s, 0.0)
        spread = _spread(now_s, one)
        before.append(IssuedForecast(one.job, now_s, ahead_s, spread, *self.offsets[_kind(spread)]))
        if sum(map(len, self._open.values())) > MOST:
            del self._open[next(iter(self._open))]

    def learn(self, past: Mapping[JobId, PastJob], living: Iterable[JobId], now_s: float) -> None:
        """Counts the forecasts of jobs that succeeded, or that are late already."""
        alive = frozenset(living)
        for job, issued in list(self._open.items()):
            over = past.get(job)
            if job in alive:
                # One that is late counts before the job has ended: otherwise only short jobs would count.
                late = [one for one in issued if one.exceeded(now_s)[1]]
                self._open[job] = [one for one in issued if one not in late]
                for one in late:
                    self._count(one, now_s)
                continue
            del self._open[job]
            if over is not None and over.state is JobState.SUCCEEDED:
                for one in issued:
                    self._count(one, over.end_s)

    def _count(self, issued: IssuedForecast, end_s: float) -> None:
        kind = issued.kind
        self.offsets[kind] = self.offsets[kind].after(issued.exceeded(end_s), STEPS[kind])
        self.count += 1

    def _calibrated(self, now_s: float, one: JobForecast) -> JobForecast:
        """The forecast with corrected quantiles. No job ends before it starts."""
        if not one.finish_p90_s < math.inf:
            return one
        base_s, spread = max(one.finish_p50_s - now_s, 0.0) + NEAR_S, _spread(now_s, one)
        p50_s, p90_s = (
            now_s + max(base_s * math.exp(spread * move) - NEAR_S, 0.0) for move in self.offsets[_kind(spread)]
        )
        p50_s = max(p50_s, one.start_p50_s, now_s)
        return replace(one, finish_p50_s=p50_s, finish_p90_s=max(p50_s, one.start_p90_s, p90_s))

    def dump(self) -> dict[str, Any]:
        issued = [list(one) for own in self._open.values() for one in own]
        offsets = {kind.value: list(own) for kind, own in self.offsets.items()}
        return {"moves": offsets, "count": self.count, "open": issued}

    def load(self, kept: Any) -> None:
        """Restores a dump; ValueError for anything else."""
        try:
            offsets = {}
            for kind in ForecastKind:
                middle, late = map(float, kept["moves"][kind.value])
                offsets[kind] = QuantileOffsets(middle, late).bounded()
            issued = [IssuedForecast(str(job), *map(float, rest)) for job, *rest in kept["open"]]
            count = int(kept["count"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not what was kept of forecasts: {error!r}") from error
        if any(not all(map(math.isfinite, one[1:])) or one.spread <= 0 for one in issued):
            raise ValueError("not what was kept of forecasts: a number is none")
        self.offsets, self.count = offsets, count
        for one in issued:
            self._open.setdefault(one.job, []).append(one)


def _spread(now_s: float, one: JobForecast) -> float:
    ahead_s, most_s = (max(at_s - now_s, 0.0) + NEAR_S for at_s in (one.finish_p50_s, one.finish_p90_s))
    return max(math.log(most_s / ahead_s), LEAST_SPREAD)


def _kind(spread: float) -> ForecastKind:
    return ForecastKind.GUESS if spread > GUESS_SPREAD else ForecastKind.KNOWN
