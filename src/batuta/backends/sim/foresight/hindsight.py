"""How far off earlier forecasts turned out to be, and what that says of new ones.

A forecast is quantiles over futures that were simulated, so it is too sure of itself wherever the simulation
is wrong in the same way in all of them. What was told is therefore kept until the job is over. The error of a
forecast is counted in its own spread: how many times the way from its P50 to its P90 the end lay beyond its
P50. Whenever a job ends later than it was told, the quantile moves up a little, and down by less whenever one
does not: in balance, a P90 is exceeded by one job in ten, whatever the model, the policy or the season
(online conformal prediction by quantile tracking; Angelopoulos, Candès and Tibshirani, NeurIPS 2023).
Guesses about jobs of which hardly anything is known are corrected apart: what is learned of one kind would
make the other too sure or too cautious.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from batuta.backends.sim.foresight.forecast import P50, P90, Forecast, JobForecast
from batuta.core.job import JobId, JobState
from batuta.core.world import PastJob


class Kind(Enum):
    """What a forecast rests on."""

    KNOWN = "known"
    GUESS = "guess"


MIDDLE_STEP = 0.005
LATE_STEPS = {Kind.KNOWN: 0.3, Kind.GUESS: 0.1}
"""In spreads. Larger follows faster, and makes forecasts noisier: the P50 is not far off to begin with, and
the spread of a guess is large."""
GUESS_SPREAD = 1.0
"""Of log time: a P90 of nearly three times the P50 is more of a guess than of a forecast."""
MIDDLES, LATES = (-1.5, 2.5), (0.1, 6.0)
"""Between these each quantile may move, in spreads. A P90 that was always met comes down close to the P50."""
MOST = 5_000
"""Forecasts that are kept of jobs that are not over."""
AGAIN = 0.25
"""What is told of a job again counts again when this share of the time that was told has passed."""
LEAST_SPREAD = 0.1
"""Of log time: a forecast that is surer than this is not believed to be."""
NEAR_S = 60.0
"""Errors of less time than this hardly count."""


class Moves(NamedTuple):
    """Where the quantiles of one kind of forecast are told to be, in spreads beyond its P50."""

    middle: float = 0.0
    late: float = 1.0

    def after(self, exceeded: Exceeded, late_step: float) -> Moves:
        middle = self.middle + MIDDLE_STEP * (exceeded.middle - (1.0 - P50))
        late = self.late + late_step * (exceeded.late - (1.0 - P90))
        return Moves(middle, late).bounded()

    def bounded(self) -> Moves:
        return Moves(_within(self.middle, MIDDLES), _within(self.late, LATES))


class Exceeded(NamedTuple):
    """Whether a job ended later than it was told."""

    middle: bool
    late: bool


class Told(NamedTuple):
    """What was said about the end of a job."""

    job: JobId
    at_s: float
    ahead_s: float
    """To the P50, as the futures have it."""
    spread: float
    """Log of P90 over P50, of the time ahead."""
    middle: float
    late: float
    """What was told, in spreads beyond this P50."""

    @property
    def kind(self) -> Kind:
        return _kind(self.spread)

    def exceeded(self, end_s: float) -> Exceeded:
        taken_s = max(end_s - self.at_s, 0.0)
        error = math.log((taken_s + NEAR_S) / (self.ahead_s + NEAR_S)) / self.spread
        return Exceeded(error > self.middle, error > self.late)


class Hindsight:
    """Remembers what was told, and corrects what is told next. One thread at a time."""

    def __init__(self) -> None:
        self.moves = dict.fromkeys(Kind, Moves())
        self.count = 0
        """Forecasts of which it is known by now whether they were met."""
        self._open: dict[JobId, list[Told]] = {}

    def tell(self, forecast: Forecast) -> Forecast:
        """The forecast with quantiles that are met as often as they say. It is kept to learn from."""
        for one in forecast.jobs:
            self._keep(forecast.now_s, one)
        jobs = tuple(self._moved(forecast.now_s, one) for one in forecast.jobs)
        return replace(forecast, jobs=jobs)

    def _keep(self, now_s: float, one: JobForecast) -> None:
        if not one.finish_p90_s < math.inf:
            return
        before = self._open.setdefault(one.job, [])
        if before and now_s - before[-1].at_s < AGAIN * before[-1].ahead_s:
            return
        ahead_s = max(one.finish_p50_s - now_s, 0.0)
        spread = _spread(now_s, one)
        before.append(Told(one.job, now_s, ahead_s, spread, *self.moves[_kind(spread)]))
        if sum(map(len, self._open.values())) > MOST:
            del self._open[next(iter(self._open))]

    def learn(self, past: Mapping[JobId, PastJob], living: Iterable[JobId], now_s: float) -> None:
        """Takes in what is known by now: who is over, and who is later than told already.

        One that did not come to its end by itself does not count.
        """
        alive = frozenset(living)
        for job, told in list(self._open.items()):
            over = past.get(job)
            if job in alive:
                self._open[job] = [one for one in told if not self._is_late(one, now_s)]
                continue
            del self._open[job]
            if over is not None and over.state is JobState.SUCCEEDED:
                for one in told:
                    self._count(one, one.exceeded(over.end_s))

    def _is_late(self, told: Told, now_s: float) -> bool:
        """Whether it has to be counted before the job is over: else only the short ones would be heard."""
        exceeded = told.exceeded(now_s)
        if exceeded.late:
            self._count(told, exceeded)
        return exceeded.late

    def _count(self, told: Told, exceeded: Exceeded) -> None:
        self.moves[told.kind] = self.moves[told.kind].after(exceeded, LATE_STEPS[told.kind])
        self.count += 1

    def _moved(self, now_s: float, one: JobForecast) -> JobForecast:
        """The same forecast with its quantiles where they are told to be. Nobody ends before it starts."""
        if not one.finish_p90_s < math.inf:
            return one
        base_s, spread = max(one.finish_p50_s - now_s, 0.0) + NEAR_S, _spread(now_s, one)
        p50_s, p90_s = (
            now_s + max(base_s * math.exp(spread * move) - NEAR_S, 0.0) for move in self.moves[_kind(spread)]
        )
        p50_s = max(p50_s, one.start_p50_s, now_s)
        return replace(one, finish_p50_s=p50_s, finish_p90_s=max(p50_s, one.start_p90_s, p90_s))

    # ------------------------------------------------------------------------------------------ for a restart

    def dump(self) -> dict[str, Any]:
        told = [list(one) for own in self._open.values() for one in own]
        moves = {kind.value: list(own) for kind, own in self.moves.items()}
        return {"moves": moves, "count": self.count, "open": told}

    def load(self, kept: Any) -> None:
        """ValueError for what was not dumped here."""
        try:
            moves = {}
            for kind in Kind:
                middle, late = map(float, kept["moves"][kind.value])
                moves[kind] = Moves(middle, late).bounded()
            told = [Told(str(job), *map(float, rest)) for job, *rest in kept["open"]]
            count = int(kept["count"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not what was kept of forecasts: {error!r}") from error
        if any(not all(map(math.isfinite, one[1:])) or one.spread <= 0 for one in told):
            raise ValueError("not what was kept of forecasts: a number is none")
        self.moves, self.count = moves, count
        for one in told:
            self._open.setdefault(one.job, []).append(one)


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _spread(now_s: float, one: JobForecast) -> float:
    ahead_s, most_s = (max(at_s - now_s, 0.0) + NEAR_S for at_s in (one.finish_p50_s, one.finish_p90_s))
    return max(math.log(most_s / ahead_s), LEAST_SPREAD)


def _kind(spread: float) -> Kind:
    return Kind.GUESS if spread > GUESS_SPREAD else Kind.KNOWN
