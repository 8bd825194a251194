"""Answers about the future that are kept for a while: many ask, and it is computed once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from batuta.backends.sim.foresight.forecast import Forecast
from batuta.backends.sim.foresight.questions import Answer, EtaQuestion, Question
from batuta.core.world import World

Foresight: TypeAlias = Callable[[World, Question], Answer]
"""Answers a question about a fork of the World, which it takes over. It may take a while."""
FRESH_S = 5.0
"""An answer about another version of the World does for so long …"""
REST = 3.0
"""… and for so many times as long as it took: looking ahead has its share of the machine, and no more."""


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    forecast: Forecast
    taken_s: float
    """By the monotonic clock."""
    cost_s: float


class Foreseen:
    """The last forecasts, by policy and by what they assume. Who asks meanwhile waits for the same one."""

    def __init__(self, foresight: Foresight, fork: Callable[[], World]) -> None:
        self._foresight = foresight
        self._fork = fork
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], _Kept] = {}

    def forecast(self, version: int, policy: str, now_s: float, *, expects_arrivals: bool) -> Forecast:
        """For a thread that may wait."""
        key = (policy, expects_arrivals)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and (kept.version == version or _is_fresh(kept)):
                return kept.forecast
            world, begun_s = self._fork(), time.monotonic()
            version = world.version
            question = EtaQuestion(max(now_s, world.now_s), policy, expects_arrivals)
            found = self._foresight(world, question)
            assert isinstance(found, Forecast)
            cost_s = time.monotonic() - begun_s
            self._kept[key] = _Kept(version, found, time.monotonic(), cost_s)
            return found


def _is_fresh(kept: _Kept) -> bool:
    return time.monotonic() - kept.taken_s < max(FRESH_S, REST * kept.cost_s)
