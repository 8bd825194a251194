"""What a job is doing, from what was measured and what it says itself. Pure.

These are inferences, made to be useful and easy to check: each is a short rule on a few figures, and where
the figures do not say, the answer is UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from batuta.gpu.profiler.figures import BUSY, Figures, Floats, figures, mean_of, memory_plateau_mib
from batuta.gpu.profiler.window import Signals

IDLE_DUTY: Final = 0.02
"""A job that works in fewer of its samples than this is idle."""
_FEWEST: Final = 20
_RECENT: Final = 15
"""Samples that tell what a job does now."""
_FULL: Final = 0.85
_ONE_CORE: Final = 0.85
_READING_MIB_S: Final = 20.0
_WRITING_MIB_S: Final = 10.0
_HOLLOW: Final = 0.5
"""Multiprocessors with work, as a share of the time in which some kernel ran: less is waiting for others."""
_OPPOSITE: Final = -0.4
_MUCH_TRAFFIC_MIB_S: Final = 500.0


class Activity(StrEnum):
    """What kind of work it is."""

    TRAINING = "training"
    INFERENCE = "inference"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """How far it is."""

    LOADING = "loading"
    WARM_UP = "warm-up"
    STEADY = "steady"
    CHECKPOINT = "checkpoint"
    UNKNOWN = "unknown"


class Bottleneck(StrEnum):
    """What keeps it from being faster."""

    GPU = "gpu"
    CPU = "cpu"
    INPUT = "input"
    COMMUNICATION = "communication"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """All three."""

    activity: Activity
    stage: Stage
    bottleneck: Bottleneck


def behaviour(signals: Signals, period_s: float | None, *, reports_steps: bool = False) -> Behaviour:
    """`reports_steps`: the job tells of its iterations by the SDK, which only training does."""
    stage = stage_of(signals)
    return Behaviour(
        activity_of(signals.utilisation, period_s, reports_steps=reports_steps),
        stage,
        bottleneck_of(signals) if stage is Stage.STEADY else Bottleneck.UNKNOWN,
    )


def activity_of(utilisation: Floats, period_s: float | None, *, reports_steps: bool = False) -> Activity:
    """Training has a rhythm or never rests; inference comes as it is asked for."""
    found = figures(utilisation)
    if found is None or len(utilisation) < _FEWEST:
        return Activity.TRAINING if reports_steps else Activity.UNKNOWN
    if found.duty_cycle < IDLE_DUTY:
        return Activity.IDLE
    if reports_steps or period_s is not None or _never_rests(utilisation, found):
        return Activity.TRAINING
    return Activity.INFERENCE


def _never_rests(utilisation: Floats, found: Figures) -> bool:
    """Iterations that are shorter than a sample: the same load all the time."""
    spread = float(np.nanstd(utilisation))
    return found.duty_cycle >= 0.95 and found.mean >= 0.3 and spread <= 0.25 * found.mean


def stage_of(signals: Signals) -> Stage:
    """Loading until the GPU first works, warm-up until its memory stays, steady from then on."""
    busy = signals.utilisation > BUSY
    if len(busy) < _FEWEST // 2:
        return Stage.UNKNOWN
    if not busy.any():
        grows = memory_plateau_mib(signals.memory_mib) is None
        return Stage.LOADING if signals.since_start and grows else Stage.UNKNOWN
    if memory_plateau_mib(signals.memory_mib) is None:
        return Stage.WARM_UP
    written = mean_of(signals.written_mib_s[-_RECENT:])
    rests = not busy[-min(_RECENT, 5) :].any()
    if rests and written is not None and written >= _WRITING_MIB_S:
        return Stage.CHECKPOINT
    return Stage.STEADY


def bottleneck_of(signals: Signals) -> Bottleneck:
    """What was fully used while the GPU was not; the GPU itself, if it was."""
    utilisation = mean_of(signals.utilisation)
    if utilisation is None or len(signals.utilisation) < _FEWEST:
        return Bottleneck.UNKNOWN
    active = mean_of(signals.sm_activity)
    if utilisation >= _FULL:
        # Kernels that wait for other GPUs keep a GPU busy as well, but only a part of it.
        hollow = active is not None and active < _HOLLOW * utilisation and signals.gpus > 1
        return Bottleneck.COMMUNICATION if hollow else Bottleneck.GPU
    if signals.gpus > 1 and _talks_instead(signals):
        return Bottleneck.COMMUNICATION
    reads = mean_of(signals.read_mib_s)
    if reads is not None and reads >= _READING_MIB_S:
        return Bottleneck.INPUT
    cores = mean_of(signals.busiest_cores)
    if cores is not None and cores >= _ONE_CORE:
        return Bottleneck.CPU
    return Bottleneck.UNKNOWN


def _talks_instead(signals: Signals) -> bool:
    """Whether links are busy when the GPUs are not."""
    traffic = np.nansum(np.stack([signals.nvlink_mib_s, signals.pcie_mib_s]), axis=0)
    if float(traffic.max(initial=0.0)) < _MUCH_TRAFFIC_MIB_S:
        return False
    known = ~np.isnan(signals.utilisation)
    busy, talk = signals.utilisation[known], traffic[known]
    if len(busy) < _FEWEST or busy.std() < 0.02 or talk.std() < 0.02 * talk.mean():
        return False
    return float(np.corrcoef(busy, talk)[0, 1]) <= _OPPOSITE
