"""Following outlasts broken connections: events come once, logs go on where they were, waits end."""

import itertools
import time

import httpx2
import pytest

from batuta.client.errors import WaitTimeoutError
from tests.support.fake_api import Routes, client_to, json_answer, streaming

BROKEN = httpx2.RemoteProtocolError("peer closed connection")


def frame(seq: int, kind: str = "JobStarted", data: str = '{"job": "1"}') -> bytes:
    return f"id: {seq}\nevent: {kind}\ndata: {data}\n\n".encode()


def test_events_go_on_after_the_last_one_that_came():
    routes = Routes(
        cluster={"seq": 9},
        events=[streaming(frame(5), frame(6), BROKEN), streaming(frame(7)), streaming(frame(8))],
    )
    with client_to(routes) as client:
        seen = [event.seq for event in itertools.islice(client.events(after=4), 4)]
    assert seen == [5, 6, 7, 8]
    asked = [one.headers["last-event-id"] for one in routes.asked if one.url.path.endswith("/events")]
    assert asked == ["4", "6", "7"]


def test_recent_events_are_looked_for_farther_back_until_there_are_enough():
    def page(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["follow"] == "false"
        after = int(request.headers["last-event-id"])
        kinds = ((seq, "JobEnded" if seq % 100 == 0 else "JobProgressed") for seq in range(after + 1, 1001))
        return streaming(*(frame(seq, kind) for seq, kind in kinds))

    routes = Routes(cluster={"seq": 1000}, events=page)
    with client_to(routes) as client:
        found = client.recent_events(4, skip=("JobProgressed",))
    assert [event.seq for event in found] == [700, 800, 900, 1000]


def job(state: str) -> dict:
    return {"id": "1", "name": "x", "state": state}


def test_wait_looks_again_at_each_event_of_the_job():
    routes = Routes(
        jobs__1=[json_answer(job("PENDING")), json_answer(job("RUNNING")), json_answer(job("SUCCEEDED"))],
        events=[streaming(frame(1), frame(2), frame(3))],
    )
    states: list[str] = []
    with client_to(routes) as client:
        ended = client.wait("1", tell=lambda now: states.append(now.state))
    assert ended.succeeded
    assert states == ["RUNNING", "SUCCEEDED"]


def test_wait_until_running_ends_with_a_job_that_failed_before():
    routes = Routes(jobs__1=job("FAILED_SETUP"), events=lambda _: streaming())
    with client_to(routes) as client:
        assert client.wait("1", until="running").state == "FAILED_SETUP"


def test_wait_outlasts_a_stream_that_breaks():
    routes = Routes(
        cluster={"seq": 1},
        jobs__1=[json_answer(job("RUNNING"))] * 3 + [json_answer(job("CANCELLED"))],
        events=[streaming(BROKEN), streaming(BROKEN), streaming(frame(1))],
    )
    with client_to(routes) as client:
        assert client.wait("1").state == "CANCELLED"


def test_wait_gives_up_in_time():
    def silent(request: httpx2.Request) -> httpx2.Response:
        quiet_s = request.extensions["timeout"]["read"]
        time.sleep(quiet_s)
        return streaming(httpx2.ReadTimeout("quiet"))

    routes = Routes(jobs__1=job("RUNNING"), events=silent)
    begun = time.monotonic()
    with client_to(routes) as client, pytest.raises(WaitTimeoutError, match="job 1 \\(x\\) is RUNNING"):
        client.wait("1", timeout_s=0.2)
    assert time.monotonic() - begun < 5
    with pytest.raises(TimeoutError):
        raise WaitTimeoutError


def test_a_log_goes_on_where_it_broke_off():
    text = b"one\ntwo\nthree\nfour\n"

    def log(request: httpx2.Request) -> httpx2.Response:
        begin = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        begin = 4 if "tail" in request.url.params else begin
        rest, headers = text[begin:], {"batuta-log-offset": str(begin)}
        return streaming(rest[:6], *([BROKEN] if len(rest) > 6 else []), headers=headers)

    for tail, lines in ((None, ["one", "two", "three", "four"]), (3, ["two", "three", "four"])):
        with client_to(Routes(cluster={}, jobs__1=job("SUCCEEDED"), jobs__1__logs=log)) as client:
            assert list(client.logs("1", follow=True, tail=tail)) == lines


def test_the_end_of_a_server_is_not_the_end_of_a_log():
    def log(request: httpx2.Request) -> httpx2.Response:
        begin = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        return streaming(b"abcdef"[begin : begin + 2], headers={"batuta-log-offset": str(begin)})

    states = [json_answer(job("RUNNING"))] * 2 + [json_answer(job("SUCCEEDED"))]
    with client_to(Routes(jobs__1=states, jobs__1__logs=log)) as client:
        assert b"".join(client.log_bytes("1", follow=True)) == b"abcdef"


def test_a_log_as_it_is_now():
    routes = Routes(jobs__1=job("RUNNING"), jobs__1__logs=lambda _: streaming(b"a\nb", b"c\n\xff"))
    with client_to(routes) as client:
        assert list(client.logs("1", tail=7, rank=2)) == ["a", "bc", "�"]
    assert dict(routes.asked[-1].url.params) == {"rank": "2", "tail": "7"}
