"""The decisions of Voda's own code on 62 inputs, and of the plain reference on the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from batuta.policies.registry import load_policy
from tests.support.reference_policies import REFERENCE
from tests.support.views import make_job, run

EXACT = ["fifo", "srjf", "tiresias", "elastic-fifo", "elastic-srjf", "elastic-tiresias"]


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_data / "allocations.json").read_text())
    assert len(found) == 62
    return found


@pytest.mark.parametrize("name", EXACT)
def test_gives_exactly_what_was_recorded(name: str, cases: list[dict[str, Any]]) -> None:
    policy = load_policy(name)
    compared = 0
    for number, case in enumerate(cases):
        if name in case["expected"]:
            assert run(policy, case["gpus"], case["jobs"]) == case["expected"][name], f"case {number}"
            compared += 1
    assert compared >= 53


def test_ffdl_is_at_least_as_fast_as_recorded(cases: list[dict[str, Any]]) -> None:
    compared = 0
    for number, case in enumerate(cases):
        if "ffdl" not in case["expected"]:
            continue
        speeds = {job["id"]: job["speed"] for job in case["jobs"]}

        def total(allocation: dict[str, int], speeds: dict[str, list[float]] = speeds) -> float:
            return sum(speeds[job][gpus] for job, gpus in allocation.items())

        ours = run(load_policy("ffdl"), case["gpus"], case["jobs"])
        assert total(ours) >= total(case["expected"]["ffdl"]) - 1e-3, f"case {number}"
        compared += 1
    assert compared == 40


@pytest.mark.parametrize("name", REFERENCE)
def test_equals_the_plain_reference(name: str, cases: list[dict[str, Any]]) -> None:
    """For afs-l this is the comparison that counts: the recorded code looks at a wrong GPU count."""
    for number, case in enumerate(cases):
        jobs = [make_job(**job) for job in case["jobs"]]
        assert run(load_policy(name), case["gpus"], jobs) == REFERENCE[name](case["gpus"], jobs), number
