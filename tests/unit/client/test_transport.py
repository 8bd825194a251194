"""Requests: repeated where that is safe, refused with words."""

import httpx2
import pytest

from batuta.client.address import Address
from batuta.client.errors import AnswerError, ApiError, ClientError, NoServerError
from batuta.client.transport import Transport
from batuta.spec.problem import Problem
from tests.support.fake_api import Script, client_to, json_answer, problem, transport_to

LOST = httpx2.ReadError("connection reset")
REFUSED = httpx2.ConnectError("connection refused")


def test_the_token_is_sent():
    script = Script(json_answer({}))
    transport_to(script).json("GET", "/cluster")
    assert script.asked[0].headers["authorization"] == "Bearer secret"
    assert str(script.asked[0].url) == "http://127.0.0.1:9/api/v1/cluster"


def test_a_submit_whose_answer_is_lost_is_sent_again_with_the_same_key_and_body():
    script = Script(LOST, LOST, json_answer({"job": {"id": "1"}, "notes": []}, 201))
    assert client_to(script).submit({"run": "x"}).id == "1"
    keys = {request.headers["idempotency-key"] for request in script.asked}
    bodies = {request.content for request in script.asked}
    assert (len(script.asked), len(keys), len(bodies)) == (3, 1, 1)


def test_what_is_not_safe_is_not_sent_again():
    script = Script(LOST)
    with pytest.raises(ClientError, match="lost the connection"):
        client_to(script).shut_down()
    assert len(script.asked) == 1


def test_it_gives_up_some_time():
    script = Script(LOST)
    with pytest.raises(ClientError, match="lost the connection"):
        transport_to(script, tries=4).json("GET", "/nodes")
    assert len(script.asked) == 5


def test_a_server_that_never_answered_is_not_waited_for():
    script = Script(REFUSED)
    with pytest.raises(NoServerError, match=r"http://127.0.0.1:9 cannot be reached"):
        transport_to(script).json("GET", "/nodes")
    assert len(script.asked) == 1


def test_whoever_asks_again_after_a_failure_finds_the_server_that_was_started_since():
    ports = iter((1, 2))
    script = Script(REFUSED, json_answer({}))
    transport = Transport(
        lambda: Address(f"http://127.0.0.1:{next(ports)}"), over=httpx2.MockTransport(script), pauses_s=(0.0,)
    )
    with pytest.raises(NoServerError):
        transport.json("GET", "/nodes")
    assert transport.json("GET", "/nodes") == {}
    assert [request.url.port for request in script.asked] == [1, 2]


def test_a_server_that_was_there_is_waited_for():
    script = Script(json_answer({}), REFUSED, REFUSED, json_answer({"found": True}))
    transport = transport_to(script)
    transport.json("GET", "/nodes")
    assert transport.json("POST", "/shutdown", repeatable=False) == {"found": True}


def test_a_refusal_has_all_problems_with_places():
    found = [{"message": "is not known", "file": "t.yaml", "line": 3, "column": 5, "fix": "drop it"}]
    script = Script(problem(422, "bad", problems=[*found, {"message": "too"}]))
    with pytest.raises(ApiError) as caught:
        transport_to(script).json("POST", "/jobs")
    assert caught.value.status == 422
    assert caught.value.problems == (Problem("is not known", "t.yaml", 3, 5, "drop it"), Problem("too"))
    assert str(caught.value) == "t.yaml:3:5: is not known (drop it)\ntoo"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (problem(409, "job 3 is over"), "job 3 is over"),
        (httpx2.Response(401), "the token is missing or unknown"),
        (httpx2.Response(502, text="<html>"), "Bad Gateway"),
        (httpx2.Response(422, json=[1]), "Unprocessable"),
    ],
)
def test_every_refusal_has_words(response, said):
    with pytest.raises(ApiError, match=said):
        transport_to(Script(response)).json("GET", "/nodes")


def test_another_server_at_the_address():
    with pytest.raises(AnswerError, match="does not speak Batuta's API"):
        transport_to(Script(httpx2.Response(200, text="<html>hello"))).json("GET", "/nodes")
