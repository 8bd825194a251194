"""Jobs by id and name, lists in pages, changes."""

import json

import httpx2
import pytest

from batuta.client.errors import AmbiguousJobError, ApiError, UnknownJobError
from tests.support.fake_api import Routes, client_to, json_answer, problem


def listing(*jobs: dict) -> httpx2.Response:
    return json_answer({"jobs": list(jobs), "next": None, "total": len(jobs)})


def named(*living: dict, ended: tuple[dict, ...] = ()) -> Routes:
    def page(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["name"] == "net"
        return listing(*living) if request.url.params.get("active") == "true" else listing(*ended)

    return Routes(jobs=page)


def test_an_id_is_an_id():
    with client_to(Routes(jobs__17={"id": "17", "state": "RUNNING"})) as client:
        assert client.job("17").id == "17"


def test_a_name_is_the_one_living_job_that_has_it():
    with client_to(named({"id": "4"}, ended=({"id": "9"},))) as client:
        assert client.job("net").id == "4"


def test_a_name_without_a_living_job_is_the_newest_one():
    with client_to(named(ended=({"id": "9"},))) as client:
        assert client.job("net").id == "9"


def test_a_name_that_several_living_jobs_have_is_refused_with_their_ids():
    routes = named({"id": "4", "state": "RUNNING"}, {"id": "3", "state": "PENDING"})
    with (
        client_to(routes) as client,
        pytest.raises(AmbiguousJobError, match="4 RUNNING, 3 PENDING") as caught,
    ):
        client.job("net")
    assert caught.value.ids == ("4", "3")


def test_no_such_job():
    with client_to(named()) as client, pytest.raises(UnknownJobError, match="there is no job net"):
        client.job("net")


def test_a_job_that_is_named_by_a_number_is_told_how():
    with client_to(Routes()) as client, pytest.raises(TypeError, match="got int 17: write '17'"):
        client.cancel(17)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.resize("net", "two"), "nodes must be a whole number, got str 'two'"),
        (lambda client: client.resize("net", max_nodes=2.5), "max_nodes must be a whole number, got float"),
        (lambda client: client.set_priority("net", True), "priority must be a whole number, got bool True"),
        (lambda client: client.move("net", 7), "queue must be a text, got int 7"),
        (lambda client: client.wait("net", timeout_s="1m"), "timeout_s must be a number, got str '1m'"),
        (lambda client: client.wait("net", until="runing"), "until must be 'running' or 'ended'"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_before_anything_is_sent(call, message):
    routes = Routes()
    with client_to(routes) as client, pytest.raises((TypeError, ValueError), match=message):
        call(client)
    assert routes.asked == []


def test_other_refusals_are_passed_on():
    with (
        client_to(Routes(jobs__1=problem(403, "not yours"))) as client,
        pytest.raises(ApiError, match="not yours"),
    ):
        client.job("1")


def test_a_name_cannot_lead_elsewhere():
    routes = Routes(jobs=lambda _: listing())
    with client_to(routes) as client, pytest.raises(UnknownJobError):
        client.job("../nodes")
    assert routes.asked[0].url.raw_path == b"/api/v1/jobs/..%2Fnodes"


def test_lists_are_read_to_their_end():
    def page(request: httpx2.Request) -> httpx2.Response:
        first = int(request.url.params.get("cursor", "0"))
        count = int(request.url.params["limit"])
        ids = range(first, min(first + count, 2500))
        following = str(ids.stop) if ids.stop < 2500 else None
        return json_answer({"jobs": [{"id": str(k)} for k in ids], "next": following, "total": 2500})

    routes = Routes(jobs=page)
    with client_to(routes) as client:
        assert len(client.jobs(active=True, states=("RUNNING", "PENDING"))) == 2500
        assert len(client.jobs(limit=1200)) == 1200
    params = routes.asked[0].url.params
    assert (params["active"], params.get_list("state")) == ("true", ["RUNNING", "PENDING"])
    assert [one.url.params["limit"] for one in routes.asked] == ["1000", "1000", "1000", "1000", "200"]


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (lambda client: client.resize("1", 4), {"nodes": 4}),
        (lambda client: client.resize("1", min_nodes=1, max_nodes=8), {"min_nodes": 1, "max_nodes": 8}),
        (lambda client: client.park("1"), {"wish": "park"}),
        (lambda client: client.resume("1"), {"wish": "run"}),
        (lambda client: client.set_priority("1", 0), {"priority": 0}),
        (lambda client: client.move("1", "night"), {"queue": "night"}),
    ],
)
def test_changes(change, sent):
    routes = Routes(jobs__1={"id": "1"})
    with client_to(routes) as client:
        assert change(client).id == "1"
    assert (routes.asked[-1].method, json.loads(routes.asked[-1].content)) == ("PATCH", sent)


def test_results_and_their_absence():
    routes = Routes(jobs__1={"id": "1"}, jobs__1__result={"value": [1, 2]}, jobs__2={"id": "2"})
    with client_to(routes) as client:
        assert client.result("1") == [1, 2]
        with pytest.raises(ApiError) as caught:
            client.result("2")
    assert caught.value.status == 404


def test_the_rest_of_the_cluster():
    routes = Routes(
        nodes={"nodes": [{"name": "n"}]},
        nodes__n__drain={"name": "n", "state": "draining"},
        queues={"queues": [{"name": "q", "quota": {"*": 4}}]},
        queues__q={"name": "q"},
        policy={"name": "fifo", "policies": [{"name": "fifo", "summary": "in order"}]},
        tokens={"tokens": [{"user": "ana", "role": "user", "hash": "3f"}]},
        **{"session-links": {"url": "http://x/login"}},
    )
    with client_to(routes) as client:
        assert client.nodes()[0].name == "n"
        assert client.drain("n").state == "draining"
        assert client.queues()[0].quota == {"*": 4}
        assert client.set_queue("q", {"held": True}).name == "q"
        assert client.policy().policies[0].summary == "in order"
        assert client.tokens()[0].hash == "3f"
        assert client.session_link() == "http://x/login"
