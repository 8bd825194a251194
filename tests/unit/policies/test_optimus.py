"""Optimus: GPUs go where they save most time."""

from batuta.policies.optimus import Optimus
from tests.support.views import run


def test_the_longer_of_two_equal_jobs_saves_more_by_a_gpu() -> None:
    jobs = [{"id": "short", "max": 4, "remaining_s": 100.0}, {"id": "long", "max": 4, "remaining_s": 1000.0}]
    # From 1 to 2 GPUs the long one saves 500 s, then 167 s, then 83 s; the short one saves 50 s at first.
    assert run(Optimus(), 4, jobs) == {"short": 1, "long": 3}
    assert run(Optimus(), 6, jobs) == {"short": 2, "long": 4}


def test_a_job_that_does_not_scale_gets_no_more_than_its_minimum() -> None:
    jobs = [
        {"id": "flat", "max": 4, "remaining_s": 1e6, "speed": [0, 1, 1, 1, 1]},
        {"id": "steep", "max": 3, "remaining_s": 10.0},
    ]
    assert run(Optimus(), 8, jobs) == {"flat": 1, "steep": 3}


def test_with_too_few_gpus_the_first_that_came_start() -> None:
    jobs = [{"id": name, "submit_s": float(k), "size": 2} for k, name in enumerate("abc")]
    assert run(Optimus(), 5, jobs) == {"a": 2, "b": 2, "c": 0}
