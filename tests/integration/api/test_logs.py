"""Logs: all, tail, ranges, follow."""

import threading
import time

import pytest

from tests.support.served_api import ELASTIC, ServedApi, until


@pytest.fixture
def logged(api: ServedApi) -> ServedApi:
    """A job that runs and has logged ten lines."""
    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    api.live.files.write_log("1", "".join(f"line {k}\n" for k in range(10)))
    return api


def text_of(api: ServedApi, query: str = "", **headers: str) -> str:
    answer = api.ask("GET", f"/jobs/1/logs{query}", headers=headers)
    assert answer.status_code in (200, 206), answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text


def test_all_and_tail(logged: ServedApi) -> None:
    assert text_of(logged).startswith("line 0\nline 1\n")
    assert text_of(logged, "?tail=2") == "line 8\nline 9\n"
    assert text_of(logged, "?tail=0") == ""
    assert text_of(logged, "?tail=99").count("\n") == 10


def test_ranks(logged: ServedApi) -> None:
    logged.live.files.write_log("1", "another\n", rank=2)
    assert text_of(logged, "?rank=2") == "another\n"
    assert logged.ask("GET", "/jobs/1/logs?rank=1").status_code == 404
    assert logged.ask("GET", "/jobs/1/logs?rank=-1").status_code == 422
    assert logged.ask("GET", "/jobs/1/logs?rank=../0").status_code == 422


@pytest.mark.parametrize(
    ("asked", "text", "where"),
    [
        ("bytes=0-5", "line 0", "bytes 0-5/70"),
        ("bytes=63-", "line 9\n", "bytes 63-69/70"),
        ("bytes=-7", "line 9\n", "bytes 63-69/70"),
        ("bytes=63-999", "line 9\n", "bytes 63-69/70"),
    ],
)
def test_ranges(logged: ServedApi, asked: str, text: str, where: str) -> None:
    answer = logged.ask("GET", "/jobs/1/logs", headers={"Range": asked})
    assert (answer.status_code, answer.text) == (206, text)
    assert answer.headers["content-range"] == where
    assert answer.headers["batuta-log-offset"] == where.split()[1].partition("-")[0]


def test_ranges_that_are_not_there(logged: ServedApi) -> None:
    answer = logged.ask("GET", "/jobs/1/logs", headers={"Range": "bytes=70-"})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */70"
    for strange in ("lines=1-2", "bytes=-", "bytes=x-y", "bytes=0-1,5-6"):
        assert text_of(logged, Range=strange).count("\n") == 10


def test_a_job_that_has_not_started_has_an_empty_log(api: ServedApi) -> None:
    api.submit()
    assert text_of(api) == ""
    assert api.ask("GET", "/jobs/1/logs?rank=7").status_code == 404


def test_a_rank_that_starts_later_than_others_has_an_empty_log_until_then(api: ServedApi) -> None:
    for node in ("node-0", "node-1"):
        assert api.ask("POST", f"/nodes/{node}/cordon").status_code == 200
    api.submit(ELASTIC)
    api.live.files.write_log("1", "I was first\n", rank=1)
    assert text_of(api) == ""
    assert text_of(api, "?rank=1") == "I was first\n"
    assert api.ask("GET", "/jobs/1/logs?rank=99").status_code == 404


def test_follow_until_the_job_is_over(logged: ServedApi) -> None:
    pieces: list[str] = []

    def read() -> None:
        with logged.http.stream(
            "GET", "/api/v1/jobs/1/logs?follow=true&tail=1", headers=logged.live.headers()
        ) as answer:
            pieces.extend(answer.iter_text())

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: "".join(pieces) == "line 9\n")
    logged.live.files.write_log("1", "line 10\n")
    until(lambda: "".join(pieces).endswith("line 10\n"))
    logged.live.files.write_log("1", "the last\n")
    logged.live.backend.end("1")
    reader.join(10)
    assert not reader.is_alive()
    assert "".join(pieces) == "line 9\nline 10\nthe last\n"
    assert text_of(logged, "?follow=true&tail=1") == "the last\n"


def test_follow_waits_for_a_job_that_has_not_started(api: ServedApi) -> None:
    api.submit()
    api.ask("PATCH", "/jobs/1", json={"wish": "park"})

    def later() -> None:
        time.sleep(0.3)
        api.live.files.write_log("1", "at last\n")
        api.ask("DELETE", "/jobs/1")

    threading.Thread(target=later).start()
    assert text_of(api, "?follow=true") == "at last\n"


def test_follow_from_an_offset(logged: ServedApi) -> None:
    logged.live.backend.end("1")
    logged.wait_for("1", "SUCCEEDED")
    assert text_of(logged, "?follow=true", Range="bytes=63-") == "line 9\n"


def test_what_is_no_text_is_passed_on(logged: ServedApi) -> None:
    logged.live.files.write_log("1", b"\xff\xfe\x00", rank=1)
    assert logged.ask("GET", "/jobs/1/logs?rank=1").content == b"\xff\xfe\x00"


def test_lines_with_a_text_are_found_in_the_whole_log(logged: ServedApi) -> None:
    """Given a long log, when a text is sought, then its lines come with their numbers, the last when many."""
    logged.live.files.write_log("1", "".join(f"step {k}\n" for k in range(20_000)) + "ERROR: no space")
    found = logged.get("/jobs/1/logs/search", params={"text": "error"})
    assert found == {"matches": [{"line": 20_011, "text": "ERROR: no space"}], "total": 1, "lines": 20_011}
    many = logged.get("/jobs/1/logs/search", params={"text": "STEP 1", "limit": 2})
    assert (many["total"], [one["text"] for one in many["matches"]]) == (11_111, ["step 19998", "step 19999"])
    assert logged.get("/jobs/1/logs/search", params={"text": "a.*b"})["total"] == 0
    assert logged.ask("GET", "/jobs/1/logs/search").status_code == 422
    assert logged.ask("GET", "/jobs/1/logs/search?rank=1&text=x").status_code == 404
