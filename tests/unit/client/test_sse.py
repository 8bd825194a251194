"""Server-sent events come whole, however the bytes are cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.apitypes.resources import Event
from batuta.client.transport import read_events

STREAM = (
    b": hello\nid: 3\n\n"
    b'id: 4\nevent: JobStarted\ndata: {"job": "1"}\n\n'
    b": keep-alive\n\n"
    b'event: reset\ndata: {"seq":9}\nid: 9\n\n'
)
EVENTS = [None, Event(4, "JobStarted", {"job": "1"}), None, Event(9, "reset", {"seq": 9})]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_cuts_do_not_matter(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert list(read_events(chunks)) == EVENTS


def test_carriage_returns_and_separators_within_json():
    text = json.dumps({"detail": "a\u2028b\x0bc"}, ensure_ascii=False)
    stream = f"id: 1\r\nevent: JobEnded\r\ndata: {text}\r\n\r\n".encode()
    assert list(read_events([stream])) == [Event(1, "JobEnded", {"detail": "a\u2028b\x0bc"})]


def test_an_event_that_was_cut_off_is_not_told():
    assert list(read_events([b"event: JobEnded\ndata: {}"])) == []


@pytest.mark.parametrize(("data", "read"), [("x", {"text": "x"}), ("3", {"value": 3}), ("", {})])
def test_odd_data(data, read):
    assert next(read_events([f"event: e\ndata: {data}\n\n".encode()])) == Event(0, "e", read)


@pytest.mark.parametrize(
    ("event", "concerned"),
    [
        (Event(1, "JobStarted", {"job": "1"}), True),
        (Event(1, "JobStarted", {"job": "2"}), False),
        (Event(1, "JobSubmitted", {"job": {"id": "1"}}), True),
        (Event(1, "Planned", {"commands": [{"job": "2"}, {"job": "1"}]}), True),
        (Event(1, "Planned", {"commands": [{"job": "2"}]}), False),
        (Event(1, "reset", {}), True),
        (Event(1, "PolicySet", {"policy": "fifo"}), False),
    ],
)
def test_whom_an_event_concerns(event, concerned):
    assert event.concerns("1") is concerned
