"""The page of waste: what became of the GPU-hours of some days, of which queue, and the same to take away."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from batuta.api.app import login_path
from batuta.api.dependencies import STATIC
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import Job, JobState
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from tests.e2e.test_dashboard_pages import CHECKS
from tests.support.browser import DESKTOP, PHONE, any_browser, visit
from tests.support.live_service import NODES
from tests.support.served_api import ServedApi, served_api
from tests.support.worlds import at

DAY_S = 86_400.0
HOUR_S = 3_600.0


class Past:
    """Events of days that are over, each plan made from the World as it was."""

    def __init__(self) -> None:
        self._world = World()
        self.events: list[ev.Event] = []
        for node in NODES:
            apply(self._world, ev.NodeAdded(0.0, node))

    def take(self, event: ev.Event) -> None:
        apply(self._world, event)
        self.events.append(event)

    def run(self, job: str, queue: str, where: str, gpus: int, from_s: float, to_s: float) -> None:
        asked = Job(id=job, size=gpus, min=gpus, max=gpus, submit_s=from_s - HOUR_S, name=job, queue=queue)
        self.take(ev.JobSubmitted(from_s - HOUR_S, asked))
        start = Start(job, at(where), Reason.ADMITTED)
        self.take(ev.Planned(from_s, Plan(self._world.version, from_s, "fifo", (start,), (), no_decisions())))
        self.take(ev.JobStarted(from_s + HOUR_S, job))
        self.take(ev.JobEnded(to_s, job, JobState.SUCCEEDED))


def midnight_s() -> float:
    return time.time() // DAY_S * DAY_S


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Three days ago a job had four GPUs for twelve hours, two days ago one of another queue for six."""
    past = Past()
    first_s, second_s = midnight_s() - 3 * DAY_S, midnight_s() - 2 * DAY_S
    past.run("research", "lab", "node-0:0123", 4, first_s + 6 * HOUR_S, first_s + 18 * HOUR_S)
    past.run("product", "prod", "node-1:0123", 4, second_s + 6 * HOUR_S, second_s + 12 * HOUR_S)
    with served_api(tmp_path_factory.mktemp("api"), static=STATIC, events=past.events) as api:
        yield api


def link(api: ServedApi) -> str:
    return api.url + login_path(api.live.app, api.live.hash_of("vic"))


def tile(page: Page, kind: str) -> str:
    return page.locator(f'[data-kind="{kind}"]').inner_text().replace("\n", " ")


def day(days_ago: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(midnight_s() - days_ago * DAY_S))


def test_two_days_are_chosen_and_every_hour_of_them_is_told(browser: Browser, api: ServedApi):
    """Given 8 GPUs, when two days are asked for, then the parts of 384 GPU-hours are there, and whose."""
    with visit(browser, link(api)) as seen:
        page = seen.page
        page.keyboard.press("g")
        page.keyboard.press("w")
        expect(page.get_by_role("heading", name="Waste", level=1)).to_be_visible()
        page.get_by_label("From").fill(day(3))
        page.get_by_label("to", exact=True).fill(day(2))
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("status").filter(has_text="were used")).to_have_text(
            "16.7 % of 384 GPU-hours were used"
        )
        assert "64 GPU-hours, 16.7 %" in tile(page, "used")
        assert "8 GPU-hours, 2.1 %" in tile(page, "restarting")
        assert "8 GPU-hours" in tile(page, "waiting")
        expect(page.locator("[data-day]")).to_have_count(2)
        bars = page.get_by_role("img", name=f"{day(3)}: 192 GPU-hours, used 44")
        expect(bars).to_be_visible()
        expect(page.get_by_role("row", name=day(2))).to_contain_text("10.4 %")
        expect(page.locator('[data-queue="lab"]')).to_contain_text("44")
        page.get_by_role("combobox", name="Queue").select_option("prod")
        expect(page.get_by_role("img", name=f"{day(2)}: 24 GPU-hours, used 20, restarts 4")).to_be_visible()
        page.reload()
        expect(page.get_by_role("status").filter(has_text="were used")).to_contain_text("384")


def test_a_range_is_one_press_and_stays_in_the_address(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        seen.open("#/waste")
        expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="24 hours").click()
        expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_role("status").filter(has_text="were used")).to_have_text("0 % of 192 GPU-hours were used")
        assert page.url.endswith("#/waste?range=1d")


def test_it_can_be_taken_away_as_a_page_and_as_json(browser: Browser, api: ServedApi, tmp_path: Path):
    with visit(browser, link(api)) as seen:
        page = seen.page
        seen.open(f"#/waste?from={day(3)}&to={day(2)}")
        with page.expect_download() as given:
            page.get_by_role("link", name="JSON").click()
        given.value.save_as(tmp_path / "waste.json")
        report = json.loads((tmp_path / "waste.json").read_text())
        assert report["total"]["capacity_gpu_s"] == 384 * HOUR_S
        with page.expect_download() as given:
            page.get_by_role("link", name="Page").click()
        given.value.save_as(tmp_path / "waste.html")
        assert "384 GPU-hours were used</h1>" in (tmp_path / "waste.html").read_text()


def test_days_in_the_wrong_order_are_told_so(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        seen.open("#/waste")
        page.get_by_label("From").fill(day(2))
        page.get_by_label("to", exact=True).fill(day(3))
        expect(page.get_by_text("The last day is before the first one")).to_be_visible()
        expect(page.get_by_role("button", name="Show")).to_be_disabled()


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_is_readable_and_named(browser: Browser, api: ServedApi, size: tuple[int, int], scheme: str):
    with visit(browser, link(api), size=size, scheme=scheme) as seen:
        seen.open("#/waste")
        expect(seen.page.locator("[data-day]").first).to_be_visible()
        assert seen.page.evaluate(CHECKS) == [], f"{size[0]} px, {scheme}"
