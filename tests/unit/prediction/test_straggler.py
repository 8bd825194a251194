"""A slow rank is named soon, and healthy ranks never are."""

import numpy as np
import pytest

from batuta.prediction.straggler import StragglerDetector, StragglerReport, StragglerRules

RANKS = 16
STEPS = 10_000
USUAL_S = 0.2


def gaussian(rng, steps, ranks):
    return np.maximum(0.5, 1 + 0.1 * rng.standard_normal((steps, ranks)))


def lognormal(rng, steps, ranks):
    return np.exp(0.3 * rng.standard_normal((steps, ranks)))


def heavy_tailed(rng, steps, ranks):
    """Each fiftieth part of a step is a stall: as long as ten steps, or a hundred, or a thousand."""
    stalls = 1 + 10 * rng.pareto(1.0, (steps, ranks)) * (rng.random((steps, ranks)) < 0.02)
    return gaussian(rng, steps, ranks) * stalls


def sticky(rng, steps, ranks):
    """A rank that is a little slow stays so for some steps, as with a page cache or a clock."""
    noise = np.empty((steps, ranks))
    noise[0] = 0.1 * rng.standard_normal(ranks)
    for step in range(1, steps):
        noise[step] = 0.9 * noise[step - 1] + 0.1 * np.sqrt(1 - 0.81) * rng.standard_normal(ranks)
    return np.exp(noise)


def warming_up(rng, steps, ranks):
    """The first steps take ten to a hundred times as long, on each rank as it happens."""
    factors = gaussian(rng, steps, ranks)
    factors[:5] *= rng.uniform(10, 100, (5, ranks))
    return factors


def slow_together(rng, steps, ranks):
    """Now and then all ranks take five times as long for a while: the file system, say."""
    together = np.ones(steps)
    for begin in rng.integers(0, steps, 100):
        together[begin : begin + 30] = 5.0
    return gaussian(rng, steps, ranks) * together[:, None]


def uneven(rng, steps, ranks):
    """Ranks have unequal work, for good: up to a tenth more or less."""
    return gaussian(rng, steps, ranks) * rng.uniform(0.9, 1.1, ranks)


HEALTHY = [gaussian, lognormal, heavy_tailed, sticky, warming_up, slow_together, uneven]


def seen(detector: StragglerDetector, times: np.ndarray) -> list[tuple[int, StragglerReport]]:
    found = ((step, detector.see(row)) for step, row in enumerate(times))
    return [(step, one) for step, one in found if one is not None]


@pytest.mark.parametrize(("noise", "seed"), [*((noise, 1) for noise in HEALTHY), (gaussian, 2), (lognormal, 2)])
def test_healthy_ranks_are_never_called_slow(noise, seed):
    times = USUAL_S * noise(np.random.default_rng(seed), STEPS, RANKS)
    assert seen(StragglerDetector(), times) == []


@pytest.mark.parametrize(("noise", "ranks"), [(gaussian, 3), (heavy_tailed, 3), (lognormal, 4)])
def test_nor_are_they_when_they_are_few(noise, ranks):
    times = USUAL_S * noise(np.random.default_rng(4), STEPS, ranks)
    assert seen(StragglerDetector(), times) == []


@pytest.mark.parametrize("noise", HEALTHY)
@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_becomes_twice_as_slow_is_named_within_20_steps(noise, seed):
    rng = np.random.default_rng(100 + seed)
    times = USUAL_S * noise(rng, 200, RANKS)
    rank, since = int(rng.integers(RANKS)), int(rng.integers(20, 170))
    times[since:, rank] *= 2
    step, found = seen(StragglerDetector(), times)[0]
    assert since < step <= since + 20
    assert (found.ranks, found.of, found.is_clear) == ((rank,), RANKS, True)
    assert 1.4 < found.slowdown < 3.5


@pytest.mark.parametrize("noise", HEALTHY)
@pytest.mark.parametrize("seed", range(5))
def test_so_is_one_that_is_slow_from_the_first_step(noise, seed):
    times = USUAL_S * noise(np.random.default_rng(200 + seed), 40, RANKS)
    times[:, 5] *= 2
    step, found = seen(StragglerDetector(), times)[0]
    assert step < 20
    assert found.ranks == (5,)


def test_with_its_numbers():
    times = np.full((40, RANKS), USUAL_S)
    times[10:, 3] = 2.05 * USUAL_S
    step, found = seen(StragglerDetector(), times)[0]
    assert step == 10 + StragglerRules().patience - 1
    assert found.steps == StragglerRules().patience
    assert found.own_s == pytest.approx(2 * USUAL_S, rel=0.1)
    assert found.usual_s == pytest.approx(USUAL_S)


def test_all_ranks_of_a_slow_node_are_named_together_the_slowest_first():
    times = USUAL_S * gaussian(np.random.default_rng(5), 60, RANKS)
    times[:, 4:8] *= 2
    times[:, 6] *= 1.5
    found = seen(StragglerDetector(), times)[0][1]
    assert sorted(found.ranks) == [4, 5, 6, 7]
    assert found.ranks[0] == 6
    assert found.is_clear


def test_a_slow_rank_is_named_again_as_long_as_it_is_slow():
    times = np.full((100, 4), USUAL_S)
    times[:50, 2] *= 2
    steps = [step for step, _ in seen(StragglerDetector(), times)]
    assert len(steps) == 4
    assert max(steps) < 50


@pytest.mark.parametrize(("ranks", "slow"), [(2, 1), (4, 2), (16, 8)])
def test_nobody_is_blamed_when_as_many_are_slow_as_are_not(ranks, slow):
    times = np.full((40, ranks), USUAL_S)
    times[:, :slow] *= 2
    found = seen(StragglerDetector(), times)[0][1]
    assert (found.of, found.is_clear) == (ranks, False)


@pytest.mark.parametrize("ranks", [3, 4])
def test_one_of_three_can_be_blamed(ranks):
    times = USUAL_S * gaussian(np.random.default_rng(6), 40, ranks)
    times[:, 1] *= 2
    step, found = seen(StragglerDetector(), times)[0]
    assert (found.ranks, found.is_clear, step < 20) == ((1,), True, True)


def test_equal_times_of_a_collective_that_all_wait_in_blame_nobody():
    rng = np.random.default_rng(7)
    longest = USUAL_S * gaussian(rng, 1000, RANKS).max(axis=1)
    assert seen(StragglerDetector(), np.repeat(longest[:, None], RANKS, axis=1)) == []


def test_ranks_that_say_nothing_are_left_out():
    times = np.full((40, 8), USUAL_S)
    times[:, 2] = np.nan
    times[::2, 3] = np.nan
    times[:, 5] *= 2
    found = seen(StragglerDetector(), times)[0][1]
    assert (found.ranks, found.is_clear) == ((5,), True)
    assert seen(StragglerDetector(), np.full((100, 8), np.nan)) == []


def test_steps_too_short_to_measure_blame_nobody():
    times = 1e-5 * lognormal(np.random.default_rng(8), 1000, RANKS)
    times[:, 3] *= 10
    assert seen(StragglerDetector(), times) == []


@pytest.mark.parametrize("rules", [{"tolerated": 1.0}, {"tolerated": 2.0}, {"patience": 0}])
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(ValueError, match="must be"):
        StragglerRules(**rules)
