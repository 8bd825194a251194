"""Chooses how many GPUs a job with `num_nodes: auto` requests.

The smallest size that gives nearly the best speed. The best is searched where GPUs are still efficient, and
not far beyond the measured sizes: an extrapolated curve proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, SizeChoice
from batuta.prediction.application_history import KnownSpeed, application_of


@dataclass(frozen=True, slots=True)
class SizeRule:
    """What "nearly" and "efficient" mean."""

    enough_speed: float = 0.9
    """Of the best speed."""
    least_efficiency: float = 0.5
    """Speed for each GPU, relative to that at the smallest size; sizes below it are not the best."""
    beyond_measured: float = 2.0
    """Sizes up to so many times the largest that was measured, …"""
    most_doubt: float = 0.25
    """… whose speed is known as exactly as this: the standard deviation of its log."""

    def __post_init__(self) -> None:
        if not 0 < self.enough_speed <= 1 or not 0 <= self.least_efficiency <= 1:
            raise ValueError(f"shares lie in 0..1, found {self}")
        if not self.beyond_measured >= 1:
            raise ValueError(f"beyond_measured must be at least 1, found {self.beyond_measured}")


RULE = SizeRule()


def choose_size(job: Job, known: KnownSpeed | None, most: int, rule: SizeRule = RULE) -> SizeChoice:
    """The size to ask for among those that a job may have, up to `most` GPUs, and why."""
    sizes = [n for n in legal_sizes(job) if n <= most] or [job.min]
    if known is None:
        return SizeChoice(sizes[0], application=application_of(job))
    curve = known.curve(job.curve, sizes[-1])
    doubt = known.doubt(job.curve, sizes[-1]).tolist()
    sure = [n for n in sizes if n == sizes[0] or doubt[min(n, len(doubt)) - 1] <= rule.most_doubt]
    within = _worthwhile(sure, curve, known.largest, rule)
    best = max(within, key=lambda n: (curve.at(n), -n))
    enough = rule.enough_speed * curve.at(best)
    chosen = next(n for n in within if curve.at(n) >= enough)
    share = curve.at(chosen) / curve.at(best)
    return SizeChoice(chosen, best, share, application_of(job), known.jobs)


def settle(job: Job, choice: SizeChoice, *, for_good: bool) -> Job:
    """The job with the size that was chosen; `for_good` where it cannot be resized later."""
    gpus = choice.gpus
    if not for_good:
        return replace(job, size=gpus, size_choice=choice)
    return replace(job, size=gpus, min=gpus, max=gpus, sizes=None, size_choice=choice)


def legal_sizes(job: Job) -> Sequence[int]:
    """All sizes that a job may have, ascending."""
    return job.sizes or range(job.min, job.max + 1, job.gpus_per_replica or 1)


def _worthwhile(sizes: Sequence[int], curve: SpeedCurve, measured: int, rule: SizeRule) -> list[int]:
    """The sizes near what was measured at which a GPU still does its share; the smallest in any case."""
    least = rule.least_efficiency * curve.at(sizes[0]) / sizes[0]
    reach = rule.beyond_measured * measured
    return [n for n in sizes if n == sizes[0] or (n <= reach and curve.at(n) / n >= least)]
