"""Looking ahead over the API: when jobs finish, and what a change would do. Nothing is changed by it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.api import models
from batuta.backends.sim.forecast.queries import Query, QueryResult
from batuta.bootstrap.forecast_process import answer
from batuta.core.world import World
from tests.support.served_api import ELASTIC, SLEEPER, ServedApi, served_api

BIG = SLEEPER.replace("virtual:1", "virtual:4").replace("name: sleeper", "name: big")


class Counted:
    """Looks ahead in this process, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, world: World, question: Query) -> QueryResult:
        self.asked += 1
        return answer(world, question)


@pytest.fixture
def foresight() -> Counted:
    return Counted()


@pytest.fixture
def api(tmp_path: Path, foresight: Counted) -> Iterator[ServedApi]:
    with served_api(tmp_path, foresight=foresight) as served:
        yield served


def test_every_job_that_is_not_over_has_an_expected_finish(api: ServedApi) -> None:
    for _ in range(3):
        api.submit(BIG)
    api.wait_for("1", "RUNNING")
    told = api.get("/eta")
    models.EtaAnswer.model_validate(told)
    assert [job["id"] for job in told["jobs"]] == ["1", "2", "3"]
    assert "if nothing else arrives" in told["assumes"]
    waiting = told["jobs"][2]
    assert waiting["state"] == "PENDING"
    assert told["now_s"] < waiting["start"]["p50_s"] <= waiting["start"]["p90_s"]
    assert waiting["start"]["p50_s"] < waiting["finish"]["p50_s"] <= waiting["finish"]["p90_s"]


def test_one_job_can_be_asked_for_and_one_that_is_not_there_is_not_found(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert [job["id"] for job in api.get("/eta", params={"job": "1"})["jobs"]] == ["1"]
    assert api.ask("GET", "/eta", params={"job": "7"}).status_code == 404


def test_who_asks_again_soon_gets_the_same_answer(api: ServedApi, foresight: Counted) -> None:
    api.submit(SLEEPER)
    api.wait_for("1", "RUNNING")
    assert api.get("/eta") == api.get("/eta")
    assert foresight.asked == 1


def test_an_answer_is_corrected_by_what_came_of_earlier_ones(api: ServedApi) -> None:
    api.submit(SLEEPER)
    api.wait_for("1", "RUNNING")
    assert [job["id"] for job in api.get("/eta")["jobs"]] == ["1"]
    api.live.backend.end("1")
    api.wait_for("1", "SUCCEEDED")
    api.submit(SLEEPER)
    told = api.get("/eta", params={"job": "2"})
    assert "corrected by what came of 1 earlier answer" in told["assumes"]
    alone = api.get("/eta", params={"job": "2", "arrivals": "false"})
    assert not any("corrected" in note for note in alone["assumes"])


def test_what_was_foretold_is_shown_beside_the_job(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert api.wait_for("1", "RUNNING")["eta_s"] is None
    told = api.get("/eta")
    left_s = told["jobs"][0]["finish"]["p50_s"] - told["now_s"]
    assert 0 < api.job("1")["eta_s"] <= left_s
    assert api.get("/jobs")["jobs"][0]["eta_s"] <= left_s


def test_a_parked_job_has_no_expected_finish_and_the_answer_says_why(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert api.ask("PATCH", "/jobs/1", json={"wish": "park"}).status_code == 200
    (job,) = api.get("/eta")["jobs"]
    assert job["finish"] == {"p50_s": None, "p90_s": None}
    assert job["why"] == "parked"


def test_a_what_if_tells_the_change_for_every_job_and_changes_nothing(api: ServedApi) -> None:
    for _ in range(4):
        api.submit(BIG)
    api.wait_for("2", "RUNNING")
    with api.live.service.reading() as (world, _):
        version, nodes = world.version, len(world.nodes.nodes)
    asked = {"add_nodes": "2x4:virtual", "submit": [{"task": SLEEPER}], "policy": "fifo"}
    told = api.ask("POST", "/whatif", json=asked).json()
    models.WhatIfAnswer.model_validate(told)
    assert told["changed_policy"] == "fifo"
    assert told["wait_s"]["after"] < told["wait_s"]["before"]
    assert [job["id"] for job in told["jobs"]] == ["1", "2", "3", "4", "new-1"]
    new = told["jobs"][-1]
    assert (new["name"], new["jct_s"]["before"]) == ("sleeper", None)
    assert new["jct_s"]["after"] > 0
    with api.live.service.reading() as (world, _):
        assert (world.version, len(world.nodes.nodes)) == (version, nodes)


def test_a_drained_node_makes_its_jobs_move(api: ServedApi) -> None:
    api.submit(ELASTIC)
    where = api.wait_for("1", "RUNNING")["placement"][0]["node"]
    told = api.ask("POST", "/whatif", json={"drain": [where]}).json()
    assert told["preemptions"]["after"] + told["restarts"]["after"] >= 1
    assert told["preemptions"]["before"] == 0


def test_all_that_is_wrong_with_a_what_if_is_told_at_once(api: ServedApi) -> None:
    asked = {
        "policy": "nope",
        "add_nodes": "2xx",
        "drain": ["node-9"],
        "submit": [{"task": "resources: {accelerators: H100:99}\nrun: x\n"}],
        "quota": [{"name": "q.yaml", "text": "queues: 7"}],
    }
    refused = api.ask("POST", "/whatif", json=asked)
    assert refused.status_code == 422
    told = " ".join(one["message"] for one in refused.json()["problems"])
    for word in ("nope", "2xx", "node-9", "needs 99 GPUs", "queues"):
        assert word in told, told


def test_a_server_that_cannot_look_ahead_just_now_says_so(tmp_path: Path) -> None:
    def broken(world: World, question: Query) -> QueryResult:
        raise OSError("no process")

    with served_api(tmp_path, foresight=broken) as api:
        api.submit(SLEEPER)
        refused = api.ask("GET", "/eta")
    assert refused.status_code == 503
    assert "no process" in refused.json()["detail"]
