"""Infer what a job is doing from how it uses its GPUs: kind of work, stage, bottleneck, iteration period.

Each inference is a short rule on a few statistics, made to be easy to check; where they do not suffice, the
answer is UNKNOWN.

The period comes from GPU utilisation alone: the spectrum proposes, the autocorrelation confirms. Either alone
sees iterations where there are none: a trend looks like a slow wave to the spectrum, and any slow signal is
like itself a little later. Iterations faster than the samples look like slow ones to both: 0.9 s, sampled
every second, like 9 s. But they are faint then, because each sample is a mean over several of them; so a
rhythm has to be deep to count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from batuta.gpu.profiler.signals import BUSY, Floats, SampleStats, Signals, mean_of, memory_plateau_mib, sample_stats

IDLE_DUTY: Final = 0.02  # a job that works in fewer of its samples than this is idle
_MIN_SAMPLES: Final = 20
_RECENT: Final = 15  # samples that show what a job does now
_FULL: Final = 0.85
_ONE_CORE: Final = 0.85
_READING_MIB_S: Final = 20.0
_WRITING_MIB_S: Final = 10.0
_HOLLOW: Final = 0.5
"""Multiprocessors with work, as a share of the time in which some kernel ran: less is waiting for others."""
_OPPOSITE: Final = -0.4
_MUCH_TRAFFIC_MIB_S: Final = 500.0
_MIN_PERIOD_SAMPLES: Final = 40
_MIN_REPEATS: Final = 4  # a period has to be seen as many times at least
_MIN_PERIOD: Final = 2.5  # in samples; faster waves look like slower ones
_MIN_DEVIATION: Final = 0.02  # a standard deviation below this is no rhythm, whatever its shape
_MIN_DEPTH: Final = 0.5
"""As a share of the deviation of a GPU that is either busy or not: what is smoother is too fast to see."""
_FALSE_ALARM: Final = 0.05  # how often noise may look as regular to the spectrum
_MIN_CORRELATION: Final = 0.35  # the least autocorrelation of the signal one, two and three periods later
_CANDIDATES: Final = 4
_LAGS_PER_SAMPLE: Final = 4  # a period of 3.5 samples correlates neither at 3 nor at 4


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
    """Kind of work, stage and bottleneck of a job."""

    activity: Activity
    stage: Stage
    bottleneck: Bottleneck


def behaviour(signals: Signals, period_s: float | None, *, reports_steps: bool = False) -> Behaviour:
    """Return what a job does. `reports_steps`: it reports iterations by the SDK, as only training does."""
    stage = stage_of(signals)
    return Behaviour(
        activity_of(signals.utilisation, period_s, reports_steps=reports_steps),
        stage,
        bottleneck_of(signals) if stage is Stage.STEADY else Bottleneck.UNKNOWN,
    )


def activity_of(utilisation: Floats, period_s: float | None, *, reports_steps: bool = False) -> Activity:
    """Return the kind of work: training has a rhythm or never rests; inference comes as requested."""
    found = sample_stats(utilisation)
    if found is None or len(utilisation) < _MIN_SAMPLES:
        return Activity.TRAINING if reports_steps else Activity.UNKNOWN
    if found.duty_cycle < IDLE_DUTY:
        return Activity.IDLE
    if reports_steps or period_s is not None or _never_rests(utilisation, found):
        return Activity.TRAINING
    return Activity.INFERENCE


def _never_rests(utilisation: Floats, found: SampleStats) -> bool:
    """Return whether the load is always the same: iterations are shorter than a sample."""
    spread = float(np.nanstd(utilisation))
    return found.duty_cycle >= 0.95 and found.mean >= 0.3 and spread <= 0.25 * found.mean


def stage_of(signals: Signals) -> Stage:
    """Return the stage: loading until the GPU works, warm-up until its memory stays, then steady."""
    busy = signals.utilisation > BUSY
    if len(busy) < _MIN_SAMPLES // 2:
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
    """Return what was fully used while the GPU was not; the GPU itself, if it was."""
    utilisation = mean_of(signals.utilisation)
    if utilisation is None or len(signals.utilisation) < _MIN_SAMPLES:
        return Bottleneck.UNKNOWN
    active = mean_of(signals.sm_activity)
    if utilisation >= _FULL:
        # Kernels that wait for other GPUs keep a GPU busy as well, but only a part of it.
        hollow = active is not None and active < _HOLLOW * utilisation and signals.gpus > 1
        return Bottleneck.COMMUNICATION if hollow else Bottleneck.GPU
    if signals.gpus > 1 and _communicates_when_idle(signals):
        return Bottleneck.COMMUNICATION
    reads = mean_of(signals.read_mib_s)
    if reads is not None and reads >= _READING_MIB_S:
        return Bottleneck.INPUT
    cores = mean_of(signals.busiest_cores)
    if cores is not None and cores >= _ONE_CORE:
        return Bottleneck.CPU
    return Bottleneck.UNKNOWN


def _communicates_when_idle(signals: Signals) -> bool:
    """Return whether links are busy when the GPUs are not."""
    traffic = np.nansum(np.stack([signals.nvlink_mib_s, signals.pcie_mib_s]), axis=0)
    if float(traffic.max(initial=0.0)) < _MUCH_TRAFFIC_MIB_S:
        return False
    known = ~np.isnan(signals.utilisation)
    busy, talk = signals.utilisation[known], traffic[known]
    if len(busy) < _MIN_SAMPLES or busy.std() < 0.02 or talk.std() < 0.02 * talk.mean():
        return False
    return float(np.corrcoef(busy, talk)[0, 1]) <= _OPPOSITE


def iteration_period_s(signal: Floats, interval_s: float = 1.0) -> float | None:
    """Return the period of shares of time (0 to 1) taken at this interval; None where they have none.

    Trends, noise of any colour and single steps have none. What repeats faster than every 2.5 samples, or
    fewer than four times, cannot be seen.
    """
    known = signal[~np.isnan(signal)]
    flat = _detrended(known)
    if len(flat) < _MIN_PERIOD_SAMPLES or float(flat.std()) < _MIN_DEVIATION or not _is_deep(known, flat):
        return None
    correlations = _autocorrelation(flat)
    confirmed = [
        lag
        for proposed in _proposed(flat)
        # The strongest wave may be an overtone of a short burst.
        for multiple in (1, 2, 3)
        if (lag := _confirmed(correlations, proposed * _LAGS_PER_SAMPLE * multiple)) is not None
    ]
    if not confirmed:
        return None
    best = max(_correlation(correlations, lag) for lag in confirmed)
    # Every multiple of a period is one as well: the shortest that is about as good is meant.
    lag = min(lag for lag in confirmed if _correlation(correlations, lag) >= 0.7 * best)
    return _refined(correlations, lag) / _LAGS_PER_SAMPLE * interval_s


def _is_deep(known: Floats, flat: Floats) -> bool:
    mean = float(known.mean())
    return float(flat.std()) >= _MIN_DEPTH * math.sqrt(max(mean * (1.0 - mean), 0.0))


def _detrended(values: Floats) -> Floats:
    if len(values) < 3:
        return values
    time = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(time @ values) / float(time @ time)
    flat: Floats = values - values.mean() - slope * time
    return flat


def _proposed(flat: Floats) -> list[float]:
    """Return the periods, in samples, of waves that stand out of the noise this signal would have anyway."""
    count = len(flat)
    power = np.abs(np.fft.rfft(flat * np.hanning(count))) ** 2
    first, last = _MIN_REPEATS, min(len(power) - 1, int(count / _MIN_PERIOD))
    if last <= first:
        return []
    waves = np.arange(first, last + 1)
    noise = _red_noise(flat, waves)
    shown = power[waves] / (power[1:].mean() or 1.0)
    height = shown / noise
    threshold = math.log(len(waves) / _FALSE_ALARM)
    inner = np.arange(len(waves))
    left, right = np.maximum(inner - 1, 0), np.minimum(inner + 1, len(waves) - 1)
    peaks = inner[(height > threshold) & (height >= height[left]) & (height >= height[right])]
    strongest = peaks[np.argsort(shown[peaks])[::-1][:_CANDIDATES]]
    return [count / float(waves[peak]) for peak in strongest]


def _red_noise(flat: Floats, waves: Floats | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """Return the spectrum of red noise with the autocorrelation of this signal; its mean is 1."""
    memory = float(flat[1:] @ flat[:-1]) / (float(flat @ flat) or 1.0)
    memory = min(max(memory, 0.0), 0.99)
    angle = 2 * np.pi * waves / len(flat)
    spectrum: Floats = (1 - memory**2) / (1 + memory**2 - 2 * memory * np.cos(angle))
    return spectrum


def _autocorrelation(flat: Floats) -> Floats:
    """Return the autocorrelation by quarters of a sample: 1 for the same, 0 for no correlation."""
    count = len(flat)
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(flat, size)
    # More room in the spectrum is finer steps in time.
    raw = np.fft.irfft(spectrum * np.conj(spectrum), size * _LAGS_PER_SAMPLE)[: count * _LAGS_PER_SAMPLE * 3 // 4]
    correlations: Floats = raw / (count - np.arange(len(raw)) / _LAGS_PER_SAMPLE)
    return correlations / (correlations[0] or 1.0)


def _confirmed(correlations: Floats, proposed: float) -> int | None:
    """Return the lag near a proposed period with the highest autocorrelation; None if it is not a peak."""
    reach = max(1, round(proposed * 0.15))
    low, high = max(2 * _LAGS_PER_SAMPLE, math.floor(proposed) - reach), math.ceil(proposed) + reach + 1
    if high * (_MIN_REPEATS - 1) > len(correlations) * _MIN_REPEATS // 3 or high >= len(correlations):
        return None
    lag = low + int(np.argmax(correlations[low:high]))
    if (
        correlations[lag] < max(correlations[lag - 1], correlations[lag + 1])
        or _correlation(correlations, lag) < _MIN_CORRELATION
    ):
        return None
    # Half a period later the correlation has to be lower: a peak, and not the slope of a trend.
    valleys = [float(correlations[round(lag * (turn + 0.5))]) for turn in range(2)]
    return lag if max(valleys) < _correlation(correlations, lag) - _MIN_CORRELATION / 2 else None


def _correlation(correlations: Floats, lag: int) -> float:
    """Return the lowest of the correlations near one, two and three periods: iterations vary a little."""
    tops = []
    for turn in (1, 2, 3):
        slack = max(_LAGS_PER_SAMPLE // 2, round(lag * 0.05 * turn))
        around = correlations[max(1, lag * turn - slack) : lag * turn + slack + 1]
        if len(around):
            tops.append(float(around.max()))
    return min(tops, default=-1.0)


def _refined(correlations: Floats, lag: int) -> float:
    """Return the period to a fraction of a sample: the place of the last peak by the count of peaks."""
    period = float(lag)
    for turn in range(1, len(correlations) // lag):
        expected = period * turn
        slack = max(1, round(lag * 0.2))
        low, high = int(expected) - slack, int(expected) + slack + 2
        if low < 1 or high >= len(correlations) or correlations[low:high].max() < _MIN_CORRELATION / 2:
            break
        top = low + int(np.argmax(correlations[low:high]))
        period = _vertex(correlations, top) / turn
    return period


def _vertex(correlations: Floats, top: int) -> float:
    before, here, after = (float(correlations[top + step]) for step in (-1, 0, 1))
    bend = before - 2 * here + after
    return top + (0.5 * (before - after) / bend if bend < 0 else 0.0)
