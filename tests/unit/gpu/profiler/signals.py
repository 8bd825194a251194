"""Synthetic use of a GPU, with a seed."""

import numpy as np

from batuta.gpu.profiler.signals import Floats, SampleRow, Signals, Window


def steps(
    rng: np.random.Generator,
    period_s: float,
    *,
    busy: float = 0.6,
    length_s: int = 300,
    jitter: float = 0.03,
    noise: float = 0.05,
    interval_s: float = 1.0,
) -> Floats:
    """Iterations with a pause in each, as means over every interval."""
    fine = 50
    count = round(length_s / interval_s)
    on = np.zeros(count * fine)
    begin_s = float(rng.random()) * period_s
    while begin_s < length_s:
        own_s = period_s * (1 + float(rng.normal(0, jitter)))
        scale = fine / interval_s
        on[int(begin_s * scale) : int((begin_s + own_s * busy) * scale)] = 1.0
        begin_s += own_s
    means = on.reshape(count, fine).mean(axis=1)
    return np.clip(means + rng.normal(0, noise, count), 0.0, 1.0)


def red_noise(rng: np.random.Generator, memory: float, length: int = 300) -> Floats:
    """Noise that remembers its last value: 0 is white, 1 a random walk."""
    pushes = rng.normal(0, 0.1, length + 100)
    values = np.zeros(length + 100)
    for k in range(1, len(values)):
        values[k] = memory * values[k - 1] + pushes[k]
    return values[100:]


def signals(**columns: Floats | float) -> Signals:
    """Columns by name; a number stands for a column of it."""
    length = max(len(column) for column in columns.values() if not isinstance(column, float | int))
    window = Window(length)
    for k in range(length):
        window.add(
            SampleRow(
                **{
                    name: float(column if isinstance(column, float | int) else column[k])
                    for name, column in columns.items()
                }
            )
        )
    return window.signals()
