"""The comparison of AFS, case by case; test_against_reference compares the fast scan with a plain one."""

from typing import Any

import numpy as np
import pytest

from batuta.policies.afs_l import AfsL, Contest
from tests.support.views import run


def job(name: str, remaining_s: float, **given: Any) -> dict[str, Any]:
    return {"id": name, "submit_s": ord(name), "remaining_s": remaining_s, "min": 1, "max": 4, **given}


WEAK, STRONG, LINEAR = [0, 1, 1.1, 1.15, 1.17], [0, 1, 1.9, 2.7, 3.4], [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("capacity", "jobs", "expected"),
    [
        pytest.param(1, [job("a", 900), job("b", 60)], {"a": 0, "b": 1}, id="without GPUs the shorter wins"),
        pytest.param(1, [job("a", 60), job("b", 60)], {"a": 1, "b": 0}, id="the earlier on a tie"),
        pytest.param(
            2,
            [job("a", 900, speed=STRONG), job("b", 60, speed=STRONG)],
            {"a": 1, "b": 1},
            id="all get their first",
        ),
        pytest.param(
            2, [job("a", 900), job("b", 60, speed=LINEAR)], {"a": 0, "b": 2}, id="unless the next GPU doubles"
        ),
        pytest.param(
            3,
            [job("a", 900, speed=STRONG), job("b", 60, speed=WEAK)],
            {"a": 2, "b": 1},
            id="the longer gains more",
        ),
        pytest.param(
            3,
            [job("a", 900, speed=STRONG), job("b", 60, speed=STRONG)],
            {"a": 1, "b": 2},
            id="alike: the shorter",
        ),
        pytest.param(
            6,
            [job("a", 60, max=2, speed=STRONG), job("b", 900, speed=WEAK)],
            {"a": 2, "b": 4},
            id="at max it leaves",
        ),
        pytest.param(
            3,
            [job("a", 60, min=4, size=4), job("b", 900, min=2, speed=WEAK)],
            {"a": 0, "b": 3},
            id="does not fit",
        ),
        pytest.param(
            5,
            [job("a", 60, sizes=[1, 4], speed=STRONG), job("b", 900, speed=STRONG)],
            {"a": 4, "b": 1},
            id="to the next legal size",
        ),
    ],
)
def test_who_gets_the_next_gpu(capacity: int, jobs: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert run(AfsL(), capacity, jobs) == expected


def test_the_comparison_has_cycles_so_the_order_of_the_scan_decides() -> None:
    """a beats b, b beats c, c beats a: whoever comes last in the scan wins."""
    first = {"a": 0.6, "b": 1.2, "c": 2.0}
    length = {"a": 1.0, "b": 2.0, "c": 3.0}

    def winner(order: str) -> str:
        relative = np.array([first[name] for name in order])
        contest = Contest(relative / (1 + relative), relative, np.array([length[name] for name in order]))
        return order[contest.winner()]

    assert (winner("ab"), winner("bc"), winner("ca")) == ("a", "b", "c")
    assert {winner("abc"), winner("bca"), winner("cab")} == {"a", "b", "c"}
