"""What `admit` says in recorded scenarios: who gets quota, in which flavor, and each reason with its numbers.

The recording is of the version that had a second, faster way through simple trees of cohorts.
After an intended change `python -m tests.golden.test_quota_admissions` records anew.
"""

import json
from pathlib import Path

import pytest

from tests.support.quota_scenarios import play

RECORDED = Path(__file__).with_name("quota_admissions.jsonl")
SEEDS = range(60)


def _recorded() -> list[dict[str, object]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


@pytest.mark.parametrize("case", _recorded(), ids=lambda case: str(case["seed"]))
def test_admit_says_what_it_said_when_it_was_recorded(case: dict[str, int]) -> None:
    assert json.loads(json.dumps(play(case["seed"]))) == case["steps"]


if __name__ == "__main__":
    cases = ({"seed": seed, "steps": play(seed)} for seed in SEEDS)
    RECORDED.write_text("".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases))
