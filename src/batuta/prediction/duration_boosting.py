"""How long a job takes, by gradient boosting: what many weak hints say together. Needs scikit-learn.

It sees what the groups of alike jobs said before each job came (never what they know since), the size and
the hour. So no word has to be encoded, and a name that was never seen is no harder than any other gap.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.prediction.duration import LEVELS, Quantiles
from batuta.prediction.duration_groups import ALL, KINDS, NEWEST, GroupModel
from batuta.prediction.duration_history import Facts, Outcome

FEWEST = 300
"""Jobs below which the groups alone do as well."""
MOST = 10_000
"""Jobs that it learns from, the newest ones: more make it slower and no better."""
MOST_TOLD = 4_096
_SETTINGS = {
    "loss": "quantile",
    "max_iter": 80,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 40,
    "learning_rate": 0.1,
    "early_stopping": False,
    "random_state": 0,
}


def can_boost() -> bool:
    """Whether scikit-learn is there. It is not loaded yet."""
    return find_spec("sklearn") is not None


class BoostedModel:
    """One ensemble per level, on log seconds."""

    def __init__(self, outcomes: Sequence[Outcome], groups: GroupModel) -> None:
        newest = outcomes[-MOST:]
        running = _Medians()
        features = np.array([running.look_and_add(one) for one in newest])
        logs = np.array([_log_work(one, groups) for one in newest])
        self._medians = running
        self._told: dict[Facts, FloatArray] = {}
        """What was asked for before: a forecast takes milliseconds, and jobs come in swarms."""
        regressor: Any = import_module("sklearn.ensemble").HistGradientBoostingRegressor
        self._threads: Any = import_module("threadpoolctl").ThreadpoolController()
        with self._alone():
            self._levels = [regressor(quantile=level, **_SETTINGS).fit(features, logs) for level in LEVELS]

    def _alone(self) -> Any:
        """One thread: the others are needed elsewhere, and such small work only makes them wait for it."""
        return self._threads.limit(limits=1, user_api="openmp")

    def predict(self, facts: Facts) -> FloatArray:
        """Log seconds at each level."""
        found = self._told.get(facts)
        if found is None:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            found = self._told[facts] = self.predict_all([facts])[0]
        return found

    def predict_all(self, facts: Sequence[Facts]) -> FloatArray:
        """The same for many, which takes hardly longer than for one."""
        features = np.array([self._medians.look(one) for one in facts])
        with self._alone():
            levels = [one.predict(features) for one in self._levels]
        found: FloatArray = np.sort(np.stack(levels, axis=1))
        return found


def _log_work(outcome: Outcome, groups: GroupModel) -> float:
    """A job that still runs counts with what is to be expected of one that has lasted so long."""
    if outcome.ended:
        return math.log(outcome.work_s)
    belief = Quantiles.of(np.exp(groups.predict(outcome.facts)))
    return math.log(outcome.work_s + belief.left_after(outcome.work_s).p50_s)


class _Medians:
    """Median, upper quartile and last log seconds of each group so far, of its newest jobs."""

    def __init__(self) -> None:
        self._groups: list[dict[Hashable, _Sorted]] = [{} for _ in KINDS]

    def look_and_add(self, outcome: Outcome) -> list[float]:
        found = self.look(outcome.facts)
        if outcome.ended:
            log_s = math.log(outcome.work_s)
            for (_, key_of), groups in zip(KINDS, self._groups, strict=True):
                groups.setdefault(key_of(outcome.facts), _Sorted()).add(log_s)
        return found

    def look(self, facts: Facts) -> list[float]:
        features = [math.log2(max(facts.gpus, 1)), facts.hour]
        for kind, ((_, key_of), groups) in enumerate(zip(KINDS, self._groups, strict=True)):
            own = groups.get(key_of(facts))
            features += [math.nan] * 3 if own is None else own.summary()
            if kind == ALL:
                break
        return features


class _Sorted:
    """The newest values, in order of time and of size."""

    __slots__ = ("_by_size", "_by_time")

    def __init__(self) -> None:
        self._by_time: deque[float] = deque()
        self._by_size: list[float] = []

    def add(self, value: float) -> None:
        self._by_time.append(value)
        insort(self._by_size, value)
        if len(self._by_time) > NEWEST:
            del self._by_size[bisect_left(self._by_size, self._by_time.popleft())]

    def summary(self) -> list[float]:
        n = len(self._by_size)
        return [self._by_size[n // 2], self._by_size[min(n - 1, 3 * n // 4)], self._by_time[-1]]
