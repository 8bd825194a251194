"""Options before the verb select a cluster; times are parsed as users write them."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from batuta.cli.options import (
    command_line,
    parse_time_s,
    read_cluster_options,
    select_cluster,
    selected_cluster,
)
from batuta.spec.problem import InputError

NOW_S = time.mktime((2026, 11, 16, 12, 0, 0, 0, 0, -1))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BATUTA_CONTEXT", raising=False)
    yield
    select_cluster(None, None)


def test_without_options_it_is_a_server_of_ours():
    assert read_cluster_options(None, None, None, False) is None


def test_any_of_the_options_means_a_cluster():
    for said in (("prod", None, None, False), (None, Path("config"), None, False), (None, None, None, True)):
        found = read_cluster_options(*said)
        assert found is not None
        assert found.explicit


def test_the_environment_names_a_context_that_options_override(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATUTA_CONTEXT", "usual")
    by_environment = read_cluster_options(None, None, None, False)
    assert by_environment is not None
    assert (by_environment.context, by_environment.explicit) == ("usual", False)
    assert getattr(read_cluster_options(None, None, "team-a", False), "context", "") == "usual"
    assert getattr(read_cluster_options("prod", None, None, False), "context", "") == "prod"
    # A kubeconfig that is named has a current context of its own.
    assert getattr(read_cluster_options(None, Path("config"), None, False), "context", "") is None


def test_one_namespace_and_all_of_them_is_a_contradiction():
    with pytest.raises(InputError, match="one of both"):
        read_cluster_options(None, None, "team-a", True)


@pytest.mark.parametrize("verb", ["up", "simulate", "install", "operator"])
def test_verbs_that_talk_to_no_cluster_refuse_the_options(verb: str):
    with pytest.raises(InputError, match=f"batuta {verb} takes no cluster"):
        select_cluster(read_cluster_options("prod", None, None, False), verb)


def test_the_environment_does_not_stand_in_the_way_of_other_verbs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATUTA_CONTEXT", "usual")
    select_cluster(read_cluster_options(None, None, None, False), "up")
    assert selected_cluster() is not None


def test_hints_lead_to_the_same_cluster():
    assert command_line("logs", "17") == "batuta logs 17"
    select_cluster(read_cluster_options("prod", None, "team-a", False), "launch")
    assert command_line("logs", "train") == "batuta --context prod -n team-a logs train"


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("24h", 86_400.0), ("90m ago", 5_400.0), ("11:30", 1_800.0), ("2026-11-16", 43_200.0)],
)
def test_a_time_is_a_date_a_time_or_so_long_ago(text: str, ago_s: float) -> None:
    assert parse_time_s(text, "--from", NOW_S) == NOW_S - ago_s


def test_a_zone_is_heeded_and_unix_seconds_are_taken_as_they_are() -> None:
    written = "2026-11-16T12:00:00+00:00"
    assert parse_time_s(written, "--from", NOW_S) == datetime.fromisoformat(written).timestamp()
    assert parse_time_s("1794832140", "--from", NOW_S) == 1794832140.0


def test_anything_else_is_refused_with_examples() -> None:
    with pytest.raises(InputError, match="--from: 'soon' is not a moment"):
        parse_time_s("soon", "--from", NOW_S)
