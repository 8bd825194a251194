"""At which sizes a job is tried out, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.core.job import Job
from batuta.core.trial import TrialPlan
from batuta.prediction.initial_size import legal_sizes
from batuta.spec.problem import InputError
from batuta.spec.task_trial import BUDGET_S, TrialWishes

MOST_RUNS = 6
"""Sizes that are tried where nobody says which: from 1 to 32 GPUs, or as far as it gets."""
CLOSE = 1.5
"""A size that is less than so many times another is close to it."""
LONGEST_RUN_S = 60.0
"""For so long a job runs at each size where nobody says how long; less where the budget is small."""


def plan_trial(
    job: Job, wishes: TrialWishes, most: int, *, open_up_to: int | None = None, for_good: bool = False
) -> TrialPlan:
    """What is to be tried out of a job that could have up to `most` GPUs.

    InputError for a size that was asked for and that it cannot have.
    """
    legal = [gpus for gpus in legal_sizes(job) if gpus <= most] or [job.min]
    if wishes.sizes:
        check_sizes(wishes.sizes, legal)
    sizes = wishes.sizes or ladder(legal)
    budget_s = wishes.budget_s or BUDGET_S
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

    Where the largest is close to the last of these, it takes its place: two that are alike teach nothing.
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
