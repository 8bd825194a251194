"""A meter's memory, made again from what is kept anyway: when runs began and all that they reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batuta.prediction.run_track import SKEW_S
from batuta.prediction.sample import Sample
from batuta.prediction.speed_meter import SpeedMeter


@dataclass(frozen=True, slots=True)
class Run:
    """One run at one size, and how it was brought to its end. None: that did not happen."""

    began_s: float
    gpus: int
    nodes: int = 1
    racks: int = 1
    gpu_speed: float = 1.0
    asked_s: float | None = None
    checkpointed_s: float | None = None
    stopped_s: float | None = None


def replay(meter: SpeedMeter, runs: Iterable[Run], samples: Sequence[Sample]) -> None:
    """Tells a new meter of all runs in turn, each with its samples (in file order).

    A run that still goes on may be the last one here, without an end, or be told to the meter afterwards.
    """
    ordered = sorted(runs, key=lambda run: run.began_s)
    limits_s = (*(run.began_s for run in ordered), math.inf)
    at = _feed(meter, samples, 0, limits_s[0])
    for run, until_s in zip(ordered, limits_s[1:], strict=True):
        meter.began(run.began_s, run.gpus, run.nodes, racks=run.racks, gpu_speed=run.gpu_speed)
        stopped_s = math.inf if run.stopped_s is None else run.stopped_s + SKEW_S
        at = _feed(meter, samples, at, min(until_s, stopped_s))
        if run.asked_s is not None:
            meter.transitions.asked(run.asked_s)
        if run.checkpointed_s is not None:
            meter.transitions.checkpointed(run.checkpointed_s)
        if run.stopped_s is not None:
            meter.ended(run.stopped_s)
            at = _feed(meter, samples, at, until_s)


def _feed(meter: SpeedMeter, samples: Sequence[Sample], start: int, until_s: float) -> int:
    """Feeds the samples before `until_s`; returns the place of the first one that is not."""
    end = len(samples)
    if until_s < math.inf:
        end = next((i for i in range(start, end) if samples[i].time_s >= until_s), end)
    meter.add(samples[start:end])
    return end
