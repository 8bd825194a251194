"""Server-sent events: in order, without gaps, from any place, filtered; and they end with the server."""

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from batuta.api import event_feed, http_server
from batuta.api.routes import events as event_routes
from batuta.core.job import Progress
from tests.support.live_service import live_service
from tests.support.served_api import ELASTIC, ServedApi, listening, served_api, stream_of, until


def told(api: ServedApi, **params: str) -> list[tuple[str, str]]:
    """All that has happened up to now, as (number, type)."""
    query = "&".join(f"{name}={value}" for name, value in ({"after": "0"} | params).items())
    with stream_of(api, f"/events?follow=false&{query}") as events:
        return [(event.seq, event.type) for event in events if event.type]


def test_all_that_happened_can_be_read_again(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    found = told(api)
    assert [seq for seq, _ in found] == [str(k) for k in range(1, len(found) + 1)]
    assert [kind for _, kind in found] == ["NodeAdded", "NodeAdded", "JobSubmitted", "Planned", "JobStarted"]


def test_new_events_come_as_they_happen_and_a_reader_goes_on_where_it_was(api: ServedApi) -> None:
    with stream_of(api) as events:
        assert next(events).seq == "2"
        api.submit(ELASTIC)
        first = [next(events) for _ in range(2)]
        assert [event.type for event in first] == ["JobSubmitted", "Planned"]
    assert first[1].data["commands"] == [
        {
            "type": "Start",
            "job": "1",
            "reason": "ADMITTED",
            "sentence": "starts with 4 GPUs",
            "gpus": 4,
            "evidence": {"gpus": 4},
            "placement": [{"node": "node-0", "gpus": [0, 1, 2, 3]}],
        }
    ]
    api.wait_for("1", "RUNNING")
    api.live.backend.end("1")
    with stream_of(api, "/events?after=0", **{"Last-Event-ID": first[1].seq}) as events:
        rest = [event for event in (next(events) for _ in range(3)) if event.type]
    assert [(event.seq, event.type) for event in rest] == [("5", "JobStarted"), ("6", "JobEnded")]


def test_a_reader_of_old_events_gets_them_from_the_journal(api: ServedApi) -> None:
    api.submit()
    api.wait_for("1", "RUNNING")
    feed = api.live.app.state.batuta.feed
    for step in range(30):
        api.live.backend.progress("1", 100.0, Progress(step=step))
    until(lambda: feed.last_seq >= 35)
    while len(feed._recent) > 3:
        feed._recent.popleft()
    found = told(api)
    assert [seq for seq, _ in found] == [str(k) for k in range(1, feed.last_seq + 1)]


def test_filters_by_job_and_type(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.submit()
    api.wait_for("2", "RUNNING")
    kinds = [kind for _, kind in told(api, job="2")]
    assert kinds[:3] == ["JobSubmitted", "Planned", "JobStarted"]
    assert {kind for _, kind in told(api, types="NodeAdded,JobStarted")} == {"NodeAdded", "JobStarted"}
    assert api.ask("GET", "/events?types=Nothing").status_code == 422
    assert api.ask("GET", "/events?job=../x").status_code == 422


def test_numbers_that_are_gone_reset_the_reader(api: ServedApi) -> None:
    for after in ("999999", None):
        if after is None:
            # As after pruning: the oldest events are no longer there.
            until(lambda: api.live.app.state.batuta.feed.last_seq == 2)
            api.live.store.database.write_now([("DELETE FROM events WHERE seq < 2", ())])
        with stream_of(api, f"/events?after={after or 0}") as events:
            first = next(events)
            assert (first.type, first.seq, first.data) == ("reset", "2", {"seq": 2})


def test_a_silent_stream_shows_that_it_is_alive(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "KEEP_ALIVE_S", 0.05)
    with stream_of(api, "/events?types=GpuFailed") as events:
        assert next(events).seq == "2"
        assert next(events).seq == ""
        api.submit()
        api.wait_for("1", "RUNNING")
        # Its place goes on, although nothing was for this reader.
        assert until(lambda: next(events).seq) >= "3"


def test_streams_end_when_told(tmp_path: Path) -> None:
    with served_api(tmp_path) as api, stream_of(api) as events:
        next(events)
        api.live.app.state.batuta.feed.close()
        assert not list(events)


def test_a_server_ends_although_somebody_listens(tmp_path: Path) -> None:
    with live_service(tmp_path) as live, httpx2.Client() as http:
        with listening(live) as url:
            requests = [http.build_request("GET", f"{url}/api/v1/events", headers=live.headers())] * 3
            answers = [http.send(request, stream=True) for request in requests]
        for answer in answers:
            answer.close()


def test_a_reader_who_reads_nothing_harms_nobody(api: ServedApi) -> None:
    api.submit()
    api.wait_for("1", "RUNNING")
    with stream_of(api):
        for step in range(2000):
            api.live.backend.progress("1", 100.0, Progress(step=step))
        until(lambda: (api.job("1")["progress"] or {}).get("step") == 1999)
        assert api.get("/cluster")["trouble"] == ""


def test_a_stream_too_many_is_refused_until_another_one_ends(tmp_path: Path) -> None:
    with served_api(tmp_path, max_streams=4) as api:
        streams = api.live.app.state.batuta.streams
        with ExitStack() as stack:
            kept = [stack.enter_context(stream_of(api)) for _ in range(3)]
            assert all(next(events).seq == "2" for events in kept)
            # One user has three quarters at most, so that there is room for others.
            refused = api.ask("GET", "/events", params={"follow": "false"})
            assert (refused.status_code, "ana has 3 open streams" in refused.json()["detail"]) == (429, True)
            others = stack.enter_context(stream_of(api, user="ben"))
            assert next(others).seq == "2"
            api.submit()
            for path in ("/events", "/jobs/1/logs?follow=true"):
                refused = api.ask("GET", path, "eva")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert "4 streams are open" in refused.json()["detail"]
            assert api.get("/cluster", "eva")["trouble"] == ""
        until(lambda: streams.open == 0)
        assert told(api)


def raw_stream(api: ServedApi, after: int) -> socket.socket:
    """A stream whose client decides itself when to read, and has little room for what it has not read."""
    host, port = api.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    head = f"GET /api/v1/events?after={after} HTTP/1.1\r\nHost: localhost\r\n"
    connection.sendall(f"{head}Authorization: {api.live.headers()['Authorization']}\r\n\r\n".encode())
    return connection


def report_steps(api: ServedApi, count: int) -> None:
    """Many events, and the last one is there."""
    api.submit()
    api.wait_for("1", "RUNNING")
    for step in range(count):
        api.live.backend.progress("1", 100.0, Progress(step=step))
    until(lambda: (api.job("1")["progress"] or {}).get("step") == count - 1)


def test_a_client_that_stops_reading_is_disconnected_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALLED_AFTER_S", 0.5)
    with served_api(tmp_path) as api:
        streams = api.live.app.state.batuta.streams
        with raw_stream(api, 0):
            until(lambda: streams.open == 1)
            report_steps(api, 2_000)
            until(lambda: streams.open == 0, 20)
        last = api.live.app.state.batuta.feed.last_seq
        assert [seq for seq, _ in told(api, after="3")] == [str(k) for k in range(4, last + 1)]


def test_what_waits_for_a_slow_client_is_bounded(api: ServedApi) -> None:
    report_steps(api, 2_000)
    sizes, read = list[int](), 0
    with raw_stream(api, 0) as connection, connection.makefile("rb") as stream:
        while stream.readline().strip():
            pass
        while read < 10 * event_feed.MAX_CHUNK_BYTES // 4:
            sizes.append(int(stream.readline(), 16))
            read += len(stream.read(sizes[-1] + 2))
    assert len(sizes) > 2
    assert max(sizes) <= event_feed.MAX_CHUNK_BYTES
