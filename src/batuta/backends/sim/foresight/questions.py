"""What people ask about the future, as values that can be sent to another process, and how it is answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from batuta.backends.sim.foresight.arrivals import MOST, Recent, draw_arrivals, recent_arrivals
from batuta.backends.sim.foresight.effort import BRAKE_S, BUDGET_S, plan_effort, span_estimate_s
from batuta.backends.sim.foresight.forecast import (
    Forecast,
    Rulebook,
    Scene,
    futures_of,
    known_of,
    summarise,
)
from batuta.backends.sim.foresight.fork import NOTHING, Outside
from batuta.backends.sim.foresight.lengths import Draws
from batuta.backends.sim.foresight.whatif import Comparison, Hypothesis, compare
from batuta.core.world import World

BookOf: TypeAlias = Callable[[str], Rulebook]
"""Finds the rules of a policy."""
ALONE = "if nothing else arrives"
UNFAILING = "if no node fails or comes back"
AHEAD_S, _SPANS = 48 * 3600.0, 3.0
"""How long jobs keep coming, where it is assumed that they do: at most so long, and so many times as long as
the cluster is busy with those that are there."""


@dataclass(frozen=True, slots=True)
class EtaQuestion:
    """When will each job start and finish?"""

    now_s: float
    policy: str
    expects_arrivals: bool = True
    """Whether jobs keep coming as they did lately. To leave them out is too early on a busy cluster."""
    seed: int = 0
    budget_s: float = BUDGET_S

    def answer(self, world: World, book_of: BookOf) -> Forecast:
        scene, note = _scene(world, self.now_s, self, worlds=1)
        told = summarise(scene, futures_of(scene, book_of(self.policy)))
        return replace(told, notes=(note, UNFAILING, *told.notes))


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """What would change if?"""

    now_s: float
    policy: str
    """That decides now."""
    changed_policy: str = ""
    """That would decide; empty: the same."""
    hypothesis: Hypothesis = field(default_factory=Hypothesis)
    expects_arrivals: bool = False
    seed: int = 0
    budget_s: float = BUDGET_S

    def answer(self, world: World, book_of: BookOf) -> Comparison:
        scene, note = _scene(world, self.now_s, self, worlds=2)
        usual = book_of(self.policy)
        changed = book_of(self.changed_policy) if self.changed_policy else usual
        told = compare(scene, self.hypothesis, usual, changed)
        coarse = f"times are good to {scene.effort.precision:.0%}" if scene.effort.precision else ""
        return replace(told, notes=tuple(filter(None, (note, UNFAILING, coarse, *told.notes))))


Question: TypeAlias = EtaQuestion | WhatIfQuestion
Answer: TypeAlias = Forecast | Comparison


def _scene(
    world: World, now_s: float, question: EtaQuestion | WhatIfQuestion, worlds: int
) -> tuple[Scene, str]:
    """The World with the luck of its jobs, and in a sentence what it assumes to come."""
    recent = recent_arrivals(world, now_s) if question.expects_arrivals else None
    ahead_s = min(AHEAD_S, _SPANS * span_estimate_s(world))
    to_come = 0 if recent is None else min(math.ceil(recent.jobs_per_s * ahead_s), MOST)
    effort = plan_effort(world, world.jobs.n + to_come, question.budget_s, worlds=worlds)
    draws = Draws(effort.runs, question.seed)
    brake_s = max(BRAKE_S, 3 * question.budget_s)
    scene = Scene(
        world, now_s, known_of(world, now_s), draws, effort, cpu_until_s=time.thread_time() + brake_s
    )
    if recent is None:
        return scene, ALONE
    note = f"if jobs keep coming as they did lately: {recent.jobs_per_s * 3600:.3g} an hour, like those"
    return replace(scene, outside=_arriving(recent, draws, now_s, ahead_s)), note


def _arriving(recent: Recent, draws: Draws, now_s: float, ahead_s: float) -> Callable[[int], Outside]:
    def outside(run: int) -> Outside:
        return replace(NOTHING, arrivals=draw_arrivals(recent, draws, run, now_s, ahead_s))

    return outside
