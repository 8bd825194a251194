"""Where traces go is written by people, and answers for itself."""

import time
from email.utils import formatdate

import pytest

from batuta.spec.problem import InputError
from batuta.telemetry.otlp import parse_endpoint, parse_headers
from tests.support.otlp_receiver import receiving, refusing_url


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://collector", "http://collector:4318/v1/traces"),
        ("https://traces.example/", "https://traces.example:443/v1/traces"),
        ("http://collector:4318/tenant/a", "http://collector:4318/tenant/a/v1/traces"),
        ("http://collector:4318/v1/traces/", "http://collector:4318/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_url_as_people_write_it(url, meant):
    assert str(parse_endpoint(url)) == meant


@pytest.mark.parametrize(
    "url",
    [
        "collector:4318",
        "grpc://collector:4317",
        "http://",
        "http://h:port",
        "http://[",
        "http://u:p@h",
        "http://h/?a=b",
    ],
)
def test_what_is_no_url_is_refused_with_a_fix(url):
    with pytest.raises(InputError) as refused:
        parse_endpoint(url)
    assert refused.value.problems[0].fix


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(InputError) as refused:
        parse_endpoint("http://me:hush@collector")
    assert "hush" not in str(refused.value)


def test_headers_come_from_the_environment():
    assert parse_headers("authorization=Bearer%20hush, x-scope-orgid=a") == {
        "authorization": "Bearer hush",
        "x-scope-orgid": "a",
    }
    assert parse_headers("") == {}


@pytest.mark.parametrize("text", ["hush", "a b=c", "a=b%0d%0ax:y"])
def test_a_header_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="is no header"):
        parse_headers(text)


def test_headers_are_sent_along():
    with receiving() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20hush"}
        answer = parse_endpoint(receiver.url, environment=environment).post(b"{}", 10.0)
    assert answer.is_success
    assert receiver.paths == ["/v1/traces"]
    assert receiver.headers[0]["authorization"] == "Bearer hush"
    assert receiver.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize(("status", "again"), [(429, True), (503, True), (400, False), (500, False), (301, False)])
def test_which_answers_are_worth_another_attempt(status, again):
    with receiving(statuses=[status]) as receiver:
        answer = parse_endpoint(receiver.url).post(b"{}", 10.0)
    assert (answer.status, answer.is_success, answer.is_retryable) == (status, False, again)
    assert str(status) in answer.error


def test_nobody_there_is_worth_another_attempt():
    answer = parse_endpoint(refusing_url()).post(b"{}", 10.0)
    assert (answer.status, answer.is_retryable) == (0, True)
    assert answer.error


@pytest.mark.parametrize(("said", "after_s"), [("7", 7), ("soon", None), ("-1", None)])
def test_when_to_come_again_is_a_number_of_seconds(said, after_s):
    assert _told_to_come_again(said) == after_s


def test_when_to_come_again_may_be_a_date():
    # Not a parameter: names of tests must not depend on the clock, or two test processes disagree about them.
    found = _told_to_come_again(formatdate(time.time() + 3600, usegmt=True))
    assert found is not None
    assert 3000 <= found <= 3601


def _told_to_come_again(said: str) -> float | None:
    with receiving(statuses=[429], retry_after=said) as receiver:
        return parse_endpoint(receiver.url).post(b"{}", 10.0).retry_after_s
