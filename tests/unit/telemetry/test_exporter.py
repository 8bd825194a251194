"""Spans are sent if that is possible, dropped and counted if not, and nobody ever waits for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from batuta.telemetry.exporter import GIVEN_UP, QUEUE_FULL, REFUSED, SENT, ExportLimits, SpanExporter
from batuta.telemetry.otlp import parse_endpoint
from batuta.telemetry.traces import Span
from tests.support.otlp_receiver import receiving, refusing_url

QUICK = ExportLimits(every_s=0.01, first_pause_s=0.01, longest_pause_s=0.05, timeout_s=5.0, flush_s=5.0)


def spans(count: int) -> list[Span]:
    return [Span(1, number + 1, 0, f"s{number}", 1, 2) for number in range(count)]


@contextmanager
def exporting(url: str, limits: ExportLimits = QUICK) -> Iterator[tuple[SpanExporter, list[str]]]:
    told: list[str] = []
    exporter = SpanExporter(parse_endpoint(url), (), "0.1", limits, told.append)
    try:
        yield exporter, told
    finally:
        exporter.close()


def test_spans_arrive_in_order_and_in_batches():
    with receiving() as receiver, exporting(receiver.url, replace(QUICK, batch=10)) as (exporter, told):
        exporter.offer(spans(25))
        assert receiver.wait_for(3)
        exporter.close()
        assert [span["name"] for span in receiver.spans()] == [f"s{number}" for number in range(25)]
        assert [len(one["resourceSpans"][0]["scopeSpans"][0]["spans"]) for one in receiver.requests] == [
            10,
            10,
            5,
        ]
    assert exporter.counts == {SENT: 25, QUEUE_FULL: 0, GIVEN_UP: 0, REFUSED: 0}
    assert told == []


def test_what_is_left_is_sent_at_the_end():
    with receiving() as receiver, exporting(receiver.url, replace(QUICK, every_s=60.0)) as (exporter, _):
        exporter.offer(spans(3))
        exporter.close()
        assert len(receiver.spans()) == 3


def test_an_endpoint_that_is_busy_is_asked_again_when_it_said():
    with (
        receiving(statuses=[429, 503], retry_after="0.02") as receiver,
        exporting(receiver.url) as (exporter, told),
    ):
        exporter.offer(spans(2))
        assert receiver.wait_for_span("s1")
        exporter.close()
    assert exporter.counts[SENT] == 2
    assert receiver.paths == ["/v1/traces"] * 3
    assert [sentence.split(" to http")[0] for sentence in told] == [
        "traces cannot be sent",
        "traces are sent",
    ]


def test_an_endpoint_that_asks_for_hours_is_not_waited_for_that_long():
    with receiving(statuses=[429], retry_after="7200") as receiver, exporting(receiver.url) as (exporter, _):
        exporter.offer(spans(1))
        assert receiver.wait_for_span("s0")


def test_what_is_refused_is_not_sent_again():
    with receiving(statuses=[400]) as receiver, exporting(receiver.url) as (exporter, told):
        exporter.offer(spans(2))
        assert receiver.wait_for(1)
        exporter.offer(spans(1))
        assert receiver.wait_for_span("s0")
        exporter.close()
    assert exporter.counts == {SENT: 1, QUEUE_FULL: 0, GIVEN_UP: 0, REFUSED: 2}
    assert "answers 400" in told[0]


def test_what_is_taken_in_part_is_counted_so():
    with (
        receiving(body=b'{"partialSuccess": {"rejectedSpans": "2"}}') as receiver,
        exporting(receiver.url) as (exporter, _),
    ):
        exporter.offer(spans(5))
        exporter.close()
    assert (exporter.counts[SENT], exporter.counts[REFUSED]) == (3, 2)


def test_an_endpoint_that_is_away_is_given_up_after_some_attempts():
    with exporting(refusing_url(), replace(QUICK, attempts=2)) as (exporter, told):
        exporter.offer(spans(4))
        exporter.close()
    assert exporter.counts == {SENT: 0, QUEUE_FULL: 0, GIVEN_UP: 4, REFUSED: 0}
    assert len(told) == 1


def test_behind_an_endpoint_that_hangs_spans_are_dropped_and_the_end_comes_in_time():
    limits = replace(QUICK, queued=10, batch=4, timeout_s=60.0, flush_s=0.2)
    with receiving(hangs=True) as receiver, exporting(receiver.url, limits) as (exporter, _):
        exporter.offer(spans(4))
        assert receiver.wait_for(1)
        exporter.offer(spans(10_000))
        assert exporter.queued == 10
        assert exporter.counts[QUEUE_FULL] == 9_990
        closing = threading.Thread(target=exporter.close)
        closing.start()
        closing.join(10.0)  # the endpoint itself would not answer for 30 s
        assert not closing.is_alive()
        assert sum(exporter.counts.values()) == 10_004
    assert "spans" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("count", [0, 1])
def test_after_the_end_spans_are_only_counted(count):
    with receiving() as receiver, exporting(receiver.url) as (exporter, _):
        exporter.close()
        exporter.offer(spans(count))
        assert exporter.queued == 0
        assert exporter.counts[QUEUE_FULL] == count
