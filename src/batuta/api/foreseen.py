"""Answers about the future that are kept for a while: many ask, and it is computed once."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from batuta.backends.sim.foresight.forecast import Forecast
from batuta.backends.sim.foresight.hindsight import Hindsight
from batuta.backends.sim.foresight.questions import Answer, EtaQuestion, Question
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.store.errors import StoreError

_log = logging.getLogger(__name__)
Foresight: TypeAlias = Callable[[World, Question], Answer]
"""Answers a question about a fork of the World, which it takes over. It may take a while."""
FRESH_S = 5.0
"""An answer about another version of the World does for so long …"""
REST = 3.0
"""… and for so many times as long as it took: looking ahead has its share of the machine, and no more."""
OLD_S = 600.0
"""What was foretold so long ago is not shown beside a job any more."""
SETTING = "forecast-hindsight"
"""Where it is kept how earlier forecasts came true."""


class Settings(Protocol):
    """Texts that outlive the server."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    forecast: Forecast
    taken_s: float
    """By the monotonic clock."""
    cost_s: float


class Foreseen:
    """The last forecasts, by policy and by what they assume. Who asks meanwhile waits for the same one.

    Those that expect jobs to come can be held against what really happens, and the next ones are corrected by
    it. What would be if nobody came is never known, so that is told as it is found.
    """

    def __init__(self, foresight: Foresight, fork: Callable[[], World], settings: Settings) -> None:
        self._foresight = foresight
        self._fork = fork
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], _Kept] = {}
        self._hindsight: Hindsight | None = None
        self._finishes: tuple[float, Mapping[JobId, float]] = (-math.inf, {})

    def finishes_s(self) -> Mapping[JobId, float]:
        """When jobs finish (P50) as it was last told to anybody; empty when that is long ago. At once."""
        taken_s, found = self._finishes
        return found if time.monotonic() - taken_s < OLD_S else {}

    def forecast(
        self, version: int, policy: str, now_s: float, *, expects_arrivals: bool, job: str | None = None
    ) -> Forecast:
        """For a thread that may wait. Who asks for one job gets an answer that has it, if it is alive."""
        key = (policy, expects_arrivals)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and (kept.version == version or _is_fresh(kept, job)):
                return kept.forecast
            world, begun_s = self._fork(), time.monotonic()
            version = world.version
            question = EtaQuestion(max(now_s, world.now_s), policy, expects_arrivals)
            found = self._look(world, question)
            cost_s = time.monotonic() - begun_s
            self._kept[key] = _Kept(version, found, time.monotonic(), cost_s)
            if expects_arrivals:
                ends_s = {one.job: one.finish_p50_s for one in found.jobs if one.finish_p50_s < math.inf}
                self._finishes = (time.monotonic(), ends_s)
            return found

    def _look(self, world: World, question: EtaQuestion) -> Forecast:
        hindsight = None
        if question.expects_arrivals:
            hindsight = self._hindsight = self._hindsight or self._recalled()
            hindsight.learn(world.past, world.jobs.ids, question.now_s)
        found = self._foresight(world, question)
        assert isinstance(found, Forecast)
        if hindsight is None:
            return found
        told = hindsight.tell(found)
        self._keep(hindsight)
        if not hindsight.count:
            return told
        answers = "1 earlier answer" if hindsight.count == 1 else f"{hindsight.count} earlier answers"
        return replace(told, notes=(*told.notes, f"corrected by what came of {answers}"))

    def _recalled(self) -> Hindsight:
        found = Hindsight()
        try:
            text = self._settings.get(SETTING)
            if text:
                found.load(json.loads(text))
        except (StoreError, ValueError) as error:
            _log.warning("how forecasts came true is not known any more: %s", error)
        return found

    def _keep(self, hindsight: Hindsight) -> None:
        try:
            self._settings.put(SETTING, json.dumps(hindsight.dump()))
        except StoreError as error:
            _log.warning("how forecasts came true is not kept: %s", error)


def _is_fresh(kept: _Kept, job: str | None) -> bool:
    if job is not None and all(one.job != job for one in kept.forecast.jobs):
        return False  # it came since
    return time.monotonic() - kept.taken_s < max(FRESH_S, REST * kept.cost_s)
