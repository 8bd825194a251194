"""How long a job will take, learned from past jobs.

- `GroupModel`: quantiles of the most similar past jobs. Jobs are similar that have the same user and name;
  where there are too few, the same name; and so on to all jobs. The most specific group with enough jobs
  decides; the fewer it has, the more the next wider group counts.
- `BoostedModel`: gradient boosting (needs scikit-learn) over what the groups said before each job was
  submitted, the size and the hour. Names need no encoding, and an unknown name is only a missing value.
- `QuantileTracker`: shifts the quantiles until they cover as many jobs as they state. When a job exceeds
  its quantile, the quantile moves up a little, else down by less (online conformal prediction by quantile
  tracking; Angelopoulos, Candès and Tibshirani, NeurIPS 2023, section 2.1). The shift is limited: thousands
  of jobs that were submitted at once get the same forecast before the first of them ends, and then all push
  the same way.

The error on the training set is too optimistic. So the history is validated walk-forward: cut into
intervals, each predicted from what was known before it, with the jobs that ran then as censored values.
The shift found there goes with the final model, which is fitted on everything.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.job import ExpectedWork
from batuta.prediction.duration import LEVELS, JobFeatures, Outcome, Quantiles, survival_quantiles

ENOUGH_JOBS = 5  # a group with so many jobs is used
MOST_PER_GROUP = 1_000  # jobs of a group that count, the newest ones: what people run changes
WIDER = 4.0  # the weight of the wider group, in jobs of the group itself

KINDS: tuple[tuple[str, Callable[[JobFeatures], Hashable]], ...] = (
    ("the same user, name and size", lambda f: (f.user, f.name, f.gpus)),
    ("the same user and name", lambda f: (f.user, f.name)),
    ("the same name", lambda f: f.name),
    ("the same user and size", lambda f: (f.user, f.gpus)),
    ("the same user", lambda f: f.user),
    ("the same queue and size", lambda f: (f.queue, f.gpus)),
    ("the same queue", lambda f: f.queue),
    ("all jobs", lambda _: ()),
)
"""From the most specific to the widest."""
ALL_JOBS = len(KINDS) - 1
_WIDER_KIND = (1, 2, ALL_JOBS, 4, ALL_JOBS, 6, ALL_JOBS)  # by kind: the next wider one that contains its groups
FEWEST_TO_BOOST = 300  # jobs below which the groups alone do as well
MOST_TO_BOOST = 10_000  # jobs that it learns from, the newest ones: more make it slower and no better
MOST_CACHED = 4_096
_SETTINGS = {
    "loss": "quantile",
    "max_iter": 80,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 40,
    "learning_rate": 0.1,
    "early_stopping": False,
    "random_state": 0,
}
STEP = 0.03  # in log seconds. Larger follows faster, and makes every forecast wider
LIMIT = 3.0  # in log seconds: up to twenty times as long, or as short
WIDE_LIMIT = 4.0  # the same for a model that is surer of itself than it should be
_EXCEEDED = 1.0 - np.array(LEVELS)
FEWEST_JOBS = 5  # jobs of the past below which nothing is said
INTERVALS = 10
INTERVALS_BOOSTED = 4  # fewer, for boosting takes seconds
LONGEST_LOG_S = 20.0


class GroupModel:
    """Quantiles in log seconds. What a group says is worked out when it is asked for, and kept."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._groups: list[dict[Hashable, deque[tuple[float, bool]]]] = [{} for _ in KINDS]
        """By kind: the newest jobs of every group, as log seconds and whether each is over."""
        for outcome in outcomes:
            entry = (float(np.log(outcome.work_s)), outcome.ended)
            for (_, key_of), groups in zip(KINDS, self._groups, strict=True):
                groups.setdefault(key_of(outcome.features), deque(maxlen=MOST_PER_GROUP)).append(entry)
        self._known: dict[tuple[int, Hashable], FloatArray] = {}

    def _group(self, kind: int, features: JobFeatures) -> Sequence[tuple[float, bool]]:
        return self._groups[kind].get(KINDS[kind][1](features), ())

    def kind_of(self, features: JobFeatures) -> int:
        """The most specific kind of group with enough jobs that are over; for want of one, all jobs."""
        return next((kind for kind in range(ALL_JOBS) if self.jobs(kind, features) >= ENOUGH_JOBS), ALL_JOBS)

    def jobs(self, kind: int, features: JobFeatures) -> int:
        """How many jobs the group has that are over."""
        return sum(ended for _, ended in self._group(kind, features))

    def predict_all(self, features: Sequence[JobFeatures]) -> FloatArray:
        return np.array([self.predict(one) for one in features])

    def predict(self, features: JobFeatures, kind: int | None = None) -> FloatArray:
        """Log seconds at each level. There has to be a job, in all."""
        kind = self.kind_of(features) if kind is None else kind
        key = (kind, KINDS[kind][1](features))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._work_out(kind, features)
        return known

    def _work_out(self, kind: int, features: JobFeatures) -> FloatArray:
        own = self._group(kind, features)
        values = np.array([value for value, _ in own])
        found = survival_quantiles(values, np.array([ended for _, ended in own], bool))
        if kind == ALL_JOBS:
            return found
        wider = self.predict(features, _WIDER_KIND[kind])
        return (len(values) * found + WIDER * wider) / (len(values) + WIDER)


def can_boost() -> bool:
    """Whether scikit-learn is there. It is not loaded yet."""
    return find_spec("sklearn") is not None


class BoostedModel:
    """One ensemble per level, on log seconds."""

    def __init__(self, outcomes: Sequence[Outcome], groups: GroupModel) -> None:
        newest = outcomes[-MOST_TO_BOOST:]
        running = _Medians()
        inputs = np.array([running.look_and_add(one) for one in newest])
        logs = np.array([_log_work(one, groups) for one in newest])
        self._medians = running
        self._cache: dict[JobFeatures, FloatArray] = {}  # a forecast takes milliseconds, and jobs come in swarms
        regressor: Any = import_module("sklearn.ensemble").HistGradientBoostingRegressor
        self._threads: Any = import_module("threadpoolctl").ThreadpoolController()
        with self._alone():
            self._levels = [regressor(quantile=level, **_SETTINGS).fit(inputs, logs) for level in LEVELS]

    def _alone(self) -> Any:
        """One thread: the others are needed elsewhere, and such small work only makes them wait for it."""
        return self._threads.limit(limits=1, user_api="openmp")

    def predict(self, features: JobFeatures) -> FloatArray:
        found = self._cache.get(features)
        if found is None:
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            found = self._cache[features] = self.predict_all([features])[0]
        return found

    def predict_all(self, features: Sequence[JobFeatures]) -> FloatArray:
        """The same for many, which takes hardly longer than for one."""
        inputs = np.array([self._medians.look(one) for one in features])
        with self._alone():
            levels = [one.predict(inputs) for one in self._levels]
        return np.sort(np.stack(levels, axis=1))


def _log_work(outcome: Outcome, groups: GroupModel) -> float:
    """A job that still runs counts with what is to be expected of one that has lasted so long."""
    if outcome.ended:
        return math.log(outcome.work_s)
    belief = Quantiles.of(np.exp(groups.predict(outcome.features)))
    return math.log(outcome.work_s + belief.left_after(outcome.work_s).p50_s)


class _Medians:
    """Median, upper quartile and last log seconds of each group so far, of its newest jobs."""

    def __init__(self) -> None:
        self._groups: list[dict[Hashable, _Sorted]] = [{} for _ in KINDS]

    def look_and_add(self, outcome: Outcome) -> list[float]:
        found = self.look(outcome.features)
        if outcome.ended:
            log_s = math.log(outcome.work_s)
            for (_, key_of), groups in zip(KINDS, self._groups, strict=True):
                groups.setdefault(key_of(outcome.features), _Sorted()).add(log_s)
        return found

    def look(self, features: JobFeatures) -> list[float]:
        found = [math.log2(max(features.gpus, 1)), features.hour]
        for (_, key_of), groups in zip(KINDS, self._groups, strict=True):
            own = groups.get(key_of(features))
            found += [math.nan] * 3 if own is None else own.summary()
        return found


@dataclass(slots=True)
class _Sorted:
    """The newest values, in order of time and of size."""

    by_time: deque[float] = field(default_factory=deque)
    by_size: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.by_time.append(value)
        insort(self.by_size, value)
        if len(self.by_time) > MOST_PER_GROUP:
            del self.by_size[bisect_left(self.by_size, self.by_time.popleft())]

    def summary(self) -> list[float]:
        n = len(self.by_size)
        return [self.by_size[n // 2], self.by_size[min(n - 1, 3 * n // 4)], self.by_time[-1]]


class QuantileTracker:
    """How far the quantiles of a model have to be moved, in log seconds, by all that has ended so far."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.offsets: FloatArray = np.zeros(len(LEVELS))  # replaced, never changed: others may be reading it
        self._limit = limit

    def ended(self, log_work: float, forecast: FloatArray) -> None:
        """Update with a job that ended and its forecast at submission; both in log seconds."""
        moved = self.offsets + STEP * ((log_work > forecast) - _EXCEEDED)
        self.offsets = np.clip(moved, -self._limit, self._limit)

    def move(self, logs: FloatArray) -> FloatArray:
        return np.sort(logs + self.offsets)


class Backtest(NamedTuple):
    """The result of replaying a history."""

    tracker: QuantileTracker
    loss: float  # mean pinball loss of the forecasts, in log seconds


def backtest(outcomes: Sequence[Outcome], predicted: FloatArray, limit: float = LIMIT) -> Backtest:
    """Forecast at each submission and update at each end; `predicted` has a row for each outcome, in submit order."""
    tracker = QuantileTracker(limit)
    running: list[tuple[float, int]] = []
    forecast = np.empty_like(predicted)
    logs = np.log([one.work_s for one in outcomes])

    def end(until_s: float) -> None:
        while running and running[0][0] <= until_s:
            _, row = heapq.heappop(running)
            tracker.ended(logs[row], forecast[row])

    for row, one in enumerate(outcomes):
        end(one.submit_s)
        forecast[row] = tracker.move(predicted[row])
        if one.ended:
            heapq.heappush(running, (one.end_s, row))
    end(np.inf)
    over = np.array([one.ended for one in outcomes], bool)
    return Backtest(tracker, pinball_loss(logs[over], forecast[over]))


def pinball_loss(logs: FloatArray, forecast: FloatArray) -> float:
    """The mean loss over jobs and levels; lower is better, and honest quantiles are best."""
    if not len(logs):
        return 0.0
    off, levels = logs[:, None] - forecast, np.array(LEVELS)
    return float(np.mean(np.maximum(levels * off, (levels - 1.0) * off)))


@dataclass(slots=True, eq=False)
class DurationModel:
    """What was learned at one moment. Only its tracker goes on to learn, from every job that ends."""

    groups: GroupModel
    boosted: BoostedModel | None
    tracker: QuantileTracker
    jobs: int

    @property
    def boosts(self) -> bool:
        """Whether boosting predicted better than the groups of similar jobs."""
        return self.boosted is not None

    def predict(self, features: JobFeatures) -> ExpectedWork:
        """How long a job with these features will take on one GPU of the reference type."""
        kind = self.groups.kind_of(features)
        if self.boosted is not None:
            logs, jobs = self.boosted.predict(features), self.jobs
            source = f"boosting over {KINDS[kind][0]} and more"
        else:
            logs, jobs = self.groups.predict(features, kind), self.groups.jobs(kind, features)
            source = KINDS[kind][0]
        moved = np.minimum(self.tracker.move(logs), LONGEST_LOG_S)
        return ExpectedWork(Quantiles.of(np.exp(moved)).seconds, source, jobs)


def learn(
    outcomes: Sequence[Outcome], *, boost: bool = True, previous: DurationModel | None = None
) -> DurationModel | None:
    """A model of all these; None when there are too few. Takes seconds for many, and no lock.

    The tracker of a previous model of the same kind continues; else walk-forward validation makes a new one.
    """
    ordered = sorted(outcomes, key=lambda one: (one.submit_s, one.end_s))
    ended = sum(one.ended for one in ordered)
    if ended < FEWEST_JOBS:
        return None
    groups = GroupModel(ordered)
    if boost and ended >= FEWEST_TO_BOOST and can_boost():
        by_boosting = _walk_forward(ordered, INTERVALS_BOOSTED, boosted=True)
        # The same intervals for both, or the losses could not be compared.
        if by_boosting.loss < _walk_forward(ordered, INTERVALS_BOOSTED, boosted=False).loss:
            followed = previous.tracker if previous is not None and previous.boosts else by_boosting.tracker
            return DurationModel(groups, BoostedModel(ordered, groups), followed, ended)
    if previous is not None and not previous.boosts:
        return DurationModel(groups, None, previous.tracker, ended)
    return DurationModel(groups, None, _walk_forward(ordered, INTERVALS, boosted=False).tracker, ended)


def _walk_forward(ordered: Sequence[Outcome], intervals: int, *, boosted: bool) -> Backtest:
    """Predict each interval of a history from the ones before it, and track the errors."""
    size = -(-len(ordered) // intervals)
    predicted, outcomes = list[FloatArray](), list[Outcome]()
    for start in range(size, len(ordered), size):
        interval = ordered[start : start + size]
        known = [one.as_of(interval[0].submit_s) for one in ordered[:start]]
        if sum(one.ended for one in known) < FEWEST_JOBS:
            continue
        model: GroupModel | BoostedModel = GroupModel(known)
        if boosted and len(known) >= FEWEST_TO_BOOST:
            model = BoostedModel(known, GroupModel(known))
        predicted.append(model.predict_all([one.features for one in interval]))
        outcomes += interval
    limit = WIDE_LIMIT if boosted else LIMIT
    if not outcomes:
        return Backtest(QuantileTracker(limit), 0.0)
    return backtest(outcomes, np.concatenate(predicted), limit)
