from typing import Any

import pytest

from batuta.policies.registry import load_policy
from tests.support.views import run

LOW_HIGH = {"size": 1, "min": 1}


@pytest.mark.parametrize(
    ("capacity", "jobs", "expected"),
    [
        pytest.param(7, {"a": {"max": 4}, "b": {"max": 4}}, {"a": 4, "b": 3}, id="the rest goes to the eldest"),
        pytest.param(9, {"a": {"max": 4}, "b": {"max": 4}}, {"a": 4, "b": 4}, id="everybody at the top"),
        pytest.param(
            8,
            {"a": {"max": 2}, "b": {"max": 9}, "c": {"max": 3}},
            {"a": 2, "b": 3, "c": 3},
            id="who is at the top drops out of the rounds",
        ),
        pytest.param(
            6,
            {"a": {"min": 2, "max": 8}, "b": {"max": 8}, "c": {"min": 5, "size": 5, "max": 8}},
            {"a": 4, "b": 2, "c": 0},
            id="who was not admitted does not grow; rounds count steps, not sizes",
        ),
        pytest.param(
            8,
            {"a": {"max": 8, "sizes": [1, 2, 4, 8]}, "b": {"max": 8}},
            {"a": 4, "b": 4},
            id="to the next legal size, if it fits",
        ),
        pytest.param(
            7,
            {"a": {"max": 8, "sizes": [1, 2, 8]}, "b": {"max": 8}},
            {"a": 2, "b": 5},
            id="a step that does not fit is passed",
        ),
        pytest.param(
            11,
            {
                "a": {"min": 2, "max": 8, "gpus_per_replica": 2},
                "b": {"min": 3, "max": 9, "gpus_per_replica": 3},
            },
            {"a": 4, "b": 6},
            id="steps of a replica",
        ),
    ],
)
def test_round_and_round(capacity: int, jobs: dict[str, dict[str, Any]], expected: dict[str, int]) -> None:
    described = [
        {"id": name, "submit_s": k, "size": job.get("min", 1), **LOW_HIGH, **job}
        for k, (name, job) in enumerate(jobs.items())
    ]
    assert run(load_policy("elastic-fifo"), capacity, described) == expected


def test_elastic_srjf_begins_each_round_with_the_shortest() -> None:
    jobs = [
        {"id": "long", "submit_s": 0, "min": 1, "max": 4, "remaining_s": 900},
        {"id": "short", "submit_s": 1, "min": 1, "max": 4, "remaining_s": 60},
    ]
    assert run(load_policy("elastic-srjf"), 5, jobs) == {"long": 2, "short": 3}
    assert run(load_policy("elastic-fifo"), 5, jobs) == {"long": 3, "short": 2}
