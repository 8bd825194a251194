"""What comes next in a trial on a cluster: a pure answer from what the API server shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.trial import TrialPlan
from batuta.engine.trials.course import Begin, Conclude, Measure


@dataclass(frozen=True, slots=True)
class End:
    """What the run at this size showed is written down: it may go."""

    gpus: int


Move: TypeAlias = Begin | Measure | End | Conclude


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The UnifiedJob of one size, as the API server shows it."""

    is_over: bool = False
    started_s: float | None = None
    is_leaving: bool = False
    is_left_over: bool = False
    """It is that of a trial of the same name before this one, and goes with it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a trial is."""

    measured: Collection[int]
    """Sizes of which it is known what they showed, …"""
    written: Collection[int]
    """… and those of which the API server knows it too: what is only known here would be lost."""
    runs: Mapping[int, RunSeen]


@dataclass(frozen=True, slots=True)
class Next:
    """What is to be done now, and when to look again though nothing happens."""

    moves: tuple[Move, ...]
    due_s: float = math.inf


def next_moves(plan: TrialPlan, parallelism: int, began_s: float, standing: Standing, now_s: float) -> Next:
    """The smallest sizes first; no more at a time than may run beside each other."""
    end_s = began_s + plan.budget_s
    is_over = now_s >= end_s
    moves: list[Move] = []
    due_s, at_work = end_s, 0
    for gpus in plan.sizes:
        run = standing.runs.get(gpus)
        if gpus in standing.measured:
            if run is not None and not run.is_over:
                at_work += 1  # until its pods are gone: the next shall have the machine to itself
                if gpus in standing.written and not run.is_leaving:
                    moves.append(End(gpus))
        elif run is not None:
            at_work += 1
            over_s = end_s if run.is_left_over else _over_s(run, plan, end_s)
            if run.is_left_over and not is_over:
                continue
            if run.is_over or run.is_leaving or now_s >= over_s:
                moves.append(Measure(gpus))
            else:
                due_s = min(due_s, over_s)
        elif not is_over and at_work < parallelism:
            at_work += 1
            moves.append(Begin(gpus))
    if _is_done(plan, standing, is_over) and not any(isinstance(one, Measure) for one in moves):
        return Next((*moves, Conclude()))
    return Next(tuple(moves), due_s if now_s < due_s else math.inf)


def _is_done(plan: TrialPlan, standing: Standing, is_over: bool) -> bool:
    """Whether all is known that will be. What has its measure written down need not be gone for that."""
    missing = [gpus for gpus in plan.sizes if gpus not in standing.written]
    if not is_over:
        return not missing
    return all(gpus not in standing.runs and gpus not in standing.measured for gpus in missing)


def _over_s(run: RunSeen, plan: TrialPlan, end_s: float) -> float:
    """When a run has had its time; one that waits for GPUs may do so as long as the budget lasts."""
    return end_s if run.started_s is None else min(end_s, run.started_s + plan.each_s)
