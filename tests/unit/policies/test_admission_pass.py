import numpy as np
import pytest

from batuta.policies.order import admit_in_order


@pytest.mark.parametrize(
    ("asked", "capacity", "order", "given"),
    [
        pytest.param([], 4, None, [], id="nobody asks"),
        pytest.param([1, 2], 0, None, [0, 0], id="nothing to give"),
        pytest.param([1, 2, 3], 6, None, [1, 2, 3], id="all fit"),
        pytest.param([4, 1, 1], 3, None, [0, 1, 1], id="the first does not fit, later ones pass it"),
        pytest.param([2, 3, 3, 1, 1], 4, None, [2, 0, 0, 1, 1], id="small ones fill the gap"),
        pytest.param([2, 3, 2, 2], 4, None, [2, 0, 2, 0], id="the gap is filled in order, not by size"),
        pytest.param([2, 2, 2], 4, [2, 1, 0], [0, 2, 2], id="another order"),
        pytest.param([5, 1, 4, 1], 5, [2, 0, 3, 1], [0, 0, 4, 1], id="another order with a gap"),
        pytest.param([0, 3, 0, 2], 2, None, [0, 0, 0, 2], id="who asks for nothing gets nothing"),
    ],
)
def test_each_that_still_fits(asked: list[int], capacity: int, order: list[int] | None, given: list[int]) -> None:
    rows = None if order is None else np.array(order)
    assert admit_in_order(np.array(asked, dtype=np.int64), capacity, rows).tolist() == given
