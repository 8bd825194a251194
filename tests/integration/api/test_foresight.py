"""Looking ahead over the API: when jobs finish, and what a change would do. Nothing is changed by it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from batuta.api import forecast_cache, models
from batuta.api.routes import forecasts as forecast_routes
from batuta.backends.sim.forecast.queries import Query, QueryResult
from batuta.bootstrap.forecast_process import answer
from batuta.core import event as ev
from batuta.core.job import Job
from batuta.core.world import World
from tests.support.served_api import ELASTIC, SLEEPER, ServedApi, served_api, until

BIG = SLEEPER.replace("virtual:1", "virtual:4").replace("name: sleeper", "name: big")


WAIT = {"within_s": "20"}  # on a busy machine a forecast of one job may take more than a second


class Counted:
    """Looks ahead in this process, and counts how often. It can be held up."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_go_on = Event()
        self.may_go_on.set()

    def __call__(self, world: World, question: Query) -> QueryResult:
        self.asked += 1
        assert self.may_go_on.wait(60)
        return answer(world, question)


@pytest.fixture
def foresight() -> Counted:
    return Counted()


@pytest.fixture
def api(tmp_path: Path, foresight: Counted) -> Iterator[ServedApi]:
    with served_api(tmp_path, foresight=foresight) as served:
        yield served
        foresight.may_go_on.set()


def test_every_job_that_is_not_over_has_an_expected_finish(api: ServedApi) -> None:
    for _ in range(3):
        api.submit(BIG)
    api.wait_for("1", "RUNNING")
    told = api.get("/eta", params=WAIT)
    models.EtaAnswer.model_validate(told)
    assert [job["id"] for job in told["jobs"]] == ["1", "2", "3"]
    assert "if nothing else arrives" in told["assumes"]
    waiting = told["jobs"][2]
    assert waiting["state"] == "PENDING"
    assert told["now_s"] < waiting["start"]["p50_s"] <= waiting["start"]["p90_s"]
    assert waiting["start"]["p50_s"] < waiting["finish"]["p50_s"] <= waiting["finish"]["p90_s"]


def test_one_job_can_be_asked_for_and_one_that_is_not_there_is_not_found(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert [job["id"] for job in api.get("/eta", params=WAIT | {"job": "1"})["jobs"]] == ["1"]
    assert api.ask("GET", "/eta", params={"job": "7"}).status_code == 404


def test_who_asks_again_soon_gets_the_same_answer(api: ServedApi, foresight: Counted) -> None:
    api.submit(SLEEPER)
    api.wait_for("1", "RUNNING")
    assert api.get("/eta", params=WAIT) == api.get("/eta", params=WAIT)
    assert foresight.asked == 1


def test_an_answer_is_corrected_by_what_came_of_earlier_ones(api: ServedApi) -> None:
    api.submit(SLEEPER)
    api.wait_for("1", "RUNNING")
    assert [job["id"] for job in api.get("/eta", params=WAIT)["jobs"]] == ["1"]
    api.live.backend.end("1")
    api.wait_for("1", "SUCCEEDED")
    api.submit(SLEEPER)
    told = api.get("/eta", params=WAIT | {"job": "2"})
    assert "corrected by what came of 1 earlier answer" in told["assumes"]
    alone = api.get("/eta", params=WAIT | {"job": "2", "arrivals": "false"})
    assert not any("corrected" in note for note in alone["assumes"])


def test_what_was_foretold_is_shown_beside_the_job(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert api.wait_for("1", "RUNNING")["eta_s"] is None
    told = api.get("/eta", params=WAIT)
    left_s = told["jobs"][0]["finish"]["p50_s"] - told["now_s"]
    assert 0 < api.job("1")["eta_s"] <= left_s
    assert api.get("/jobs")["jobs"][0]["eta_s"] <= left_s


def test_a_parked_job_has_no_expected_finish_and_the_answer_says_why(api: ServedApi) -> None:
    api.submit(SLEEPER)
    assert api.ask("PATCH", "/jobs/1", json={"wish": "park"}).status_code == 200
    (job,) = api.get("/eta", params=WAIT)["jobs"]
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
        refused = api.ask("GET", "/eta", params=WAIT)
    assert refused.status_code == 503
    assert "no process" in refused.json()["detail"]


def test_a_forecast_that_takes_long_is_replaced_by_a_coarse_one_and_comes_later(
    api: ServedApi, foresight: Counted
) -> None:
    for _ in range(3):
        api.submit(BIG)
    api.wait_for("2", "RUNNING")
    foresight.may_go_on.clear()
    told = api.get("/eta", params={"within_s": "0.3"})
    models.EtaAnswer.model_validate(told)
    assert [(job["id"], job["coarse"]) for job in told["jobs"]] == [("1", True), ("2", True), ("3", True)]
    assert any(note.startswith("coarse") for note in told["assumes"])
    assert told["assumes"][-1] == "a finer forecast is being computed: ask again"
    first, waiting = told["jobs"][0], told["jobs"][2]
    assert waiting["start"]["p50_s"] == first["finish"]["p50_s"] > told["now_s"]
    explained = api.get("/jobs/3/explain")
    assert (explained["start"]["p50_s"], explained["start_coarse"]) == (waiting["start"]["p50_s"], True)
    foresight.may_go_on.set()
    fine = api.get("/eta", params=WAIT)
    assert not any(job["coarse"] for job in fine["jobs"])
    assert foresight.asked == 1
    assert not api.get("/jobs/3/explain")["start_coarse"]


def test_the_last_forecast_is_told_with_its_age_while_the_next_one_takes_long(
    api: ServedApi, foresight: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.submit(SLEEPER)
    api.wait_for("1", "RUNNING")
    fine = api.get("/eta", params=WAIT)
    monkeypatch.setattr(forecast_cache, "FRESH_S", 0.0)
    monkeypatch.setattr(forecast_cache, "REST_FACTOR", 0.0)
    foresight.may_go_on.clear()
    api.submit(SLEEPER)
    api.wait_for("2", "RUNNING")
    one = api.get("/eta", params={"job": "1", "within_s": "0.3"})
    assert one["now_s"] == fine["now_s"]
    assert one["jobs"] == fine["jobs"]
    assert "s ago; a finer forecast is being computed" in one["assumes"][-1]
    every = api.get("/eta", params={"within_s": "0.3"})
    assert [(job["id"], job["coarse"]) for job in every["jobs"]] == [("1", False), ("2", True)]
    assert every["assumes"][-1].startswith("1 job that came since is coarse")


def test_many_who_wait_for_a_forecast_hold_up_nobody_else(api: ServedApi, foresight: Counted) -> None:
    api.submit(SLEEPER)
    foresight.may_go_on.clear()
    with ThreadPoolExecutor(60) as askers:
        asked = [askers.submit(api.get, "/eta", params=WAIT) for _ in range(60)]
        until(lambda: foresight.asked)
        # More than the event loop has threads; requests that need one are still answered.
        assert api.get("/jobs/1/events")["events"]
        assert not any(one.done() for one in asked)
        foresight.may_go_on.set()
        assert all(not one.result()["jobs"][0]["coarse"] for one in asked)
    assert foresight.asked == 1


def test_five_thousand_jobs_have_an_answer_before_their_forecast_is_ready(tmp_path: Path, foresight: Counted) -> None:
    jobs = [Job(str(k), submit_s=0.0, sequence=k, size=1 + k % 4, max=4, work_s=100.0 + k) for k in range(5_000)]
    foresight.may_go_on.clear()
    with served_api(tmp_path, foresight=foresight, events=[ev.JobSubmitted(0.0, job) for job in jobs]) as api:
        used_s = time.process_time()
        told = api.get("/eta")
        used_s = time.process_time() - used_s
        foresight.may_go_on.set()
    assert len(told["jobs"]) == 5_000
    assert "a finer forecast is being computed: ask again" in told["assumes"]
    # In CPU time, of the server and the client together: the machine may have other work.
    assert used_s < 2.0


def test_too_many_comparisons_at_once_are_refused(
    api: ServedApi, foresight: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_routes, "MAX_WHAT_IFS_WAITING", 1)
    api.submit(SLEEPER)
    foresight.may_go_on.clear()
    with ThreadPoolExecutor(2) as askers:
        first = askers.submit(api.ask, "POST", "/whatif", json={"policy": "fifo"})
        until(lambda: foresight.asked)
        second = askers.submit(api.ask, "POST", "/whatif", json={"policy": "fifo"})
        until(lambda: api.live.app.state.batuta.what_ifs.statistics().tasks_waiting)
        refused = api.ask("POST", "/whatif", json={"policy": "fifo"})
        foresight.may_go_on.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
