"""A stretch of samples in a few figures."""

import numpy as np
import pytest

from batuta.gpu.profiler.signals import SampleStats, mean_of, memory_plateau_mib, sample_stats

NAN = float("nan")


def test_figures_of_a_job_that_works_half_the_time():
    found = sample_stats(np.array([0.0, 1.0] * 50))
    assert found == SampleStats(mean=0.5, p95=1.0, peak=1.0, duty_cycle=0.5)


def test_what_was_not_measured_counts_for_nothing():
    found = sample_stats(np.array([NAN, 0.4, NAN, 0.6]))
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert sample_stats(np.array([NAN, NAN])) is None
    assert mean_of(np.array([])) is None


def test_a_single_peak_is_in_the_peak_and_not_in_the_95th_percentile():
    found = sample_stats(np.array([0.2] * 99 + [1.0]))
    assert found is not None
    assert (found.p95, found.peak) == pytest.approx((0.2, 1.0))


def test_memory_that_has_come_to_a_level_is_a_plateau():
    loading = np.linspace(0, 8000, 40)
    level = np.full(80, 8000.0) + np.random.default_rng(1).normal(0, 20, 80)
    assert memory_plateau_mib(np.concatenate([loading, level])) == pytest.approx(8000, rel=0.01)


def test_a_moment_of_more_memory_does_not_end_a_plateau():
    level = np.full(100, 8000.0)
    level[95:97] = 11_000
    assert memory_plateau_mib(level) == pytest.approx(8000)


@pytest.mark.parametrize(
    "memory",
    [
        np.linspace(0, 8000, 120),
        np.linspace(8000, 0, 120),
        np.zeros(60),
        np.full(5, 8000.0),
        np.full(40, NAN),
    ],
    ids=["grows", "shrinks", "none", "too few", "unknown"],
)
def test_elsewhere_there_is_no_plateau(memory: np.ndarray):
    assert memory_plateau_mib(memory) is None
