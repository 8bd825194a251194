"""Gavel: who gets the fast GPUs, and who has to be content with the slow ones for now."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from batuta.policies.gavel import Gavel
from tests.support.views import make_typed, make_view


def allocate(
    capacity: Sequence[int],
    jobs: list[dict[str, object]],
    speed: Sequence[Sequence[float]],
    done_s: Sequence[float] | None = None,
    now_s: float = 0.0,
) -> dict[str, tuple[int, int]]:
    """By job: how many GPUs, and the number of their type."""
    view = make_view(sum(capacity), jobs, now_s)
    if done_s is not None:
        view = replace(view, done_s=np.array(done_s))
    gpus, kinds = Gavel().allocate_types(make_typed(capacity, view, speed))
    return {job: (int(n), int(kind)) for job, n, kind in zip(view.ids, gpus, kinds, strict=True)}


def job(name: str, size: int = 1) -> dict[str, object]:
    return {"id": name, "size": size}


def test_who_can_use_both_types_leaves_the_fast_one_to_who_can_use_no_other() -> None:
    given = allocate([1, 1], [job("a"), job("b")], [[1.0, 0.9], [1.0, 0.0]])
    assert given == {"a": (1, 1), "b": (1, 0)}


def test_who_was_on_the_slow_type_has_the_fast_one_next() -> None:
    speed = [[1.0, 0.5], [1.0, 0.5]]
    ahead = allocate([1, 1], [job("a"), job("b")], speed, [3600.0, 1800.0], 3600.0)
    assert ahead == {"a": (1, 1), "b": (1, 0)}
    behind = allocate([1, 1], [job("a"), job("b")], speed, [1800.0, 3600.0], 3600.0)
    assert behind == {"a": (1, 0), "b": (1, 1)}


def test_with_one_type_whoever_has_done_least_goes_first() -> None:
    given = allocate([2], [job("a"), job("b"), job("c")], [[1.0]] * 3, [900.0, 100.0, 500.0], 1000.0)
    assert [gpus for gpus, _ in given.values()] == [0, 1, 1]


def test_a_job_gets_the_size_that_it_asked_for_or_nothing() -> None:
    given = allocate([3, 2], [job("a", 2), job("b", 2), job("c", 4)], [[1.0, 1.0]] * 3)
    assert sorted(gpus for gpus, _ in given.values()) == [0, 2, 2]
    assert given["c"][0] == 0


def test_no_gpu_is_idle_that_somebody_could_use() -> None:
    given = allocate([1, 4], [job("a"), job("b")], [[1.0, 0.01], [1.0, 0.01]])
    assert [gpus for gpus, _ in given.values()] == [1, 1]
