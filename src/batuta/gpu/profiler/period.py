"""How long one iteration takes, from nothing but how busy the GPU is. Pure.

The spectrum proposes, the autocorrelation confirms. Either alone sees iterations in what has none: a trend
looks like a slow wave to the spectrum, and any slow signal is like itself a little later. And iterations that
are faster than the samples look like slow ones to both: 0.9 s, looked at every second, like 9 s. But they are
faint then, because each sample is a mean over several of them; so a rhythm has to be deep to count.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from batuta.gpu.profiler.figures import Floats

_FEWEST: Final = 40
"""Samples below which nothing is said."""
_ROUNDS: Final = 4
"""A period has to be seen as many times at least."""
_SHORTEST: Final = 2.5
"""In samples; faster waves cannot be told from slower ones."""
_FAINTEST: Final = 0.02
"""A standard deviation below this is no rhythm, whatever its shape."""
_SHALLOWEST: Final = 0.5
"""As a share of the deviation of a GPU that is either busy or not: what is smoother is too fast to see."""
_CHANCE: Final = 0.05
"""How often noise may look as regular to the spectrum."""
_ALIKE: Final = 0.35
"""How much the signal has to be like itself one period later, and two, and three."""
_CANDIDATES: Final = 4
_FINER: Final = 4
"""Lags are told apart to a quarter of a sample: a period of 3.5 samples is neither like 3 nor like 4."""


def iteration_period_s(signal: Floats, interval_s: float = 1.0) -> float | None:
    """The period of shares of time (0 to 1) that were taken at this interval; None where they have none.

    Trends, noise of any colour and single steps have none. What repeats faster than every 2.5 samples, or
    fewer than four times, cannot be seen.
    """
    known = signal[~np.isnan(signal)]
    flat = _detrended(known)
    if len(flat) < _FEWEST or float(flat.std()) < _FAINTEST or not _is_deep(known, flat):
        return None
    alike = _autocorrelation(flat)
    confirmed = [
        lag
        for proposed in _proposed(flat)
        # The strongest wave may be an overtone of a short burst.
        for multiple in (1, 2, 3)
        if (lag := _confirmed(alike, proposed * _FINER * multiple)) is not None
    ]
    if not confirmed:
        return None
    best = max(_likeness(alike, lag) for lag in confirmed)
    # Every multiple of a period is one as well: the shortest that is about as good is meant.
    lag = min(lag for lag in confirmed if _likeness(alike, lag) >= 0.7 * best)
    return _refined(alike, lag) / _FINER * interval_s


def _is_deep(known: Floats, flat: Floats) -> bool:
    mean = float(known.mean())
    return float(flat.std()) >= _SHALLOWEST * math.sqrt(max(mean * (1.0 - mean), 0.0))


def _detrended(values: Floats) -> Floats:
    """Without its mean and its slope."""
    if len(values) < 3:
        return values
    time = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(time @ values) / float(time @ time)
    flat: Floats = values - values.mean() - slope * time
    return flat


def _proposed(flat: Floats) -> list[float]:
    """Periods, in samples, of the waves that stand out of the noise that this signal would have anyway."""
    count = len(flat)
    power = np.abs(np.fft.rfft(flat * np.hanning(count))) ** 2
    first, last = _ROUNDS, min(len(power) - 1, int(count / _SHORTEST))
    if last <= first:
        return []
    waves = np.arange(first, last + 1)
    noise = _red_noise(flat, waves)
    shown = power[waves] / (power[1:].mean() or 1.0)
    height = shown / noise
    threshold = math.log(len(waves) / _CHANCE)
    inner = np.arange(len(waves))
    left, right = np.maximum(inner - 1, 0), np.minimum(inner + 1, len(waves) - 1)
    peaks = inner[(height > threshold) & (height >= height[left]) & (height >= height[right])]
    strongest = peaks[np.argsort(shown[peaks])[::-1][:_CANDIDATES]]
    return [count / float(waves[peak]) for peak in strongest]


def _red_noise(flat: Floats, waves: Floats | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """The spectrum of noise that remembers its last value as much as this signal does; its mean is 1."""
    memory = float(flat[1:] @ flat[:-1]) / (float(flat @ flat) or 1.0)
    memory = min(max(memory, 0.0), 0.99)
    angle = 2 * np.pi * waves / len(flat)
    spectrum: Floats = (1 - memory**2) / (1 + memory**2 - 2 * memory * np.cos(angle))
    return spectrum


def _autocorrelation(flat: Floats) -> Floats:
    """How like itself the signal is some quarters of a sample later: 1 for the same, 0 for no likeness."""
    count = len(flat)
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(flat, size)
    # More room in the spectrum is finer steps in time.
    raw = np.fft.irfft(spectrum * np.conj(spectrum), size * _FINER)[: count * _FINER * 3 // 4]
    alike: Floats = raw / (count - np.arange(len(raw)) / _FINER)
    return alike / (alike[0] or 1.0)


def _confirmed(alike: Floats, proposed: float) -> int | None:
    """The lag near a proposed period at which the signal is most like itself; None where that is no hill."""
    reach = max(1, round(proposed * 0.15))
    low, high = max(2 * _FINER, math.floor(proposed) - reach), math.ceil(proposed) + reach + 1
    if high * (_ROUNDS - 1) > len(alike) * _ROUNDS // 3 or high >= len(alike):
        return None
    lag = low + int(np.argmax(alike[low:high]))
    if alike[lag] < max(alike[lag - 1], alike[lag + 1]) or _likeness(alike, lag) < _ALIKE:
        return None
    # Half a period later it has to be less like itself: a hill, and not the slope of a trend.
    valleys = [float(alike[round(lag * (turn + 0.5))]) for turn in range(2)]
    return lag if max(valleys) < _likeness(alike, lag) - _ALIKE / 2 else None


def _likeness(alike: Floats, lag: int) -> float:
    """The least likeness after one, two and three periods; near each, as iterations vary a little."""
    tops = []
    for turn in (1, 2, 3):
        slack = max(_FINER // 2, round(lag * 0.05 * turn))
        around = alike[max(1, lag * turn - slack) : lag * turn + slack + 1]
        if len(around):
            tops.append(float(around.max()))
    return min(tops, default=-1.0)


def _refined(alike: Floats, lag: int) -> float:
    """The period to a fraction of a sample: from the last hill that can be seen, and how many came before."""
    period = float(lag)
    for turn in range(1, len(alike) // lag):
        expected = period * turn
        slack = max(1, round(lag * 0.2))
        low, high = int(expected) - slack, int(expected) + slack + 2
        if low < 1 or high >= len(alike) or alike[low:high].max() < _ALIKE / 2:
            break
        top = low + int(np.argmax(alike[low:high]))
        period = _vertex(alike, top) / turn
    return period


def _vertex(alike: Floats, top: int) -> float:
    before, here, after = (float(alike[top + step]) for step in (-1, 0, 1))
    bend = before - 2 * here + after
    return top + (0.5 * (before - after) / bend if bend < 0 else 0.0)
