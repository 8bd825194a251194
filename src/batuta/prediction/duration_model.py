"""How long a job will take, learned from those of the past.

What a model says of its own training is too good. So its history is lived through again: cut into stretches
of time, each foretold from what was known before it, with the jobs that ran then counting as what they were,
longer than so far. What is found there about how far off the model is (`duration_tracking`) goes with the
final one, which is made from everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.expected import ExpectedWork
from batuta.core.job import Job
from batuta.prediction.duration import Quantiles
from batuta.prediction.duration_boosting import FEWEST, BoostedModel, can_boost
from batuta.prediction.duration_groups import KINDS, GroupModel
from batuta.prediction.duration_history import Facts, Outcome
from batuta.prediction.duration_tracking import LIMIT, WIDE_LIMIT, Followed, QuantileTracker, follow

FEWEST_JOBS = 5
"""Jobs of the past below which nothing is said."""
STRETCHES = 10
STRETCHES_BOOSTED = 4
"""Fewer, for boosting takes seconds."""
LONGEST_LOG_S = 20.0


@dataclass(frozen=True, slots=True)
class Told:
    """A forecast, and where it comes from."""

    quantiles: Quantiles
    source: str
    jobs: int

    def expected(self) -> ExpectedWork:
        own = self.quantiles
        return ExpectedWork(own.seconds, self.source, self.jobs)


class _Model(Protocol):
    def predict_all(self, facts: Sequence[Facts]) -> FloatArray:
        """Log seconds at each level, a row for each job."""
        ...


class DurationModel:
    """What was learned at one moment. Only its tracker goes on to learn, from every job that ends."""

    def __init__(
        self, groups: GroupModel, boosted: BoostedModel | None, tracker: QuantileTracker, jobs: int
    ) -> None:
        self._groups = groups
        self._boosted = boosted
        self.tracker = tracker
        self._jobs = jobs

    @property
    def boosts(self) -> bool:
        """Whether boosting did better than the groups of alike jobs alone."""
        return self._boosted is not None

    def predict(self, facts: Facts) -> Told:
        """How long a job with these facts will take on one GPU of the reference type."""
        kind = self._groups.kind_of(facts)
        if self._boosted is not None:
            logs, jobs = self._boosted.predict(facts), self._jobs
            source = f"boosting over {KINDS[kind][0]} and more"
        else:
            logs, jobs = self._groups.predict(facts, kind), self._groups.jobs(kind, facts)
            source = KINDS[kind][0]
        moved = np.minimum(self.tracker.move(logs), LONGEST_LOG_S)
        return Told(Quantiles.of(np.exp(moved)), source, jobs)

    def expect(self, job: Job) -> ExpectedWork:
        """The same as a job keeps it."""
        return self.predict(Facts.of(job)).expected()


def learn(
    outcomes: Sequence[Outcome], *, boost: bool = True, previous: DurationModel | None = None
) -> DurationModel | None:
    """A model of all these; None when there are too few. Takes seconds for many, and no lock.

    The tracker of the previous model goes on if it is of the same kind; else there is one that has lived
    through the history again.
    """
    ordered = sorted(outcomes, key=lambda one: (one.submit_s, one.end_s))
    ended = sum(one.ended for one in ordered)
    if ended < FEWEST_JOBS:
        return None
    groups = GroupModel(ordered)
    if boost and ended >= FEWEST and can_boost():
        by_boosting = _relive(ordered, STRETCHES_BOOSTED, boosted=True)
        # The same stretches for both, or the losses could not be compared.
        if by_boosting.loss < _relive(ordered, STRETCHES_BOOSTED, boosted=False).loss:
            followed = previous.tracker if previous is not None and previous.boosts else by_boosting.tracker
            return DurationModel(groups, BoostedModel(ordered, groups), followed, ended)
    if previous is not None and not previous.boosts:
        return DurationModel(groups, None, previous.tracker, ended)
    return DurationModel(groups, None, _relive(ordered, STRETCHES, boosted=False).tracker, ended)


def _relive(ordered: Sequence[Outcome], stretches: int, *, boosted: bool) -> Followed:
    """Foretells each stretch of a history from the ones before it, and follows what came of it."""
    size = -(-len(ordered) // stretches)
    predicted, lived = list[FloatArray](), list[Outcome]()
    for start in range(size, len(ordered), size):
        stretch = ordered[start : start + size]
        known = [one.as_of(stretch[0].submit_s) for one in ordered[:start]]
        if sum(one.ended for one in known) < FEWEST_JOBS:
            continue
        model: _Model = GroupModel(known)
        if boosted and len(known) >= FEWEST:
            model = BoostedModel(known, GroupModel(known))
        predicted.append(model.predict_all([one.facts for one in stretch]))
        lived += stretch
    limit = WIDE_LIMIT if boosted else LIMIT
    if not lived:
        return Followed(QuantileTracker(limit), 0.0)
    return follow(lived, np.concatenate(predicted), limit)
