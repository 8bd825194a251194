"""What an unmodified Kueue decided, decided again: the same workloads, flavors and victims, step by step.

The cases were recorded on a real API server; the README of the shared data says how. Where Batuta decides
otherwise, the case stands in the table of docs/reference/kueue-differences.md with the reason.
"""

import re
from pathlib import Path

import pytest

from batuta.cli.quota import run_case
from batuta.spec.quota_case import QuotaCase
from tests.support.quotas import parse_cases

DIFFERENCES = Path(__file__).parents[2] / "docs" / "reference" / "kueue-differences.md"
_ROW = re.compile(r"^\| `([^`]+)` \| \S.*\|$", re.MULTILINE)


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> tuple[QuotaCase, ...]:
    return parse_cases((shared_data / "kueue_cases.json").read_text())


def _first_difference(case: QuotaCase) -> str:
    for number, step in enumerate(run_case(case), start=1):
        if step.differences:
            return f"step {number}: {'; '.join(step.differences)}"
    return ""


def test_every_recorded_case_is_decided_as_kueue_did_or_is_a_documented_difference(
    cases: tuple[QuotaCase, ...],
) -> None:
    wrong = {case.name: found for case in cases if (found := _first_difference(case))}
    documented = set(_ROW.findall(DIFFERENCES.read_text()))
    assert set(wrong) == documented, wrong
    assert len(cases) - len(wrong) >= 160


def test_a_decision_does_not_depend_on_when_it_is_made(cases: tuple[QuotaCase, ...]) -> None:
    """Each case played twice, to the letter of every message."""
    for case in cases:
        assert [step.standing for step in run_case(case)] == [step.standing for step in run_case(case)], case.name
