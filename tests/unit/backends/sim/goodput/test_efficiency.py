"""A larger batch is worth more per step, as far as its gradients say so."""

import pytest

from batuta.backends.sim.goodput.application import Application, GradientStatistics


def test_an_epoch_ends_at_the_least_progress_of_all_batch_sizes(toy: Application):
    assert toy.efficiency.thresholds == (0.0, 100.0, 200.0, 250.0)


def test_the_smallest_batch_gains_one_per_step(toy: Application):
    assert toy.efficiency.gains(20).tolist() == [1.0, 1.0, 1.0]


def test_the_gain_follows_the_statistics_of_the_epoch(toy: Application):
    # (var + sqr) / (var / 3 + sqr) with (1, 3), then only noise, then none
    assert toy.efficiency.gains(60).tolist() == [2.0, 3.0, 1.0]


def test_between_validated_batches_statistics_are_linear(toy: Application):
    assert toy.efficiency.statistics(30, 1) == GradientStatistics(0.75, 3.0)
    assert toy.efficiency.gains(30)[1] == (3.0 + 0.75) / (3.0 / 1.5 + 0.75)


def test_remaining_iterations_leave_the_current_epoch_out(toy: Application):
    assert toy.efficiency.remaining_iterations(60, 0) == 120 - 60
    assert toy.efficiency.remaining_iterations(60, 1) == 120 - 100
    assert toy.efficiency.remaining_iterations(30, 0) == (250 * 0.75 + 120 * 0.25) - (100 * 0.75 + 60 * 0.25)


@pytest.mark.parametrize("epoch", [2, 3])
def test_in_the_last_epoch_one_iteration_remains(toy: Application, epoch: int):
    assert toy.efficiency.remaining_iterations(60, epoch) == 1


@pytest.mark.parametrize("batch", [19, 61])
def test_a_batch_that_was_not_validated_is_refused(toy: Application, batch: int):
    assert not toy.efficiency.covers(batch)
    with pytest.raises(ValueError, match=r"outside of 20…60"):
        toy.efficiency.gains(batch)
