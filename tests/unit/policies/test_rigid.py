"""fifo, srjf, tiresias: an order and one number each."""

import pytest

from batuta.policies.registry import load_policy
from tests.support.views import run

JOBS = [
    {
        "id": "old",
        "submit_s": 0,
        "min": 2,
        "size": 3,
        "max": 4,
        "remaining_s": 900,
        "tier": 1,
        "first_start_s": 5,
    },
    {"id": "mid", "submit_s": 1, "min": 2, "size": 2, "max": 4, "remaining_s": 60, "tier": 0},
    {
        "id": "new",
        "submit_s": 2,
        "min": 1,
        "size": 2,
        "max": 4,
        "remaining_s": 300,
        "tier": 0,
        "first_start_s": 9,
    },
]


@pytest.mark.parametrize(
    ("name", "capacity", "expected"),
    [
        ("fifo", 5, {"old": 2, "mid": 2, "new": 1}),
        ("fifo", 3, {"old": 2, "mid": 0, "new": 1}),
        ("srjf", 3, {"old": 0, "mid": 2, "new": 1}),
        ("srjf", 1, {"old": 0, "mid": 0, "new": 1}),
        ("tiresias", 7, {"old": 3, "mid": 2, "new": 2}),
        ("tiresias", 4, {"old": 0, "mid": 2, "new": 2}),
        # Never started comes after started within a tier; a higher tier never goes first.
        ("tiresias", 3, {"old": 0, "mid": 0, "new": 2}),
    ],
)
def test_order_and_size(name: str, capacity: int, expected: dict[str, int]) -> None:
    assert run(load_policy(name), capacity, JOBS) == expected


@pytest.mark.parametrize("name", ["fifo", "srjf", "tiresias"])
def test_ties_end_in_submit_time_and_id(name: str) -> None:
    jobs = [{"id": name, "submit_s": 1, "size": 2} for name in "cab"] + [{"id": "z", "submit_s": 0, "size": 2}]
    assert run(load_policy(name), 4, jobs) == {"z": 2, "a": 2, "b": 0, "c": 0}
