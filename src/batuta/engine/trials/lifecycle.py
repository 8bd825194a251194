"""The lifecycle of a trial, pure: which sizes are tried out, and what comes next, for every backend.

The answer of `next_actions` follows from what is durable and observed, so it is the same after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.job import Job
from batuta.core.trial import TrialPlan
from batuta.prediction.application_history import legal_sizes
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import TRIAL_BUDGET_S, TrialSpec

MOST_RUNS = 6  # sizes that are tried where the user does not say which: from 1 to 32 GPUs, or as far as it gets
CLOSE = 1.5  # a size that is less than so many times another is close to it
LONGEST_RUN_S = 60.0  # for so long a job runs at each size where that is not said; less where the budget is small


def plan_trial(
    job: Job, wishes: TrialSpec, most: int, *, open_up_to: int | None = None, for_good: bool = False
) -> TrialPlan:
    """What to try out of a job that could have up to `most` GPUs; InputError for a size that it cannot have."""
    legal = [gpus for gpus in legal_sizes(job) if gpus <= most] or [job.min]
    if wishes.sizes:
        check_sizes(wishes.sizes, legal)
    sizes = wishes.sizes or ladder(legal)
    budget_s = wishes.budget_s or TRIAL_BUDGET_S
    return TrialPlan(
        sizes=sizes,
        budget_s=budget_s,
        each_s=wishes.each_s or min(LONGEST_RUN_S, budget_s / len(sizes)),
        priority=job.priority if wishes.priority is None else wishes.priority,
        only=wishes.only,
        open_up_to=open_up_to,
        for_good=for_good,
    )


def ladder(legal: Sequence[int]) -> tuple[int, ...]:
    """The smallest size, each next that is at least twice the one before, and the largest.

    The largest takes the place of the last of these where it is close to it: two that are alike teach nothing.
    """
    found = [legal[0]]
    for gpus in legal:
        if gpus >= 2 * found[-1] and len(found) < MOST_RUNS:
            found.append(gpus)
    if legal[-1] < CLOSE * found[-1] and len(found) > 1:
        found[-1] = legal[-1]
    elif found[-1] < legal[-1] and len(found) < MOST_RUNS:
        found.append(legal[-1])
    return tuple(found)


def check_sizes(wanted: Sequence[int], legal: Sequence[int]) -> None:
    """Refuses sizes that the job cannot have here, all at once."""
    known = set(legal)
    wrong = [str(gpus) for gpus in wanted if gpus not in known]
    if wrong:
        few = ", ".join(map(str, legal[:12])) + (", …" if len(legal) > 12 else "")
        which = "is no size" if len(wrong) == 1 else "are no sizes"
        raise InputError.of(
            f"trial: {', '.join(wrong)} GPUs {which} that this task can have here", fix=f"some of {few}"
        )


@dataclass(frozen=True, slots=True)
class _OfSize:
    gpus: int


class Begin(_OfSize):
    """Let it run at this size."""


class Measure(_OfSize):
    """Write down what the run at this size showed."""


class End(_OfSize):
    """What the run at this size showed is written down: it may go."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """All is known that will be: let the job go on with it."""


Action: TypeAlias = Begin | Measure | End | Conclude


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """The job of one size, as its backend shows it."""

    is_over: bool = False
    started_s: float | None = None
    is_leaving: bool = False
    is_left_over: bool = False  # it is that of a trial of the same name before this one, and goes with it


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """How far a trial is."""

    measured: Collection[int]  # sizes of which it is known what they showed, …
    written: Collection[int]  # … and of which that is durable: the rest would be lost with the controller
    runs: Mapping[int, ObservedRun]
    watched_s: float = -math.inf  # since when this controller watches: it has seen nothing of what a run did before


@dataclass(frozen=True, slots=True)
class NextActions:
    """What is to be done now, and when to look again though nothing happens."""

    actions: tuple[Action, ...]
    due_s: float = math.inf


def next_actions(
    plan: TrialPlan, parallelism: int, began_s: float, standing: TrialProgress, now_s: float
) -> NextActions:
    """Return what comes next: the smallest sizes first; no more at a time than may run beside each other."""
    end_s = began_s + plan.budget_s
    is_over = now_s >= end_s
    actions: list[Action] = []
    due_s, at_work = end_s, 0
    for gpus in plan.sizes:
        run = standing.runs.get(gpus)
        if gpus in standing.measured:
            if run is not None and not run.is_over:
                at_work += 1  # until nothing of it is left: the next shall have the machine to itself
                if gpus in standing.written and not run.is_leaving:
                    actions.append(End(gpus))
        elif run is not None:
            at_work += 1
            over_s = end_s if run.is_left_over else _over_s(run, plan, standing.watched_s, end_s)
            if run.is_left_over and not is_over:
                continue
            if run.is_over or run.is_leaving or now_s >= over_s:
                actions.append(Measure(gpus))
            else:
                due_s = min(due_s, over_s)
        elif not is_over and at_work < parallelism:
            at_work += 1
            actions.append(Begin(gpus))
    if _is_done(plan, standing, is_over) and not any(isinstance(one, Measure) for one in actions):
        return NextActions((*actions, Conclude()))
    return NextActions(tuple(actions), due_s if now_s < due_s else math.inf)


def _is_done(plan: TrialPlan, standing: TrialProgress, is_over: bool) -> bool:
    """Whether all is known that will be. What has its measure written down need not be gone for that."""
    missing = [gpus for gpus in plan.sizes if gpus not in standing.written]
    if not is_over:
        return not missing
    return all(gpus not in standing.runs and gpus not in standing.measured for gpus in missing)


def _over_s(run: ObservedRun, plan: TrialPlan, watched_s: float, end_s: float) -> float:
    """When a run has had its time; one that waits for GPUs may do so as long as the budget lasts.

    Only time in which it was watched counts: while the controller is down no report is read.
    """
    return end_s if run.started_s is None else min(end_s, max(run.started_s, watched_s) + plan.each_s)
