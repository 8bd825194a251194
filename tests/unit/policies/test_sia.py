"""Sia-like: the right GPU type and size for each job."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

from batuta.core.view import TypedView
from batuta.policies.sia import Sia
from tests.support.views import make_typed, make_view

OLD_S = 1e6


def test_the_job_that_gains_most_by_the_fast_type_has_it() -> None:
    view = make_view(2, [{"id": "a"}, {"id": "b"}], OLD_S)
    gpus, kinds = Sia().allocate_types(make_typed([1, 1], view, [[1.0, 2.0], [1.0, 8.0]]))
    assert (gpus.tolist(), kinds.tolist()) == ([1, 1], [0, 1])


def test_sizes_are_powers_of_two_within_a_node_and_whole_nodes_beyond() -> None:
    view = make_view(11, [{"id": "a", "max": 11, "remaining_s": 1e6}], OLD_S)
    gpus, _ = Sia().allocate_types(make_typed([11, 3], view, [[1.0, 0.1]], node_gpus=4))
    assert gpus.tolist() == [8]


@pytest.mark.parametrize(("restarts", "kind"), [(0, 1), (30_000, 0)])
def test_a_job_that_restarts_too_often_stays_where_it_is(restarts: int, kind: int) -> None:
    view = make_view(2, [{"id": "a", "gpus": 1, "restart_s": 30.0}], OLD_S)
    view = replace(view, restarts=np.array([restarts]))
    _, kinds = Sia().allocate_types(make_typed([1, 1], view, [[1.0, 2.0]]))
    assert kinds.tolist() == [kind]


@pytest.mark.parametrize(("waiting", "sizes"), [(1.1, [0, 0, 2, 2, 2, 2]), (2.0, [1, 1, 1, 1, 2, 2])])
def test_a_high_price_of_waiting_lets_everybody_run_before_anybody_grows(waiting: float, sizes: list[int]) -> None:
    jobs = [{"id": f"j{k}", "max": 8} for k in range(6)]
    view = make_typed([4, 4], make_view(8, jobs, OLD_S), [[1.0, 1.0]] * 6)
    assert sorted(Sia(waiting=waiting).allocate_types(view).gpus.tolist()) == sizes


@pytest.mark.parametrize("seed", range(8))
def test_no_other_choice_costs_less(seed: int) -> None:
    random = Random(seed)
    jobs = [
        {
            "id": f"j{k}",
            "max": 4,
            "sizes": (1, 2, 4),
            "speed": [0, 1, *sorted(random.uniform(1, 4) for _ in "xyz")],
        }
        for k in range(3)
    ]
    speeds = [[random.choice([0.0, 0.5, 1.0]), random.choice([1.0, 2.0, 4.0])] for _ in jobs]
    view = make_typed([3, 4], make_view(7, jobs, OLD_S), speeds)
    choices = [[(0, 0), *((n, kind) for n in (1, 2, 4) for kind in (0, 1) if speeds[k][kind])] for k in range(3)]
    best = min(_cost(view, list(chosen)) for chosen in product(*choices) if _fits(view, chosen))
    gpus, kinds = Sia().allocate_types(view)
    assert _cost(view, list(zip(gpus.tolist(), kinds.tolist(), strict=True))) == pytest.approx(best, rel=1e-3)


def _fits(view: TypedView, chosen: tuple[tuple[int, int], ...]) -> bool:
    return all(sum(n for n, own in chosen if own == kind) <= view.capacity[kind] for kind in (0, 1))


def _cost(view: TypedView, chosen: list[tuple[int, int]]) -> float:
    """The objective, written down as in the paper: p = −0.5, λ = 1.1."""
    total = 0.0
    for row, (n, kind) in enumerate(chosen):
        if not n:
            total += 1.1
            continue
        worst = min(speed for speed in view.speed[row].tolist() if speed > 0)
        total += (float(view.jobs.speed.row(row, 4)[n]) * view.speed[row, kind] / worst) ** -0.5
    return total
