"""Lines from a Loki: each once and in order whatever pages cut, within limits, and clear words when it fails.

The Loki is a stand-in: see tests/support/loki_stand_in.py.
"""

import threading
from collections.abc import Iterator

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.client.loki import (
    WINDOW_NS,
    ArchivedJob,
    Loki,
    LokiAddress,
    LokiError,
    RangeQuery,
    archived_output,
    read_lines,
)
from tests.support.loki_stand_in import LokiStandIn

QUERY = '{service_name="train"}'
DAY_NS = 86_400 * 10**9


@pytest.fixture
def stand_in() -> Iterator[LokiStandIn]:
    with LokiStandIn() as running:
        yield running


def ask(stand_in: LokiStandIn, *, timeout_s: float = 10.0, most_bytes: int = 1 << 20, **address: str) -> Loki:
    return Loki(
        LokiAddress.of(stand_in.url, **address),
        timeout_s=timeout_s,
        pauses_s=(0.01, 0.01),
        most_bytes=most_bytes,
    )


def printed(stand_in: LokiStandIn, tail: int | None = None, rank: int = 0) -> str:
    job = ArchivedJob("team-a", "train", rank, 0.0, 100.0)
    with ask(stand_in) as loki:
        return b"".join(archived_output(loki, job, tail, note=pytest.fail)).decode()


# ------------------------------------------------------------------------------------------------------ pages


def in_memory(kept: LokiStandIn) -> Loki:
    """The stand-in's answers without a network, for thousands of questions."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=kept.answer(dict(request.url.params)))

    return Loki(LokiAddress("http://loki"), over=httpx2.MockTransport(answer))


@given(
    times=st.lists(st.integers(0, 12), max_size=40),
    streams=st.lists(st.integers(0, 1), min_size=40, max_size=40),
    page_lines=st.integers(1, 60),
    newest_first=st.booleans(),
)
def test_every_line_comes_once_and_in_order(times: list[int], streams: list[int], page_lines: int, newest_first: bool):
    """Given many lines of one time in two streams, when pages cut amid them, then none is lost or doubled."""
    kept = LokiStandIn()
    for number, (time_ns, stream) in enumerate(sorted(zip(times, streams, strict=False))):
        kept.keep(time_ns, f"line {number}", service_name="train", pod=f"train-{stream}")
    most_at_once = max((times.count(one) for one in times), default=0)
    notes: list[str] = []
    with in_memory(kept) as loki:
        asked = RangeQuery(QUERY, 0, 100)
        found = list(read_lines(loki, asked, newest_first=newest_first, page_lines=page_lines, note=notes.append))
    assert [line.time_ns for line in found] == sorted((line.time_ns for line in found), reverse=newest_first)
    assert len(set(found)) == len(found)
    if most_at_once < page_lines:
        assert {line.text for line in found} == {line.text for line in kept.kept}
        assert notes == []
    elif len(found) < len(kept.kept):
        assert notes, "whoever leaves lines out says so"


def test_a_time_of_months_is_asked_for_in_parts_that_loki_takes(stand_in: LokiStandIn):
    for day in (0, 3, 40, 89):
        stand_in.keep(day * DAY_NS, f"day {day}", service_name="train")
    with ask(stand_in) as loki:
        found = [line.text for line in read_lines(loki, RangeQuery(QUERY, 0, 90 * DAY_NS))]
    assert found == ["day 0", "day 3", "day 40", "day 89"]
    spans = [int(one["end"]) - int(one["start"]) for one in stand_in.asked]
    assert max(spans) == WINDOW_NS


def test_the_end_is_not_part_of_the_time(stand_in: LokiStandIn):
    for time_ns in (9, 10, 19, 20):
        stand_in.keep(time_ns, f"{time_ns}", service_name="train")
    with ask(stand_in) as loki:
        assert [line.text for line in read_lines(loki, RangeQuery(QUERY, 10, 20))] == ["10", "19"]


# --------------------------------------------------------------------------------------------------- replicas


def test_a_replica_has_its_own_lines_in_order(stand_in: LokiStandIn):
    stand_in.keep_job("team-a", "train", "0", 10**9, "one", "two", "three")
    stand_in.keep_job("team-a", "train", "1", 10**9, "other replica")
    stand_in.keep_job("team-b", "train", "0", 10**9, "other namespace")
    stand_in.keep_job("team-a", "trainer", "0", 10**9, "other job")
    assert printed(stand_in) == "one\ntwo\nthree\n"
    assert printed(stand_in, rank=1) == "other replica\n"
    assert printed(stand_in, rank=2) == ""


def test_replica_0_of_a_job_with_a_launcher_is_the_launcher(stand_in: LokiStandIn):
    stand_in.keep_job("team-a", "train", "0", 10**9, "sshd listens")
    stand_in.keep_job("team-a", "train", "launcher", 2 * 10**9, "[0] loss 1", "[1] loss 1")
    assert printed(stand_in) == "[0] loss 1\n[1] loss 1\n"


@pytest.mark.parametrize("tail", [0, 1, 2, 3, 50])
def test_the_last_lines_are_counted_without_reports_of_the_sdk(stand_in: LokiStandIn, tail: int):
    """Given three lines with hundreds of reports after each, the last ones are found all the same."""
    reports = ['batuta-report {"step": 1}'] * 300
    stand_in.keep_job("team-a", "train", "0", 10**9, "one", *reports, "two", *reports, "three", *reports)
    every = ["one\n", "two\n", "three\n"]
    assert printed(stand_in, tail) == "".join(every[-tail:] if tail else [])
    assert printed(stand_in) == "".join(every)


def test_what_people_type_cannot_leave_its_quotes(stand_in: LokiStandIn):
    stand_in.keep_job("team-a", 'a"} or {b="', "0", 10**9, "odd")
    with ask(stand_in) as loki:
        job = ArchivedJob("team-a", 'a"} or {b="', 0, 0.0, 100.0)
        assert b"".join(archived_output(loki, job, None, note=pytest.fail)) == b"odd\n"


# ---------------------------------------------------------------------------------------------- what can fail


def test_token_and_tenant_are_sent_and_not_shown(stand_in: LokiStandIn):
    with ask(stand_in, token="secret", tenant="team-a") as loki:
        loki.page(QUERY, 0, 1, limit=1)
    assert stand_in.headers[0]["Authorization"] == "Bearer secret"
    assert stand_in.headers[0]["X-Scope-OrgID"] == "team-a"
    assert "secret" not in repr(LokiAddress.of(stand_in.url, "secret"))
    assert LokiAddress.of("https://ana:pw@loki/x/loki/api/v1/push").name == "https://loki/x"


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (401, "no org id", r"does not let us in \(401: no org id\).*--loki-tenant"),
        (403, "", r"does not let us in \(403"),
        (400, "parse error at line 1", r"refuses \(400\): parse error at line 1"),
        (429, "too many outstanding requests", "has too much to do .*try again"),
        (503, "", r"refuses \(503\)"),
        (200, "<html>a proxy's page</html>", "does not speak Loki's API: <html>"),
        (200, '{"status": "success", "data": {"resultType": "matrix", "result": []}}', "does not speak"),
        (200, "[]", "does not speak Loki's API"),
    ],
)
def test_a_refusal_is_one_clear_sentence(stand_in: LokiStandIn, status: int, text: str, said: str):
    stand_in.refuse = [(status, text)] * 3
    with ask(stand_in) as loki, pytest.raises(LokiError, match=said):
        loki.page(QUERY, 0, 1, limit=1)


def test_one_that_was_busy_is_asked_again(stand_in: LokiStandIn):
    stand_in.keep(0, "there", service_name="train")
    stand_in.refuse = [(429, "later"), (503, "later")]
    with ask(stand_in) as loki:
        assert [line.text for line in loki.page(QUERY, 0, 1, limit=1)] == ["there"]


def test_one_that_is_slow_is_not_waited_for(stand_in: LokiStandIn):
    stand_in.stall = threading.Event()
    with ask(stand_in, timeout_s=0.2) as loki, pytest.raises(LokiError, match=r"not answer within 0\.2 s"):
        loki.page(QUERY, 0, 1, limit=1)


def test_an_answer_without_end_is_not_read_to_its_end(stand_in: LokiStandIn):
    stand_in.keep(0, "x" * 2_000, service_name="train")
    with (
        ask(stand_in, most_bytes=1_000) as loki,
        pytest.raises(LokiError, match=r"is larger than .*--since TIME"),
    ):
        loki.page(QUERY, 0, 1, limit=1)


def test_where_nobody_listens_it_says_so():
    with LokiStandIn() as gone:
        url = gone.url
    with Loki(LokiAddress.of(url)) as loki, pytest.raises(LokiError, match=r"cannot be reached: .*refused"):
        loki.page(QUERY, 0, 1, limit=1)


@pytest.mark.parametrize("text", ["ftp://loki", "http://", "http://loki:99999", "http://loki?x=1"])
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(LokiError, match="is not the address of a Loki"):
        LokiAddress.of(text)


@pytest.mark.parametrize("path", ["", "/", "/loki/api/v1", "/loki/api/v1/push", "/otlp", "/otlp/v1/logs"])
def test_any_address_that_people_have_at_hand_will_do(path: str):
    assert LokiAddress.of(f"loki:3100{path}").url == "http://loki:3100"
