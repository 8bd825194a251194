"""ETA and what-if queries: values that can be sent to another process, and their answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from batuta.backends.sim.forecast import sampling
from batuta.backends.sim.forecast.forecast import (
    Forecast,
    ForecastInput,
    ProfileSource,
    duration_estimates,
    projections_of,
    summarise,
)
from batuta.backends.sim.forecast.projection import ExternalEvents
from batuta.backends.sim.forecast.whatif import Comparison, Hypothesis, compare
from batuta.core.world import World

ProfileLookup: TypeAlias = Callable[[str], ProfileSource]
ALONE = "if nothing else arrives"
UNFAILING = "if no node fails or comes back"
AHEAD_S, _SPANS = 48 * 3600.0, 3.0
"""How long jobs keep arriving where that is assumed: at most this, and this many times as long as the present
jobs keep the cluster busy."""


@dataclass(frozen=True, slots=True)
class EtaQuery:
    """When will each job start and finish?"""

    now_s: float
    policy: str
    expects_arrivals: bool = True
    """Whether jobs keep arriving at the recent rate. Without them, ETAs on a busy cluster are too early."""
    seed: int = 0
    budget_s: float = sampling.BUDGET_S

    def answer(self, world: World, lookup: ProfileLookup) -> Forecast:
        inputs, note = _forecast_input(world, self.now_s, self, worlds=1)
        found = summarise(inputs, projections_of(inputs, lookup(self.policy)))
        return replace(found, notes=(note, UNFAILING, *found.notes))


@dataclass(frozen=True, slots=True)
class WhatIfQuery:
    """What would change if?"""

    now_s: float
    policy: str
    changed_policy: str = ""
    """The policy of the hypothesis; empty: the same."""
    hypothesis: Hypothesis = field(default_factory=Hypothesis)
    expects_arrivals: bool = False
    seed: int = 0
    budget_s: float = sampling.BUDGET_S

    def answer(self, world: World, lookup: ProfileLookup) -> Comparison:
        inputs, note = _forecast_input(world, self.now_s, self, worlds=2)
        usual = lookup(self.policy)
        changed = lookup(self.changed_policy) if self.changed_policy else usual
        found = compare(inputs, self.hypothesis, usual, changed)
        coarse = f"times are good to {inputs.effort.precision:.0%}" if inputs.effort.precision else ""
        return replace(found, notes=tuple(filter(None, (note, UNFAILING, coarse, *found.notes))))


Query: TypeAlias = EtaQuery | WhatIfQuery
QueryResult: TypeAlias = Forecast | Comparison


def _forecast_input(world: World, now_s: float, query: Query, worlds: int) -> tuple[ForecastInput, str]:
    """The input of a forecast, and the assumption about arrivals in a sentence."""
    recent = sampling.recent_arrivals(world, now_s) if query.expects_arrivals else None
    ahead_s = min(AHEAD_S, _SPANS * sampling.span_estimate_s(world))
    to_come = 0 if recent is None else min(math.ceil(recent.jobs_per_s * ahead_s), sampling.MOST_ARRIVALS)
    effort = sampling.plan_effort(world, world.jobs.n + to_come, query.budget_s, worlds=worlds)
    sampler = sampling.Sampler(effort.runs, query.seed)
    cpu_until_s = time.thread_time() + max(sampling.MAX_CPU_S, 3 * query.budget_s)
    known = duration_estimates(world, now_s)
    inputs = ForecastInput(world, now_s, known, sampler, effort, cpu_until_s=cpu_until_s)
    if recent is None:
        return inputs, ALONE
    note = f"if jobs keep coming as they did lately: {recent.jobs_per_s * 3600:.3g} an hour, like those"
    return replace(
        inputs, external=lambda run: ExternalEvents(sampling.draw_arrivals(recent, sampler, run, now_s, ahead_s))
    ), note
