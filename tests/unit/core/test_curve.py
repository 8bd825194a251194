"""Speed curves: one by one, and many in a pool."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.arrays import with_own_containers
from batuta.core.curve import CurvePool, Curves, SpeedCurve, amdahl_curve, linear_curve, power_curve


@pytest.mark.parametrize(
    ("curve", "gpus", "speed"),
    [
        (linear_curve(4), 0, 0.0),
        (linear_curve(4), 3, 3.0),
        (linear_curve(4), 9, 4.0),
        (amdahl_curve(4, 0.0), 4, 4.0),
        (amdahl_curve(4, 1.0), 4, 1.0),
        (amdahl_curve(4, 0.5), 2, 1 / 0.75),
        (power_curve(4, 0.5), 4, 2.0),
        (SpeedCurve.of([0, 1]), 100, 1.0),
    ],
)
def test_speed_at_a_count_and_beyond_the_end(curve: SpeedCurve, gpus: int, speed: float) -> None:
    assert curve.at(gpus) == pytest.approx(speed)


@pytest.mark.parametrize(("nodes", "racks", "factor"), [(1, 1, 1.0), (2, 1, 0.5), (3, 2, 0.4), (1, 2, 0.8)])
def test_spread_slows_down_by_nodes_and_by_racks(nodes: int, racks: int, factor: float) -> None:
    curve = SpeedCurve((0.0, 1.0), across_nodes=0.5, across_racks=0.8)
    assert curve.spread(nodes, racks) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"speeds": (0.0,)}, "needs a value for 0 and for 1"),
        ({"speeds": ()}, "needs a value for 0 and for 1"),
        ({"speeds": (1.0, 1.0)}, "with 0 GPUs must be 0"),
        ({"speeds": (0.0, -1.0)}, "finite number ≥ 0"),
        ({"speeds": (0.0, float("nan"))}, "finite number ≥ 0"),
        ({"speeds": (0.0, float("inf"))}, "finite number ≥ 0"),
        ({"speeds": (0.0, 1.0), "across_nodes": 0.0}, "spread factor"),
        ({"speeds": (0.0, 1.0), "across_racks": 1.5}, "spread factor"),
    ],
)
def test_what_is_no_curve_is_refused(given_: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeedCurve(**given_)


any_curve = st.lists(st.floats(0, 100), min_size=1, max_size=20).map(lambda speeds: SpeedCurve.of([0, *speeds]))


@given(curves=st.lists(any_curve, min_size=1, max_size=200), gpus=st.integers(0, 30))
def test_a_pool_answers_as_the_curves_do(curves: list[SpeedCurve], gpus: int) -> None:
    pool = CurvePool()
    start, last = (np.array(column) for column in zip(*map(pool.add, curves), strict=True))
    together = Curves(pool.flat, start, last)
    expected = [curve.at(gpus) for curve in curves]
    assert together.at(np.full(len(curves), gpus)).tolist() == expected
    rows = np.arange(len(curves))[::-1]
    assert together.of(rows, np.full(len(curves), gpus)).tolist() == expected[::-1]
    assert together.subset(rows).at(np.full(len(curves), gpus)).tolist() == expected[::-1]
    assert together.row(0, gpus).tolist() == [curves[0].at(n) for n in range(gpus + 1)]


def test_equal_curves_are_stored_once_and_a_fork_is_independent() -> None:
    pool = CurvePool()
    assert pool.add(linear_curve(3)) == pool.add(SpeedCurve.of([0, 1, 2, 3]))
    twin = with_own_containers(pool)
    twin.add(amdahl_curve(8, 0.5))
    assert pool.used == 4
    assert pool.add(amdahl_curve(2, 0.25)) == (4, 2)
    assert twin.flat[4] == 0.0
    assert twin.flat[5] == 1.0
