"""Iterations are found where there are some, and nowhere else."""

from collections.abc import Callable

import numpy as np
import pytest

from batuta.gpu.profiler.behaviour import iteration_period_s
from batuta.gpu.profiler.signals import Floats
from tests.unit.gpu.profiler.signals import red_noise, steps

RUNS = 200
Make = Callable[[np.random.Generator], Floats]


def share_found(make: Make, seed: int = 1) -> float:
    rng = np.random.default_rng(seed)
    return sum(iteration_period_s(make(rng)) is not None for _ in range(RUNS)) / RUNS


def in_bounds(values: Floats) -> Floats:
    """Noise as a share of time: from its least to its most."""
    return (values - values.min()) / max(float(np.ptp(values)), 1e-9)


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("period_s", [4.0, 4.3, 7.5, 12.7, 20.0, 33.0, 45.0])
def test_iterations_are_measured_to_within_three_percent(period_s: float, busy: float):
    rng = np.random.default_rng(int(period_s * 10 + busy * 100))
    found = [iteration_period_s(steps(rng, period_s, busy=busy)) for _ in range(20)]
    good = [one for one in found if one is not None and abs(one / period_s - 1) < 0.03]
    wrong = [one for one in found if one is not None and abs(one / period_s - 1) >= 0.1]
    assert len(good) >= 14, found
    assert not wrong


@pytest.mark.parametrize("period_s", [0.1, 0.3, 0.5, 0.7, 0.9, 1.05, 1.2, 1.35, 1.5, 1.65, 1.8, 2.0, 2.4])
def test_iterations_too_fast_for_the_samples_do_not_look_like_slow_ones(period_s: float):
    rng = np.random.default_rng(3)
    found = [
        iteration_period_s(steps(rng, period_s, busy=busy, jitter=jitter, noise=0.02))
        for busy in (0.1, 0.3, 0.6, 0.9)
        for jitter in (0.0, 0.02)
        for _ in range(3)
    ]
    assert [one for one in found if one is not None and abs(one / period_s - 1) > 0.1] == []


@pytest.mark.parametrize("period_s", [0.7, 0.9, 1.2, 1.5, 3.0])
def test_finer_samples_show_shorter_iterations(period_s: float):
    rng = np.random.default_rng(5)
    found = [iteration_period_s(steps(rng, period_s, length_s=60, interval_s=0.2), interval_s=0.2) for _ in range(20)]
    good = [one for one in found if one is not None and abs(one / period_s - 1) < 0.05]
    assert len(good) >= 18, found


NOISE: dict[str, Make] = {
    "white noise": lambda rng: in_bounds(red_noise(rng, 0.0)),
    "uniform noise": lambda rng: rng.random(300),
    "noise with a short memory": lambda rng: in_bounds(red_noise(rng, 0.5)),
    "noise with a long memory": lambda rng: in_bounds(red_noise(rng, 0.9)),
    "noise with a very long memory": lambda rng: in_bounds(red_noise(rng, 0.98)),
    "a random walk": lambda rng: in_bounds(red_noise(rng, 1.0)),
    "requests at random times": lambda rng: (rng.random(300) < 0.2) * rng.random(300),
    "a switch that is turned at random": lambda rng: np.repeat(rng.random(300) > 0.5, rng.integers(1, 12, 300))[
        :300
    ].astype(float),
    "a short record of noise": lambda rng: in_bounds(red_noise(rng, 0.8, 60)),
}


@pytest.mark.parametrize("name", NOISE)
def test_noise_has_a_period_in_fewer_than_two_of_a_hundred_records(name: str):
    assert share_found(NOISE[name]) < 0.02


TRENDS: dict[str, Make] = {
    "a trend": lambda rng: np.linspace(0, 1, 300) + rng.normal(0, 0.05, 300),
    "a bent trend": lambda rng: np.linspace(0, 1, 300) ** 2 + rng.normal(0, 0.02, 300),
    "one step": lambda rng: (np.arange(300) > rng.integers(20, 280)) + rng.normal(0, 0.05, 300),
    "one pulse": lambda rng: (np.abs(np.arange(300) - rng.integers(40, 260)) < 20) + rng.normal(0, 0.02, 300),
    "a slow wave that is seen twice": lambda rng: np.sin(np.arange(300) / 150 * 2 * np.pi) * 0.5 + 0.5,
    "the same all the time": lambda rng: np.full(300, 0.93),
    "nothing": lambda rng: np.zeros(300),
}


@pytest.mark.parametrize("name", TRENDS)
def test_trends_and_steps_have_no_period(name: str):
    assert share_found(TRENDS[name]) == 0.0


@pytest.mark.parametrize("values", [[], [1.0], [np.nan] * 300, [0.0, 1.0] * 10], ids=["none", "one", "nan", "few"])
def test_what_is_too_short_has_no_period(values: list[float]):
    assert iteration_period_s(np.array(values)) is None


def test_a_trend_below_iterations_does_not_hide_them():
    rng = np.random.default_rng(2)
    rising = steps(rng, 10.0) * np.linspace(0.8, 1.0, 300)
    assert iteration_period_s(rising) == pytest.approx(10.0, rel=0.03)
