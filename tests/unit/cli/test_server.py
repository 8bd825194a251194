"""What `batuta up` is told about ranks that hold jobs up."""

import math

import pytest

from batuta.cli.server import Stragglers, parse_hang_after, rank_rules
from batuta.engine.stragglers.rank_watch import StragglerAction
from batuta.spec.problem import Problem


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800.0), ("90", 90.0), ("off", math.inf)])
def test_times_are_understood(text, seconds):
    problems: list[Problem] = []
    rules = rank_rules(parse_hang_after(text, problems), Stragglers.REPORT)
    assert (rules.hang.after_s, rules.action, problems) == (seconds, StragglerAction.REPORT, [])


@pytest.mark.parametrize("text", ["soon", "0s", "-5m"])
def test_what_is_no_time_is_told_with_the_others(text):
    problems = [Problem("something else")]
    parse_hang_after(text, problems)
    assert [str(problem)[:13] for problem in problems] == ["something els", "--hang-after:"]
