"""Where the GPU time went, and what is said about jobs to come, over HTTP."""

import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from batuta.api import models
from batuta.api.dependencies import NoNodeFacts
from batuta.api.models import Report
from batuta.core import event as ev
from batuta.core.job import ExpectedWork, Job, SizeChoice
from batuta.core.world import World
from batuta.prediction.application_history import settle
from batuta.prediction.duration import Calibration
from tests.support.served_api import ELASTIC, ServedApi, served_api

OPEN = "name: resnet\nrun: x\nnum_nodes: auto\nresources: {accelerators: 1}\n"
PARTS = ("used", "restarting", "lost", "idle", "fragmented", "unavailable")


def total_of(account: dict[str, Any]) -> float:
    return sum(account[f"{part}_gpu_s"] for part in PARTS)


def test_the_parts_of_the_account_are_its_capacity(api: ServedApi) -> None:
    api.submit(ELASTIC)
    api.wait_for("1", "RUNNING")
    shown = api.get("/report")
    Report.model_validate(shown)
    assert shown["total"]["capacity_gpu_s"] == pytest.approx(8 * (shown["to_s"] - shown["from_s"]))
    assert total_of(shown["total"]) == pytest.approx(shown["total"]["capacity_gpu_s"])
    assert sum(day["capacity_gpu_s"] for day in shown["days"]) == pytest.approx(shown["total"]["capacity_gpu_s"])
    assert [queue["queue"] for queue in shown["queues"]] == ["default"]
    assert shown["to_s"] - shown["from_s"] == pytest.approx(7 * 86_400, rel=1e-6)


def test_a_span_of_time_may_be_chosen(api: ServedApi) -> None:
    now_s = time.time()
    shown = api.get("/report", params={"from_s": now_s - 100, "to_s": now_s - 40})
    assert shown["total"]["capacity_gpu_s"] == pytest.approx(8 * 60)
    assert shown["total"]["idle_gpu_s"] == pytest.approx(8 * 60)


class Measured(NoNodeFacts):
    """One node's GPUs are busy for a quarter of the time, the other's for all of it."""

    BUSY: ClassVar = {"node-0": 0.25, "node-1": 1.0}

    def utilisation(self, node: str) -> dict[int, float]:
        return dict.fromkeys(range(4), self.BUSY[node])

    def events(self, world: World) -> tuple[ev.Event, ...]:
        return tuple(ev.GpusUsed(world.now_s, node, (busy,) * 4) for node, busy in self.BUSY.items())


def test_the_share_that_was_used_is_the_utilisation_that_nodes_show(tmp_path: Path) -> None:
    with served_api(tmp_path, facts=Measured()) as api:
        # given jobs that hold every GPU, and what was measured of the GPUs
        for job in ("1", "2"):
            api.submit("run: x\nresources: {accelerators: 4}\n")
            api.wait_for(job, "RUNNING")
        api.live.service.request(Measured().events).result(10)
        from_s = time.time()
        time.sleep(0.5)
        # when the account of a time since then is asked for
        spent = api.get("/report", params={"from_s": from_s, "to_s": time.time()})["total"]
        # then the share that was used is the mean of what nodes show, and the rest was held and not busy
        shown = [gpu["utilisation"] for node in api.get("/nodes")["nodes"] for gpu in node["gpus"]]
        assert sum(shown) / len(shown) == 0.625
        assert spent["used_gpu_s"] / spent["capacity_gpu_s"] == pytest.approx(0.625)
        assert spent["unused_gpu_s"] / spent["capacity_gpu_s"] == pytest.approx(0.375)


def test_the_page_of_it_is_a_file_that_needs_nothing_else(api: ServedApi) -> None:
    answer = api.ask("GET", "/report", params={"format": "html"})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/html")
    assert 'filename="batuta-waste.html"' in answer.headers["Content-Disposition"]
    assert "GPU-hours were used</h1>" in answer.text
    assert api.ask("GET", "/report", params={"format": "pdf"}).status_code == 422


@pytest.mark.parametrize("span", [{"from_s": 50, "to_s": 50}, {"from_s": 9e11}, {"to_s": "x"}, {"from_s": -1}])
def test_a_span_that_is_empty_or_nonsense_is_refused(api: ServedApi, span: dict[str, Any]) -> None:
    answer = api.ask("GET", "/report", params=span)
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_a_server_without_an_account_says_so(tmp_path: Path) -> None:
    with served_api(tmp_path, account=None) as api:
        assert api.ask("GET", "/report").status_code == 501
    with served_api(tmp_path / "plain", account_page=None) as api:
        assert api.ask("GET", "/report", params={"format": "html"}).status_code == 501


# ---------------------------------------------------------------------------------------------- jobs to come


class Seer:
    """Knows all about every job."""

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        told = ExpectedWork((10.0, 20.0, 30.0, 40.0, 50.0), "the same user and name", 12)
        if open_up_to is not None:
            job = settle(job, SizeChoice(4, open_up_to, 0.92, "resnet", 3), for_good=for_good)
        return Job(**{name: getattr(job, name) for name in Job.__slots__} | {"expected": told, "work_s": 30.0})

    def calibration(self) -> Calibration:
        return Calibration(200, 350, ((0.5, 0.48), (0.9, 0.91)))


def test_what_is_known_of_a_job_is_shown_wherever_the_job_is(tmp_path: Path) -> None:
    with served_api(tmp_path, experience=Seer()) as api:
        submitted = api.submit(OPEN)
        models.Job.model_validate(submitted)
        assert submitted["expected"]["p50_s"] == 30.0
        assert submitted["expected"]["source"] == "the same user and name"
        assert submitted["gpus"]["wanted"] == submitted["gpus"]["max"] == 4
        sentence = "4 GPUs give 92 % of the speed of 8 (measured by 3 earlier jobs of resnet)"
        assert submitted["size_choice"]["sentence"] == sentence
        explained = api.get("/jobs/1/explain")
        models.Explanation.model_validate(explained)
        assert explained["size_choice"]["sentence"] == sentence
        assert explained["expected"]["jobs"] == 12
        assert api.live.store.recover().world.jobs.jobs[0].work_s == 30.0, "a replay believes the same"


def test_whether_forecasts_come_true_is_a_metric(tmp_path: Path) -> None:
    with served_api(tmp_path, experience=Seer()) as api:
        text = api.http.get("/metrics", headers={"Authorization": f"Bearer {api.live.tokens['ana']}"}).text
    assert 'batuta_duration_forecast_coverage{quantile="0.9"} 0.91' in text
    assert "batuta_duration_forecast_window_jobs 200.0" in text
    assert "batuta_duration_forecasts_total 350.0" in text


def test_without_history_a_size_that_is_open_is_the_smallest(api: ServedApi) -> None:
    shown = api.submit(OPEN)
    assert shown["gpus"]["wanted"] == shown["gpus"]["max"] == 1
    assert "not known yet" in shown["size_choice"]["sentence"]
    assert shown["expected"] is None
    assert api.submit("run: x")["size_choice"] is None
