"""Pollux-like: fair shares of goodput, and changes that are worth a restart."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

from batuta.core.view import PoolView
from batuta.policies.pollux import Pollux
from tests.support.views import make_view

OLD_S = 1e6
"""So old that a restart costs next to nothing."""


def jobs_of(count: int, **common: object) -> list[dict[str, object]]:
    return [{"id": f"j{k}", "max": 16, "restart_s": 30.0, **common} for k in range(count)]


def test_equal_jobs_have_equal_sizes() -> None:
    curve = [n**0.8 for n in range(17)]
    view = make_view(16, jobs_of(4, speed=curve), OLD_S)
    assert Pollux().allocate(view).tolist() == [4, 4, 4, 4]


def test_who_scales_better_has_more_but_nobody_has_nothing() -> None:
    good, bad = jobs_of(2)
    good["speed"], bad["speed"] = list(range(17)), [0.0, *(1 + 0.05 * n for n in range(16))]
    given = Pollux().allocate(make_view(16, [good, bad], OLD_S)).tolist()
    assert given[0] > given[1] >= 1


@pytest.mark.parametrize(("age_s", "sizes"), [(60.0, [1, 7]), (OLD_S, [4, 4])])
def test_a_young_job_that_would_have_to_restart_for_it_does_not_grow(age_s: float, sizes: list[int]) -> None:
    """It has gone through so many restarts that one more would leave it no time to make progress."""
    curve = [n**0.9 for n in range(17)]
    jobs = jobs_of(2, speed=curve)
    jobs[0] |= {"gpus": 1, "submit_s": OLD_S - age_s}
    jobs[1] |= {"gpus": 7, "submit_s": OLD_S - age_s}
    view = replace(make_view(8, jobs, OLD_S), restarts=np.array([2, 2]))
    assert Pollux().allocate(view).tolist() == sizes


@pytest.mark.parametrize("seed", range(10))
def test_no_other_sizes_have_a_higher_mean(seed: int) -> None:
    random = Random(seed)
    jobs = [
        {
            "id": f"j{k}",
            "submit_s": float(random.randint(0, 3000)),
            "max": 5,
            "speed": [0.0, *sorted(random.uniform(1, 5) for _ in range(5))],
            "gpus": random.randint(0, 2),
            "restart_s": 30.0,
        }
        for k in range(4)
    ]
    view = replace(make_view(8, jobs, 3600.0), restarts=np.array([random.randint(0, 9) for _ in range(4)]))
    best = max(_mean(view, list(sizes)) for sizes in product(range(6), repeat=4) if sum(sizes) <= view.capacity)
    assert _mean(view, Pollux().allocate(view).tolist()) == pytest.approx(best)


def _mean(view: PoolView, sizes: list[int]) -> float:
    """The power mean with p = −1, written down as in the paper."""
    assert view.restarts is not None
    total = 0.0
    for row, size in enumerate(sizes):
        curve = view.speed.row(row, 5)
        age_s = view.now_s - float(view.submit_s[row])
        factor = max(age_s - 30.0 * int(view.restarts[row]), 0.0) / (age_s + 30.0)
        speedup = float(curve[size] / curve[2]) * (1.0 if size == view.gpus[row] else factor)
        total += 1 / (speedup + 1e-3)
    return len(sizes) / total
