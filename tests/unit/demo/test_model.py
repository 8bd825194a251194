"""The course of a training depends on seed and step, not on how many share the work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.demo.training import SAMPLES, WEIGHTS, State, Training

TRAINING = Training(seed=3, batch=60)


@given(step=st.integers(0, 200), workers=st.integers(1, 70))
def test_parts_make_up_the_batch_in_order(step, workers):
    whole = TRAINING.part_of_batch(step, 0, 1)
    parts = [TRAINING.part_of_batch(step, rank, workers) for rank in range(workers)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(whole) == 60
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_an_epoch_sees_no_sample_twice_and_the_next_has_another_order():
    steps = SAMPLES // 60
    first = np.concatenate([TRAINING.part_of_batch(step, 0, 1) for step in range(steps)])
    second = np.concatenate([TRAINING.part_of_batch(steps + step, 0, 1) for step in range(steps)])
    assert len(set(first.tolist())) == len(first) == steps * 60
    assert not np.array_equal(first, second)


def test_the_order_does_not_depend_on_where_one_begins():
    fresh = Training(seed=3, batch=60)
    late = fresh.part_of_batch(150, 0, 1)
    TRAINING.part_of_batch(0, 0, 1)
    assert np.array_equal(TRAINING.part_of_batch(150, 0, 1), late)


@given(workers=st.integers(1, 9))
def test_sums_over_parts_are_the_sums_of_the_whole(workers):
    state = TRAINING.first_state()
    whole = TRAINING.sums(state, TRAINING.part_of_batch(0, 0, 1))
    parts = [TRAINING.sums(state, TRAINING.part_of_batch(0, rank, workers)) for rank in range(workers)]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-9, atol=1e-11)


def test_the_gradient_is_the_slope_of_the_loss():
    state, samples = TRAINING.first_state(), np.arange(20)
    gradient = TRAINING.sums(state, samples)[:-1]
    for k in np.random.default_rng(0).integers(0, WEIGHTS, 25):
        losses = []
        for change in (-1e-6, 1e-6):
            moved = State(state.weights.copy(), state.velocity)
            moved.weights[k] += change
            losses.append(TRAINING.sums(moved, samples)[-1])
        assert gradient[k] == pytest.approx((losses[1] - losses[0]) / 2e-6, rel=1e-4, abs=1e-6)


def test_a_part_without_samples_adds_nothing():
    nobody = TRAINING.sums(TRAINING.first_state(), np.arange(0))
    assert nobody.shape == (WEIGHTS + 1,)
    assert not nobody.any()


def test_a_state_survives_the_way_to_the_other_workers():
    state = TRAINING.first_state()
    for step in range(3):
        TRAINING.advance(state, TRAINING.sums(state, TRAINING.part_of_batch(step, 0, 1)))
    there = State.unpack(state.pack())
    assert (there.step, there.loss) == (3, state.loss)
    assert np.array_equal(there.weights, state.weights)
    assert np.array_equal(there.velocity, state.velocity)


def test_other_seeds_are_other_trainings():
    one, other = Training(1, 64), Training(2, 64)
    assert not np.array_equal(one.first_state().weights, other.first_state().weights)
    assert not np.array_equal(one.part_of_batch(0, 0, 1), other.part_of_batch(0, 0, 1))
