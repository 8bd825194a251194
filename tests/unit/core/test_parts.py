"""Rows in parts: sums and running sums begin anew with each part."""

import numpy as np

from batuta.core.arrays import Partitions

PARTS = Partitions(np.array([2, 0, 3]), np.array([7, 8, 9]))
VALUES = np.array([1, 2, 3, 4, 5])


def test_each_row_belongs_to_a_part_and_a_part_may_be_empty() -> None:
    assert PARTS.number.tolist() == [0, 0, 2, 2, 2]
    assert [VALUES[PARTS.rows(part)].tolist() for part in range(len(PARTS))] == [[1, 2], [], [3, 4, 5]]


def test_sums_are_those_of_each_part() -> None:
    assert PARTS.sums(VALUES).tolist() == [3, 0, 12]
    assert PARTS.sums(VALUES > 1).tolist() == [1, 0, 3]


def test_a_running_sum_begins_anew_with_each_part() -> None:
    assert PARTS.running(VALUES).tolist() == [1, 3, 3, 7, 12]


def test_some_parts_are_parts_of_their_own() -> None:
    some = PARTS.only(np.array([False, True, True]))
    assert (some.lengths.tolist(), some.capacity.tolist()) == ([0, 3], [8, 9])
    assert some.number.tolist() == [1, 1, 1]


def test_without_rows_there_is_nothing_to_sum_up() -> None:
    none = Partitions(np.array([0, 0]), np.array([1, 1]))
    empty = np.zeros(0, dtype=np.int64)
    assert none.sums(empty).tolist() == [0, 0]
    assert none.running(empty).tolist() == []
