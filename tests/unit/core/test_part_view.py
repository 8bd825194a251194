"""A part of a view is the view of those jobs alone."""

from dataclasses import fields

import numpy as np
import pytest

from batuta.core.cluster import Node
from batuta.core.curve import Curves, LegalSizes
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.core.world_view import part_of, pool_view
from tests.support.worlds import NOW_S, make_job, make_world

ROWS = np.array([0, 2, 3, 5])
"""Of these the second and the third are the part."""


@pytest.fixture
def world() -> World:
    jobs = [
        make_job(f"j{k}", 1 + k % 3, min=1, max=8, submit_s=float(k), priority=k, work_s=1e3 * (k + 1))
        for k in range(5)
    ]
    jobs.append(make_job("j5", 2, min=2, max=8, submit_s=5.0, sizes=(2, 4, 8)))
    return make_world([Node("n0", 8)], {"j2": "n0:01"}, jobs)


def as_lists(value: object) -> object:
    """Columns as lists, to be compared."""
    if isinstance(value, LegalSizes):
        return [value.min.tolist(), value.max.tolist(), value.step.tolist(), value.regular]
    if isinstance(value, Curves):
        return value.at(np.full(len(value.start), 2)).tolist()
    return str(value.tolist()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", [field.name for field in fields(PoolView)])
def test_each_column_is_that_of_its_rows(world: World, name: str) -> None:
    cap = np.minimum(world.jobs.max, 5)
    part = part_of(pool_view(world, NOW_S, ROWS, 0, cap), slice(1, 3), 6)
    alone = pool_view(world, NOW_S, ROWS[1:3], 6, cap)
    assert as_lists(getattr(part, name)) == as_lists(getattr(alone, name))
    assert len(part) == 2


def test_a_part_has_no_column_that_the_whole_has_not(world: World) -> None:
    part = part_of(pool_view(world, NOW_S, ROWS, 0, None), slice(0, 2), 1)
    with pytest.raises(AttributeError):
        part.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_a_capacity_below_zero_is_none(world: World) -> None:
    assert part_of(pool_view(world, NOW_S, ROWS, 0, None), slice(0, 2), -3).capacity == 0
