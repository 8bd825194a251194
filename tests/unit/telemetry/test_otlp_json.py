"""Spans become what the standard calls ExportTraceServiceRequest, in its JSON form."""

import json
import math

import pytest

from batuta.telemetry.otlp import encode_spans, rejected_spans
from batuta.telemetry.traces import IdGenerator, Span

RESOURCE = (("service.name", "batuta"),)


def test_a_request_in_full():
    spans = [
        Span(0xAB, 0xCD, 0, "cycle", 1_700_000_000_000_000_001, 1_700_000_000_000_000_002, (("n", 2**53 + 1),)),
        Span(0xAB, 0xEF, 0xCD, "start", 5, 7, (("job", "ü-1"), ("ok", True), ("x", 0.5)), error="no room"),
    ]
    assert json.loads(encode_spans(RESOURCE, "0.1", spans)) == {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "batuta"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "batuta.engine", "version": "0.1"},
                        "spans": [
                            {
                                "traceId": "000000000000000000000000000000ab",
                                "spanId": "00000000000000cd",
                                "name": "cycle",
                                "kind": 1,
                                "startTimeUnixNano": "1700000000000000001",
                                "endTimeUnixNano": "1700000000000000002",
                                "attributes": [{"key": "n", "value": {"intValue": "9007199254740993"}}],
                            },
                            {
                                "traceId": "000000000000000000000000000000ab",
                                "spanId": "00000000000000ef",
                                "parentSpanId": "00000000000000cd",
                                "name": "start",
                                "kind": 1,
                                "startTimeUnixNano": "5",
                                "endTimeUnixNano": "7",
                                "attributes": [
                                    {"key": "job", "value": {"stringValue": "ü-1"}},
                                    {"key": "ok", "value": {"boolValue": True}},
                                    {"key": "x", "value": {"doubleValue": 0.5}},
                                ],
                                "status": {"code": 2, "message": "no room"},
                            },
                        ],
                    }
                ],
            }
        ]
    }


@pytest.mark.parametrize(("value", "word"), [(math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")])
def test_numbers_that_json_does_not_have_are_words(value, word):
    request = json.loads(encode_spans((("x", value),), "", []))
    (own,) = request["resourceSpans"][0]["resource"]["attributes"]
    assert own["value"] == {"doubleValue": word}


def test_text_that_is_no_unicode_still_goes():
    assert b"?" in encode_spans((("path", "\udcff"),), "", [])


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 0),
        (b"{}", 0),
        (b'{"partialSuccess": {"rejectedSpans": "3"}}', 3),
        (b'{"partialSuccess": {"rejectedSpans": 2, "errorMessage": "too old"}}', 2),
        (b'{"partialSuccess": null}', 0),
        (b"<html>", 0),
        (b"[]", 0),
    ],
)
def test_what_an_answer_says_was_not_taken(body, count):
    assert rejected_spans(body) == count


def test_ids_are_never_zero_and_never_the_same():
    ids = IdGenerator()
    made = [ids.span() for _ in range(1000)] + [ids.trace() for _ in range(1000)]
    assert len(set(made)) == 2000
    assert 0 not in made
