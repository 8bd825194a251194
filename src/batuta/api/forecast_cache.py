"""A cache of forecasts: computed once for all requests, kept for a while, corrected by past errors."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from batuta.backends.sim.forecast.calibration import ForecastCalibrator
from batuta.backends.sim.forecast.forecast import Forecast, JobForecast
from batuta.backends.sim.forecast.queries import EtaQuery, Query, QueryResult
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.store.errors import StoreError
from batuta.store.records import Settings

_log = logging.getLogger(__name__)
ForecastFn: TypeAlias = Callable[[World, Query], QueryResult]
"""Answers a question about a fork of the World, which it may change. It may take seconds."""
FRESH_S = 5.0  # a forecast of an older version of the World is used for so long …
REST_FACTOR = 3.0
"""… or for this many times as long as it took, which bounds the share of the machine that forecasts take."""
MAX_AGE_S = 600.0  # an older forecast is not shown beside a job any more
HINDSIGHT_SETTING = "forecast-hindsight"


@dataclass(frozen=True, slots=True)
class _CachedForecast:
    version: int
    forecast: Forecast
    taken_s: float  # by the monotonic clock
    cost_s: float


class ForecastCache:
    """The last forecast for each policy and assumption. Concurrent requests wait for the same one.

    Forecasts that expect new jobs are compared with what really happens, and later ones are corrected by it.
    Forecasts without new jobs cannot be compared with anything, so they are returned as computed.
    """

    def __init__(
        self, foresight: ForecastFn, fork: Callable[[], World], settings: Settings, fence: Fence | None = None
    ) -> None:
        self._foresight = foresight
        self._fork = fork
        self._settings = settings
        self._fence = fence or Fence()
        self._lock = threading.Lock()
        self._cached: dict[tuple[str, bool], _CachedForecast] = {}
        self._hindsight: ForecastCalibrator | None = None
        self._finishes: tuple[float, Mapping[JobId, float]] = (-math.inf, {})
        self._last_jobs: Mapping[JobId, JobForecast] = {}

    def finishes_s(self) -> Mapping[JobId, float]:
        """Return when jobs finish (P50) by the last forecast, without waiting; empty when it is too old."""
        taken_s, found = self._finishes
        return found if time.monotonic() - taken_s < MAX_AGE_S else {}

    def last_of(self, job: JobId) -> JobForecast | None:
        """Return the last forecast of a job, without waiting; None when it is too old."""
        taken_s, _ = self._finishes
        return self._last_jobs.get(job) if time.monotonic() - taken_s < MAX_AGE_S else None

    def forecast(
        self, version: int, policy: str, now_s: float, *, expects_arrivals: bool, job: str | None = None
    ) -> Forecast:
        """Return a forecast, computed now if none is fresh. It has `job`, if that is alive. May block."""
        key = (policy, expects_arrivals)
        with self._lock:
            cached = self._cached.get(key)
            if cached is not None and (cached.version == version or _is_fresh(cached, job)):
                return cached.forecast
            world, begun_s = self._fork(), time.monotonic()
            version = world.version
            question = EtaQuery(max(now_s, world.now_s), policy, expects_arrivals)
            found = self._compute(world, question)
            cost_s = time.monotonic() - begun_s
            self._cached[key] = _CachedForecast(version, found, time.monotonic(), cost_s)
            if expects_arrivals:
                ends_s = {one.job: one.finish_p50_s for one in found.jobs if one.finish_p50_s < math.inf}
                self._finishes = (time.monotonic(), ends_s)
                self._last_jobs = {one.job: one for one in found.jobs}
            return found

    def _compute(self, world: World, question: EtaQuery) -> Forecast:
        hindsight = None
        if question.expects_arrivals:
            hindsight = self._hindsight = self._hindsight or self._load_hindsight()
            hindsight.learn(world.past, world.jobs.ids, question.now_s)
        found = self._foresight(world, question)
        assert isinstance(found, Forecast)
        if hindsight is None:
            return found
        corrected = hindsight.calibrate(found)
        with self._fence.around("how forecasts came true"):
            self._settings.put(HINDSIGHT_SETTING, json.dumps(hindsight.dump()))
        if not hindsight.count:
            return corrected
        answers = "1 earlier answer" if hindsight.count == 1 else f"{hindsight.count} earlier answers"
        return replace(corrected, notes=(*corrected.notes, f"corrected by what came of {answers}"))

    def _load_hindsight(self) -> ForecastCalibrator:
        found = ForecastCalibrator()
        try:
            text = self._settings.get(HINDSIGHT_SETTING)
            if text:
                found.load(json.loads(text))
        except (StoreError, ValueError) as error:
            _log.warning("the record of how forecasts came true cannot be read: %s", error)
        return found


def _is_fresh(cached: _CachedForecast, job: str | None) -> bool:
    if job is not None and all(one.job != job for one in cached.forecast.jobs):
        return False  # it was submitted since
    return time.monotonic() - cached.taken_s < max(FRESH_S, REST_FACTOR * cached.cost_s)
