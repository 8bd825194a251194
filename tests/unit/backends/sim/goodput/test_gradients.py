"""The gradient noise that jobs have seen, at the batch that they have seen it at."""

import numpy as np
import pytest

from batuta.backends.sim.goodput.application import GradientStatistics
from batuta.backends.sim.goodput.model import GradientNoise

QUIET, NOISY = GradientStatistics(1.0, 4.0), GradientStatistics(1.0, 40.0)


def seen(*notes: tuple[int, float, GradientStatistics]) -> GradientNoise:
    gradients = GradientNoise(largest_scale=16.0)
    for note in notes:
        gradients.note(*note)
    return gradients


def gains(gradients: GradientNoise, *scales: float) -> list[list[float]]:
    return gradients.gains(np.array(scales)).tolist()


def gain_of(seen: GradientStatistics, scale: float) -> float:
    return (seen.var + seen.sqr) / (seen.var / scale + seen.sqr)


def test_what_was_seen_at_a_batch_is_believed_there_whatever_others_saw_since() -> None:
    both = seen((0, 1.0, QUIET), (0, 16.0, NOISY))
    assert gains(both, 16.0) == [[pytest.approx(gain_of(NOISY, 16.0))]]
    again = seen((0, 16.0, NOISY), (0, 1.0, QUIET))
    assert gains(again, 2.0, 16.0) == gains(both, 2.0, 16.0)


def test_where_nobody_was_the_nearest_batch_speaks() -> None:
    one = seen((0, 2.0, NOISY))
    assert gains(one, 1.0, 3.0, 16.0) == [[pytest.approx(gain_of(NOISY, s)) for s in (1.0, 3.0, 16.0)]]
    two = seen((0, 1.0, QUIET), (0, 16.0, NOISY))
    assert gains(two, 2.0, 8.0) == [[pytest.approx(gain_of(QUIET, 2.0)), pytest.approx(gain_of(NOISY, 8.0))]]


def test_between_two_batches_the_noise_is_between_theirs() -> None:
    found = gains(seen((0, 4.0, QUIET), (0, 8.0, NOISY)), 6.0)[0][0]
    assert gain_of(QUIET, 6.0) < found < gain_of(NOISY, 6.0)


def test_an_epoch_that_was_jumped_over_is_believed_to_be_like_the_one_that_was_reached() -> None:
    gradients = seen((2, 1.0, NOISY))
    assert len(gradients) == 3
    assert gains(gradients, 4.0) == [[pytest.approx(gain_of(NOISY, 4.0))]] * 3


def test_only_news_change_the_version() -> None:
    gradients = seen((0, 1.0, QUIET))
    before = gradients.version
    gradients.note(0, 1.0, QUIET)
    assert gradients.version == before
    gradients.note(0, 1.0, NOISY)
    assert gradients.version > before


def test_a_gradient_without_noise_or_without_length_is_no_problem() -> None:
    for odd in (GradientStatistics(0.0, 1.0), GradientStatistics(1.0, 0.0), GradientStatistics(0.0, 0.0)):
        assert np.isfinite(gains(seen((0, 1.0, odd)), 1.0, 16.0)).all()
