from typing import Any

import numpy as np
import pytest

from batuta.core.view import PoolView
from batuta.policies.ffdl import Ffdl
from tests.support.views import make_job, make_view, run


def job(name: str, **given: Any) -> dict[str, Any]:
    return {"id": name, "submit_s": ord(name), "min": 1, "max": 4, **given}


LINEAR, STEP = [0, 1, 2, 3, 4], [0, 1, 1, 1, 4]


@pytest.mark.parametrize(
    ("capacity", "jobs", "expected"),
    [
        pytest.param(4, [job("a", speed=[0, 1, 1.5, 1.7, 1.8]), job("b", speed=LINEAR)], {"a": 1, "b": 3}),
        pytest.param(5, [job("a", speed=STEP), job("b", speed=LINEAR)], {"a": 4, "b": 1}, id="past a plateau"),
        pytest.param(4, [job("a", speed=STEP), job("b", speed=LINEAR)], {"a": 1, "b": 3}, id="not reachable"),
        pytest.param(6, [job("a", speed=LINEAR), job("b", speed=LINEAR)], {"a": 4, "b": 2}, id="equal totals"),
        pytest.param(9, [job("a", speed=[0, 1, 1, 1, 1])], {"a": 1}, id="no GPU without gain"),
        pytest.param(9, [job("a", speed=[0, 1, 3, 2, 1])], {"a": 2}, id="not beyond the peak"),
        pytest.param(
            5,
            [job("a", min=2), job("b", min=4), job("c", min=1)],
            {"a": 4, "b": 0, "c": 0},
            id="the first that does not fit ends the queue",
        ),
        pytest.param(
            7,
            [job("a", sizes=[1, 4], speed=LINEAR), job("b", min=2, sizes=[2, 4], speed=LINEAR)],
            {"a": 4, "b": 2},
            id="legal sizes only",
        ),
        pytest.param(
            8,
            [job("a", min=2, gpus_per_replica=2, speed=[0, 1, 2, 2, 3]), job("b", min=2, gpus_per_replica=2)],
            {"a": 4, "b": 4},
            id="steps of a replica",
        ),
    ],
)
def test_highest_total(capacity: int, jobs: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert run(Ffdl(), capacity, jobs) == expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("irregular", [False, True])
def test_price_per_gpu_is_close_to_the_best(seed: int, irregular: bool) -> None:
    """Above 2,000 GPUs, with curves that do not flatten, against the dynamic programme."""
    view = _bumpy_view(seed, irregular)
    near = Ffdl(exact_gpus=0, exact_cells=0).allocate(view)
    best = Ffdl(exact_gpus=view.capacity).allocate(view)
    assert near.sum() <= view.capacity
    assert view.speed.at(near).sum() >= 0.995 * view.speed.at(best).sum()
    assert view.speed.at(near).sum() <= view.speed.at(best).sum() + 1e-9


def _bumpy_view(seed: int, irregular: bool) -> PoolView:
    random = np.random.default_rng(seed)
    jobs = []
    for k in range(200):
        high = int(random.choice([4, 16, 64]))
        speed = [0.0, *(np.arange(1, high + 1) ** 0.85 * random.uniform(0.6, 1.4, high))]
        sizes = [1, *sorted({int(n) for n in random.integers(2, high, 3)} - {1}), high] if irregular else None
        jobs.append(make_job(id=f"j{k:03}", submit_s=float(k), min=1, max=high, speed=speed, sizes=sizes))
    return make_view(2100, jobs)
