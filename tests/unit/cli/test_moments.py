"""Moments as people write them."""

import time
from datetime import datetime

import pytest

from batuta.cli.moments import parse_moment_s
from batuta.spec.problem import InputError

NOW_S = time.mktime((2026, 11, 16, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("24h", 86_400.0), ("90m ago", 5_400.0), ("11:30", 1_800.0), ("2026-11-16", 43_200.0)],
)
def test_a_moment_is_a_date_a_time_or_so_long_ago(text: str, ago_s: float) -> None:
    assert parse_moment_s(text, "--from", NOW_S) == NOW_S - ago_s


def test_a_zone_is_heeded_and_unix_seconds_are_taken_as_they_are() -> None:
    written = "2026-11-16T12:00:00+00:00"
    assert parse_moment_s(written, "--from", NOW_S) == datetime.fromisoformat(written).timestamp()
    assert parse_moment_s("1794832140", "--from", NOW_S) == 1794832140.0


def test_anything_else_is_refused_with_examples() -> None:
    with pytest.raises(InputError, match="--from: 'soon' is not a moment"):
        parse_moment_s("soon", "--from", NOW_S)
