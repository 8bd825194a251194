"""A batch size is split so that it fits the GPUs, and never grows beyond what was validated."""

from dataclasses import replace

import pytest

from batuta.backends.sim.goodput.application import (
    Application,
    BatchSplit,
    candidate_splits,
    split_fixed,
    split_planned,
)


def test_what_fits_is_not_accumulated(toy: Application):
    assert split_fixed(toy.profile, 60, 2) == BatchSplit(30, 0)


def test_what_does_not_fit_is_accumulated(toy: Application):
    profile = replace(toy.profile, max_batch=1000)
    assert split_fixed(profile, 600, 4) == BatchSplit(38, 3)


def test_one_gpu_accumulates_a_scaled_batch_at_least_once(toy: Application):
    assert split_fixed(toy.profile, 40, 1) == BatchSplit(20, 1)


def test_the_smallest_batch_runs_plain_on_one_gpu_but_optimus_plans_otherwise(toy: Application):
    assert split_fixed(toy.profile, 20, 1) == BatchSplit(20, 0)
    assert split_planned(toy.profile, 20, 1) == BatchSplit(10, 1)


def test_rounding_up_stops_at_the_largest_validated_batch(toy: Application):
    split = split_fixed(toy.profile, 60, 7)  # ⌈60 / 7⌉ = 9, but 63 were never validated
    assert split == BatchSplit(8, 0)


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 6])
def test_candidates_fit_the_application(toy: Application, gpus: int):
    splits = candidate_splits(toy.profile, gpus)
    assert splits
    assert len(set(splits)) == len(splits) <= 50
    for split in splits:
        assert 10 <= split.local <= 40
        assert 20 <= split.total(gpus) <= 60


def test_too_many_gpus_leave_no_candidate(toy: Application):
    assert candidate_splits(toy.profile, 7) == []
