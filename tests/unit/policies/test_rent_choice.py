"""The sizes with the highest total value."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.policies import rent
from batuta.policies.rent import choose_sizes

SIZES = np.array([1, 2, 4, 8])


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    jobs = draw(st.integers(1, 5))
    values = np.array(draw(st.lists(st.integers(0, 40), min_size=4 * jobs, max_size=4 * jobs)), float)
    return np.tile(SIZES[:, None], jobs), values.reshape(4, jobs), draw(st.integers(0, 20))


def total(gpus: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> float:
    return sum(values[list(gpus[:, job]).index(n), job] for job, n in enumerate(chosen.tolist()) if n)


def best(gpus: np.ndarray, values: np.ndarray, capacity: int) -> float:
    options = [[(0, 0.0), *zip(gpus[:, j].tolist(), values[:, j].tolist(), strict=True)] for j in range(gpus.shape[1])]
    return max(sum(value for _, value in pick) for pick in product(*options) if sum(n for n, _ in pick) <= capacity)


@given(tables())
def test_no_other_choice_is_better(table: tuple[np.ndarray, np.ndarray, int]) -> None:
    gpus, values, capacity = table
    chosen = choose_sizes(gpus, values, capacity)
    assert chosen.sum() <= capacity
    assert total(gpus, values, chosen) == pytest.approx(best(gpus, values, capacity))


@given(tables())
def test_when_the_best_is_too_far_to_look_for_it_is_nearly_found(
    table: tuple[np.ndarray, np.ndarray, int],
) -> None:
    gpus, values, capacity = table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rent, "CELLS", 0)
        chosen = choose_sizes(gpus, values, capacity)
    assert chosen.sum() <= capacity
    # What the price leaves open is at most what one job could have had.
    assert total(gpus, values, chosen) >= best(gpus, values, capacity) - values.max()


def test_a_large_cluster_is_filled() -> None:
    random = np.random.default_rng(0)
    gpus = np.tile(SIZES[:, None], 3000)
    values = np.cumsum(random.random((4, 3000)), axis=0)
    chosen = choose_sizes(gpus, values, 5000)
    assert chosen.sum() == 5000


def test_of_equal_sizes_the_smaller_one_is_enough() -> None:
    assert choose_sizes(SIZES[:, None], np.full((4, 1), 3.0), 8).tolist() == [1]
