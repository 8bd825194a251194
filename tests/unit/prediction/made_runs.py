"""Jobs and reports made up for the tests, from rates that are known."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from batuta.core.curve import SpeedCurve, power_curve
from batuta.core.job import Job
from batuta.prediction import Sample, SpeedMeter

T = TypeVar("T")
PRIOR = power_curve(8, 0.9)


def sure(value: T | None) -> T:
    """What has to be known by now."""
    assert value is not None
    return value


def job(largest: int = 8, curve: SpeedCurve = PRIOR, work_s: float = 3600.0) -> Job:
    return Job(id="j", submit_s=0.0, max=largest, curve=curve, work_s=work_s, restart_s=30.0)


def steps(
    first: int, last: int, *, start_s: float, step_s: float, total: int | None = 1000, rank: int | None = 0
) -> list[Sample]:
    """A report at the end of each step from `first` to `last`; the first step begins at `start_s`."""
    return [
        Sample(start_s + (n - first + 1) * step_s, step=n, total_steps=total, samples=32.0 * n, rank=rank)
        for n in range(first, last + 1)
    ]


def meter_of(samples: Sequence[Sample], *, gpus: int = 1, began_s: float = 0.0) -> SpeedMeter:
    """A meter that has seen one run."""
    meter = SpeedMeter(job())
    meter.began(began_s, gpus)
    meter.add(samples)
    return meter


def noisy_steps(
    rng: np.random.Generator, first: int, *, start_s: float, until_s: float, step_s: float, warmup_s: float
) -> list[Sample]:
    """Steps with a tenth of noise, one in fifty half as long again; during the warm-up three times slower."""
    found: list[Sample] = []
    now_s, step = start_s, first
    while True:
        length_s = step_s * float(np.clip(rng.normal(1.0, 0.1), 0.5, 1.5))
        if rng.random() < 0.02:
            length_s += step_s * 0.5
        if now_s < start_s + warmup_s:
            length_s *= 3
        now_s += length_s
        if now_s > until_s:
            return found
        found.append(Sample(now_s, step=step, total_steps=10**6, rank=0))
        step += 1
