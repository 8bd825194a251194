"""What the World is told of how busy GPUs are, and what not."""

import json
import math

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.operator.node_controller import UsageReporter
from batuta.core.event import GpusUsed

NOW_S = 10_000.0


def node(annotations: dict[str, str]) -> objects.Node:
    return objects.Node(metadata=objects.Meta(name="n", annotations=annotations))


def said(teller: UsageReporter, time_s: float, *busy: float | None, now_s: float | None = None) -> list[GpusUsed]:
    gpus = [{"index": index} | ({} if value is None else {"utilisation": value}) for index, value in enumerate(busy)]
    text = json.dumps({"time": time_s, "gpus": gpus, "more": 1})
    return list(teller.tell(node({names.UTILISATION: text}), time_s if now_s is None else now_s))


def test_the_first_report_is_told_with_what_is_not_known():
    assert said(UsageReporter(), NOW_S, 0.5, None) == [GpusUsed(NOW_S, "n", (0.5, None), cause="agent")]


@pytest.mark.parametrize("busy", [(0.45, 0.0), (0.59, 0.01)])
def test_small_changes_are_no_news(busy: tuple[float, float]):
    teller = UsageReporter()
    said(teller, NOW_S, 0.5, 0.0)
    assert said(teller, NOW_S + 30, *busy) == []


@pytest.mark.parametrize("busy", [(0.7, 0.0), (0.5, 0.05), (0.5, None), (0.5,)])
def test_large_changes_and_a_gpu_that_begins_to_work_are_news(busy: tuple[float | None, ...]):
    teller = UsageReporter()
    said(teller, NOW_S, 0.5, 0.0)
    (news,) = said(teller, NOW_S + 30, *busy)
    assert news.gpus == busy


def test_what_stays_the_same_is_told_again_now_and_then():
    teller = UsageReporter()
    said(teller, NOW_S, 0.5)
    assert [bool(said(teller, NOW_S + late_s, 0.5)) for late_s in (30, 299, 300, 330)] == [
        False,
        False,
        True,
        False,
    ]


def test_the_same_report_is_told_once_however_often_the_node_changes():
    teller = UsageReporter()
    assert said(teller, NOW_S, 0.1)
    assert not said(teller, NOW_S, 0.9, now_s=NOW_S + 1000)


def test_a_report_from_the_future_is_of_now():
    (event,) = said(UsageReporter(), NOW_S + 9999, 0.5, now_s=NOW_S)
    assert event.time_s == NOW_S


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": []}', '{"time": "x"}'])
def test_what_cannot_be_read_is_not_told(text: str):
    assert list(UsageReporter().tell(node({names.UTILISATION: text}), NOW_S)) == []


def test_odd_numbers_are_brought_into_bounds():
    (event,) = said(UsageReporter(), NOW_S, 1.7, -0.3)
    assert event.gpus == (1.0, 0.0)


def test_what_those_have_who_share_a_card_is_told_with_it():
    teller = UsageReporter()
    text = {names.UTILISATION: json.dumps({"time": NOW_S, "gpus": [{"index": 0, "utilisation": 0.6}]})}
    (event,) = teller.tell(node(text), NOW_S, {"b": 0.5, "a": 0.1})
    assert event.jobs == (("a", 0.1), ("b", 0.5))


@pytest.mark.parametrize(
    ("sharers", "is_news"),
    [({"a": 0.15}, False), ({"a": 0.01}, True), ({"a": 0.3}, True), ({}, True), ({"b": 0.1}, True)],
)
def test_it_is_news_when_one_of_them_does_something_else(sharers: dict[str, float], is_news: bool):
    teller = UsageReporter()
    for late_s, using in ((0, {"a": 0.1}), (30, sharers)):
        report = {"time": NOW_S + late_s, "gpus": [{"index": 0, "utilisation": 0.6}]}
        told = list(teller.tell(node({names.UTILISATION: json.dumps(report)}), NOW_S + late_s, using))
    assert bool(told) is is_news


def test_of_a_node_whose_agent_is_silent_nothing_is_known_any_more():
    """Once: until it reports again there is nothing to say."""
    teller = UsageReporter()
    said(teller, NOW_S, 0.5)
    said(teller, NOW_S + 30, 0.5)
    assert list(teller.tell_silent(NOW_S + 120)) == []
    due_s = teller.silent_s()
    assert NOW_S + 120 < due_s < NOW_S + 121
    assert list(teller.tell_silent(due_s)) == [GpusUsed(due_s, "n", (), cause="agent")]
    assert list(teller.tell_silent(due_s + 1000)) == []
    assert teller.silent_s() == math.inf
    # and what it says then is news, though it be the same as before
    assert said(teller, due_s + 30, 0.5)


def test_a_report_that_was_old_when_it_was_first_seen_is_not_told():
    assert said(UsageReporter(), NOW_S, 0.5, now_s=NOW_S + 91) == []
