"""Legal sizes of many jobs at once, against the same said plainly for one."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.arrays import with_own_containers
from batuta.core.curve import LegalSizes, SizeSetPool


@dataclass(frozen=True)
class Range:
    """The sizes of one job; `cap` lowers its largest."""

    low: int
    high: int
    step: int = 1
    listed: tuple[int, ...] | None = None
    cap: int = 10**6

    def legal(self) -> list[int]:
        sizes = self.listed or range(self.low, self.high + 1, self.step)
        return [size for size in sizes if size <= self.cap]


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    step = draw(st.sampled_from((1, 1, 1, 2, 3)))
    low = step * draw(st.integers(1, 4))
    high = low + step * draw(st.integers(0, 6))
    inner = draw(st.lists(st.sampled_from(range(low, high + 1, step)), max_size=4))
    listed = tuple(sorted({low, high, *inner})) if draw(st.booleans()) else None
    return Range(low, high, step, listed, draw(st.just(10**6) | st.integers(0, 30)))


def together(jobs: list[Range]) -> LegalSizes:
    """As a policy sees them: a cap has lowered `max` to the largest legal size within it, or 0."""
    pool = SizeSetPool()
    set_of = np.array([pool.add(job.listed) for job in jobs], dtype=np.int64)
    high = np.array([max(job.legal(), default=0) for job in jobs], dtype=np.int64)
    low, step = (np.array([getattr(job, name) for job in jobs], dtype=np.int64) for name in ("low", "step"))
    return LegalSizes.build(low, high, step, set_of, pool.matrix)


@given(jobs=st.lists(ranges(), min_size=1, max_size=8))
def test_next_floor_and_of_are_what_one_finds_by_looking(jobs: list[Range]) -> None:
    """For every count, those that are no legal size among them: a user may have changed the range."""
    sizes = together(jobs)
    for n in range(36):
        now = np.full(len(jobs), n, dtype=np.int64)
        up, down = sizes.next(now), sizes.floor(now)
        for row, job in enumerate(jobs):
            legal = job.legal()
            assert up[row] == min((size for size in legal if size > n), default=n)
            assert down[row] == max((size for size in legal if size <= n), default=0)
    assert [sizes.of(row).tolist() for row in range(len(jobs))] == [job.legal() for job in jobs]


@given(jobs=st.lists(ranges(), min_size=1, max_size=8), data=st.data())
def test_a_subset_is_the_same_for_fewer_jobs(jobs: list[Range], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(jobs) - 1), max_size=8)), dtype=np.int64)
    some = together(jobs).subset(rows)
    assert [some.of(k).tolist() for k in range(len(rows))] == [jobs[row].legal() for row in rows]


@pytest.mark.parametrize(
    ("jobs", "regular"),
    [
        ([Range(1, 4), Range(2, 2)], True),
        ([Range(1, 4), Range(2, 8, step=2)], False),
        ([Range(1, 4), Range(1, 8, listed=(1, 8))], False),
    ],
)
def test_it_knows_when_every_size_is_legal(jobs: list[Range], regular: bool) -> None:
    assert together(jobs).regular is regular


def test_equal_lists_are_stored_once_and_a_fork_is_independent() -> None:
    pool = SizeSetPool()
    assert pool.add(None) == -1
    assert [pool.add((1, 2)), pool.add((2, 4, 8)), pool.add((1, 2))] == [0, 1, 0]
    twin = with_own_containers(pool)
    twin.add((3, 5, 7, 9))
    assert pool.matrix.shape == (2, 3)
    assert twin.matrix.shape == (3, 4)
    assert twin.matrix[0, :2].tolist() == [1, 2]
