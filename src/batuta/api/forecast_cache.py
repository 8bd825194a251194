"""A cache of forecasts: computed once for all requests, kept for a while, corrected by past errors.

A forecast of thousands of jobs takes many seconds. A request waits a bounded time for it, without a thread of
its own; then it gets the last one, with its age, or a coarse one. The forecast goes on for later requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from batuta.backends.sim.forecast.calibration import ForecastCalibrator
from batuta.backends.sim.forecast.coarse import COARSE, coarse_forecast
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
MAX_AGE_S = 600.0  # an older forecast is not shown any more
FEW_JOBS, FEW_WAIT_S, MANY_WAIT_S = 200, 10.0, 0.5
"""How long a request waits for a forecast, by the number of living jobs. That of few jobs is worth it: it comes
within a second or two, or somewhat later where the process that computes it has yet to start."""
_COARSE_WITHIN_S = 20.0
_COARSE_AFTER_S = 0.25  # the coarse one is begun when the forecast is not there by then
HINDSIGHT_SETTING = "forecast-hindsight"
COMPUTING = "a finer forecast is being computed: ask again"


def usual_wait_s(jobs: int) -> float:
    return FEW_WAIT_S if jobs <= FEW_JOBS else MANY_WAIT_S


@dataclass(frozen=True)
class _CachedForecast:
    version: int
    forecast: Forecast
    begun_s: float  # by the monotonic clock, as the next one
    taken_s: float

    @cached_property
    def by_job(self) -> dict[JobId, JobForecast]:
        return {one.job: one for one in self.forecast.jobs}

    @cached_property
    def finishes_s(self) -> dict[JobId, float]:
        return {one.job: one.finish_p50_s for one in self.forecast.jobs if one.finish_p50_s < math.inf}

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.taken_s

    def is_fresh(self, version: int, job: JobId | None) -> bool:
        if self.version == version:
            return True
        # Another job was submitted since.
        return (job is None or job in self.by_job) and self.age_s < max(
            FRESH_S, REST_FACTOR * (self.taken_s - self.begun_s)
        )


_Key: TypeAlias = tuple[str, bool]  # policy, and whether jobs keep coming
_Compute: TypeAlias = Callable[[], _CachedForecast]
_COARSE_KEY: _Key = ("", False)


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
        self._lock = threading.Lock()  # of what follows; it is not held while a forecast is computed
        self._cached: dict[_Key, _CachedForecast] = {}
        self._under_way: dict[_Key, Future[_CachedForecast]] = {}
        self._last: _CachedForecast | None = None  # the last one that expects new jobs
        self._one_at_a_time = threading.Lock()
        self._hindsight: ForecastCalibrator | None = None

    def finishes_s(self) -> Mapping[JobId, float]:
        """Return when jobs finish (P50) by the last forecast, without waiting; empty when it is too old."""
        for found in (self._last, self._cached.get(_COARSE_KEY)):
            if found is not None and found.age_s < MAX_AGE_S:
                return found.finishes_s
        return {}

    def last_of(self, job: JobId) -> JobForecast | None:
        """Return the last forecast of a job, without waiting; None when it is too old."""
        for found in (self._last, self._cached.get(_COARSE_KEY)):
            if found is not None and found.age_s < MAX_AGE_S and job in found.by_job:
                return found.by_job[job]
        return None

    async def forecast(
        self,
        version: int,
        policy: str,
        now_s: float,
        *,
        expects_arrivals: bool,
        job: JobId | None = None,
        within_s: float,
    ) -> Forecast:
        """Return a forecast that has `job`, if that is alive; computed now if none is fresh.

        One that is not there within the time is replaced by the last one or a coarse one, which say so.
        """
        key, begun_s = (policy, expects_arrivals), time.monotonic()
        last = self._cached.get(key)

        def fine() -> Future[_CachedForecast]:
            return self._promise(key, version, job, lambda: self._compute(policy, now_s, expects_arrivals))

        def coarse() -> Future[_CachedForecast]:
            return self._promise(_COARSE_KEY, version, job, lambda: self._compute_coarse(now_s))

        found = await _within(fine, job, begun_s + min(within_s, _COARSE_AFTER_S))
        if found is not None:
            return found.forecast
        if last is not None and last.age_s > MAX_AGE_S:
            last = None
        if last is None or job not in last.by_job:
            coarse()
        found = await _within(fine, job, begun_s + within_s)
        if found is not None:
            return found.forecast
        if last is not None and job in last.by_job:
            return _aged(last)
        rough = await _within(coarse, job, begun_s + within_s + _COARSE_WITHIN_S)
        if rough is None:
            raise TimeoutError("the engine is busy, and the forecast is not ready")
        if last is not None and job is None:
            return _filled(last, rough.forecast)
        return replace(rough.forecast, notes=(*rough.forecast.notes, COMPUTING))

    def _promise(self, key: _Key, version: int, job: JobId | None, compute: _Compute) -> Future[_CachedForecast]:
        """A forecast that is fresh, or under way, or begun now."""
        cached = self._cached.get(key)
        if cached is None or not cached.is_fresh(version, job):
            return self._begin(key, compute)
        promise = Future[_CachedForecast]()
        promise.set_result(cached)
        return promise

    def _begin(self, key: _Key, compute: _Compute) -> Future[_CachedForecast]:
        """Have a forecast computed in a thread, unless one for the same key is under way."""
        with self._lock:
            if (found := self._under_way.get(key)) is not None:
                return found
            promise = Future[_CachedForecast]()
            promise.set_running_or_notify_cancel()
            thread = threading.Thread(target=self._keep, args=(key, compute, promise), name="forecast", daemon=True)
            thread.start()
            self._under_way[key] = promise
            return promise

    def _keep(self, key: _Key, compute: _Compute, promise: Future[_CachedForecast]) -> None:
        """Compute a forecast, and keep it before the requests that wait for it are answered."""
        try:
            found = compute()
        except BaseException as error:
            _log.warning("no forecast is available: %s", error)
            with self._lock:
                self._under_way.pop(key, None)
            promise.set_exception(error)
            return
        with self._lock:
            self._under_way.pop(key, None)
            self._cached[key] = found
            if key[1]:
                self._last = found
        promise.set_result(found)

    def _compute(self, policy: str, now_s: float, expects_arrivals: bool) -> _CachedForecast:
        begun_s, world = time.monotonic(), self._fork()
        version = world.version
        question = EtaQuery(max(now_s, world.now_s), policy, expects_arrivals)
        with self._one_at_a_time:
            found = self._answer(world, question)
        return _CachedForecast(version, found, begun_s, time.monotonic())

    def _compute_coarse(self, now_s: float) -> _CachedForecast:
        begun_s, world = time.monotonic(), self._fork()
        return _CachedForecast(world.version, coarse_forecast(world, now_s), begun_s, time.monotonic())

    def _answer(self, world: World, question: EtaQuery) -> Forecast:
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


async def _within(
    promise: Callable[[], Future[_CachedForecast]], job: JobId | None, until_s: float
) -> _CachedForecast | None:
    """Wait for a forecast that has the job; None when it is not there in time."""
    while True:
        begun_s, asked = time.monotonic(), promise()
        wrapped = asyncio.wrap_future(asked)
        wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not asked.done() and begun_s < until_s:
            await asyncio.wait({wrapped}, timeout=until_s - begun_s)
        if not asked.done():
            return None
        found = asked.result()
        # A job that came after it was begun is in the next one; one that is over is in none.
        if job is None or job in found.by_job or found.begun_s > begun_s:
            return found


def _aged(last: _CachedForecast) -> Forecast:
    forecast = last.forecast
    return replace(forecast, notes=(*forecast.notes, f"computed {last.age_s:.0f} s ago; {COMPUTING}"))


def _filled(last: _CachedForecast, rough: Forecast) -> Forecast:
    """Return the last forecast, with the jobs that came since from the coarse one."""
    new = tuple(one for one in rough.jobs if one.job not in last.by_job)
    found = _aged(last)
    if not new:
        return found
    count = "1 job that came since is" if len(new) == 1 else f"{len(new)} jobs that came since are"
    return replace(found, jobs=(*found.jobs, *new), notes=(*found.notes, f"{count} {COARSE}"))
