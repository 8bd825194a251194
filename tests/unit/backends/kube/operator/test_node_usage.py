"""What the World is told of how busy GPUs are, and what not."""

import json

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.operator.node_usage import UsageTeller
from batuta.core.event import GpusUsed

NOW_S = 10_000.0


def said(
    teller: UsageTeller, time_s: float, *busy: float | None, now_s: float | None = None
) -> list[GpusUsed]:
    gpus = [
        {"index": index} | ({} if value is None else {"utilisation": value})
        for index, value in enumerate(busy)
    ]
    text = json.dumps({"time": time_s, "gpus": gpus, "more": 1})
    return list(teller.tell("n", {names.UTILISATION: text}, time_s if now_s is None else now_s))


def test_the_first_report_is_told_with_what_is_not_known():
    assert said(UsageTeller(), NOW_S, 0.5, None) == [GpusUsed(NOW_S, "n", (0.5, None), cause="agent")]


@pytest.mark.parametrize("busy", [(0.45, 0.0), (0.59, 0.01)])
def test_small_changes_are_no_news(busy: tuple[float, float]):
    teller = UsageTeller()
    said(teller, NOW_S, 0.5, 0.0)
    assert said(teller, NOW_S + 30, *busy) == []


@pytest.mark.parametrize("busy", [(0.7, 0.0), (0.5, 0.05), (0.5, None), (0.5,)])
def test_large_changes_and_a_gpu_that_begins_to_work_are_news(busy: tuple[float | None, ...]):
    teller = UsageTeller()
    said(teller, NOW_S, 0.5, 0.0)
    (news,) = said(teller, NOW_S + 30, *busy)
    assert news.gpus == busy


def test_what_stays_the_same_is_told_again_now_and_then():
    teller = UsageTeller()
    said(teller, NOW_S, 0.5)
    assert [bool(said(teller, NOW_S + late_s, 0.5)) for late_s in (30, 299, 300, 330)] == [
        False,
        False,
        True,
        False,
    ]


def test_the_same_report_is_told_once_however_often_the_node_changes():
    teller = UsageTeller()
    assert said(teller, NOW_S, 0.1)
    assert not said(teller, NOW_S, 0.9, now_s=NOW_S + 1000)


def test_a_report_from_the_future_is_of_now():
    (event,) = said(UsageTeller(), NOW_S + 9999, 0.5, now_s=NOW_S)
    assert event.time_s == NOW_S


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": []}', '{"time": "x"}'])
def test_what_cannot_be_read_is_not_told(text: str):
    assert list(UsageTeller().tell("n", {names.UTILISATION: text}, NOW_S)) == []


def test_odd_numbers_are_brought_into_bounds():
    (event,) = said(UsageTeller(), NOW_S, 1.7, -0.3)
    assert event.gpus == (1.0, 0.0)
