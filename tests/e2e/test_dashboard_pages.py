"""Every page of the dashboard, wide and narrow, dark and light: readable, named, quick, by keyboard."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from batuta.api.app import login_path
from batuta.api.dependencies import STATIC
from batuta.bootstrap.forecast_process import answer
from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.job import Job, JobState, Progress
from tests.support.browser import DESKTOP, PHONE, any_browser, visit
from tests.support.served_api import ELASTIC, ServedApi, served_api

CHECKS = Path(__file__).parents[1].joinpath("support", "page_checks.js").read_text()
ROUTES = (
    "#/",
    "#/jobs",
    "#/jobs?show=all",
    "#/jobs/1",
    "#/nodes",
    "#/queues",
    "#/users",
    "#/users/ana",
    "#/decisions",
    "#/health",
    "#/waste",
    "#/policy",
    "#/submit",
)
MANY = 5_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("api"), static=STATIC) as api:
        for _ in range(3):
            api.submit(ELASTIC)
        api.wait_for("1", "RUNNING")
        progress = Progress(0.4, 40, 100, 4.0, 0.3, 0.5, 64.0, 50.0)
        api.live.backend.progress("1", 60.0, progress)
        for step in range(40):
            report = f'{{"time": {1000 + step}, "step": {step}, "total_steps": 100, "loss": {1 / (step + 1)}}}\n'
            api.live.files.write_progress("1", report)
            api.live.files.write_log("1", f"step {step}\n", 0)
        api.ask("POST", "/nodes/node-1/cordon")
        yield api


def link(api: ServedApi, user: str = "ana") -> str:
    return api.url + login_path(api.live.app, api.live.hash_of(user))


def settle(page: Page) -> None:
    page.wait_for_timeout(250)
    expect(page.get_by_text("Loading")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_page_is_readable_and_named(browser: Browser, api: ServedApi, size: tuple[int, int], scheme: str):
    with visit(browser, link(api), size=size, scheme=scheme) as seen:
        for route in ROUTES:
            seen.open(route)
            settle(seen.page)
            assert seen.page.evaluate(CHECKS) == [], f"{route} at {size[0]} px, {scheme}"


def test_everything_is_reached_by_keyboard(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        outlines = set()
        for _ in range(12):
            page.keyboard.press("Tab")
            outlines.add(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
        assert "none" not in outlines, "where the focus is has to be seen"

        page.keyboard.press("g")
        page.keyboard.press("j")
        expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
        page.keyboard.press("/")
        filter_box = page.get_by_role("searchbox", name="Filter jobs")
        expect(filter_box).to_be_focused()
        page.keyboard.type("user:nobody")
        expect(page.get_by_text("No job matches")).to_be_visible()
        filter_box.fill("")
        page.keyboard.press("Escape")
        expect(filter_box).not_to_be_focused()

        page.locator("a.open").first.focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator("a.open").nth(1)).to_be_focused()
        page.keyboard.press("End")
        expect(page.locator("a.open").last).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("elastic")

        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_map_has_one_tab_stop_and_arrows(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        tiles = seen.page.locator(".map [data-gpu]")
        expect(tiles).to_have_count(8)
        assert seen.page.locator('.map [tabindex="0"]').count() == 1
        tiles.first.focus()
        seen.page.keyboard.press("ArrowRight")
        expect(tiles.nth(1)).to_be_focused()
        expect(seen.page.locator("li.cordoned, li.draining")).to_have_count(1)


def test_the_theme_is_chosen_and_kept(browser: Browser, api: ServedApi):
    with visit(browser, link(api), scheme="dark") as seen:
        page, ground = seen.page, "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(ground)
        page.get_by_role("button", name=re.compile("Theme")).click()
        # The page repaints a moment after the click.
        expect(page.locator("html")).not_to_have_css("background-color", dark)
        light = page.evaluate(ground)
        page.reload()
        page.locator("[data-testid=connection].live").wait_for()
        assert page.evaluate(ground) == light


def test_columns_sort_and_say_so(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        seen.open("#/jobs")
        header = seen.page.get_by_role("columnheader", name="ID")
        header.get_by_role("button").click()
        expect(header).to_have_attribute("aria-sort", "descending")
        header.get_by_role("button").click()
        expect(header).to_have_attribute("aria-sort", "ascending")
        expect(seen.page.locator("tbody tr").first).to_have_attribute("data-job", "1")


def test_who_is_not_signed_in_is_told_how(browser: Browser, api: ServedApi):
    with visit(browser, api.url + "/", wait=False, expected=["401 "]) as seen:
        expect(seen.page.get_by_role("heading", name="You are not signed in")).to_be_visible()
        expect(seen.page.get_by_text("batuta dashboard")).to_be_visible()
        assert seen.page.evaluate(CHECKS) == []


def test_a_viewer_has_no_buttons_that_do_things(browser: Browser, api: ServedApi):
    with visit(browser, link(api, "vic")) as seen:
        page = seen.page
        seen.open("#/jobs/1")
        expect(page.get_by_role("heading", level=1)).to_contain_text("elastic")
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        seen.open("#/nodes")
        expect(page.locator("li.card")).to_have_count(2)
        expect(page.get_by_role("button", name=re.compile("ordon|Drain"))).to_have_count(0)
        seen.open("#/submit")
        expect(page.get_by_text("your role is viewer")).to_be_visible()


def test_a_page_that_is_not_there(browser: Browser, api: ServedApi):
    with visit(browser, link(api), expected=["404 .*/jobs/987654"]) as seen:
        seen.open("#/jobs/987654")
        expect(seen.page.get_by_text("There is no job 987654")).to_be_visible()
        seen.open("#/nowhere")
        expect(seen.page.get_by_text("There is no such page")).to_be_visible()


def test_five_thousand_jobs_do_not_freeze_it(browser: Browser, tmp_path: Path):
    """Half of them wait, half are over; no task of the page holds it for a second."""
    over = [
        event
        for k in range(MANY // 2)
        for event in (
            ev.JobSubmitted(
                1.0 + k, Job(id=f"{k}", size=1, min=1, max=1, submit_s=1.0 + k, name=f"old-{k}", user="ana")
            ),
            ev.JobEnded(2.0 + k, f"{k}", JobState.SUCCEEDED),
        )
    ]
    waiting = [
        ev.JobSubmitted(
            9_000.0 + k,
            Job(id=f"{k}", size=64, min=64, max=64, submit_s=9_000.0 + k, name=f"new-{k}", user="ben"),
        )
        for k in range(MANY // 2, MANY)
    ]
    nodes = tuple(Node(f"node-{k}", 8, "virtual", rack=f"rack-{k // 8}") for k in range(4))
    with (
        served_api(tmp_path, static=STATIC, nodes=nodes, events=[*over, *waiting]) as api,
        visit(browser, link(api)) as seen,
    ):
        page = seen.page
        page.evaluate(
            "window.long = []; new PerformanceObserver(list => list.getEntries().forEach("
            "entry => window.long.push(entry.duration))).observe({type: 'longtask'})"
        )
        seen.open("#/jobs?show=all")
        expect(page.get_by_role("status").filter(has_text="jobs")).to_contain_text("of 2,700 jobs")
        assert page.locator("tbody tr").count() == 50
        page.get_by_role("searchbox", name="Filter jobs").fill("new-3333")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("searchbox", name="Filter jobs").fill("")
        page.get_by_role("button", name="Next page").click()
        page.get_by_role("button", name=re.compile("Load older jobs")).click()
        expect(page.get_by_role("status").filter(has_text="jobs")).to_contain_text("of 2,900 jobs")
        assert max(page.evaluate("window.long"), default=0) < 1_000


def test_a_job_tells_when_it_starts_and_when_it_is_done(browser: Browser, tmp_path: Path):
    """Given a server that looks ahead, when a job waits, then its page and its row say how long."""
    with served_api(tmp_path, static=STATIC, foresight=answer) as api:
        for _ in range(3):
            api.submit("name: big\nresources: {accelerators: virtual:4}\nrun: train\n")
        waiting = next(one["id"] for one in api.get("/jobs")["jobs"] if one["state"] == "PENDING")
        with visit(browser, link(api)) as seen:
            seen.open("#/jobs")
            cell = seen.page.locator(f"tr[data-job='{waiting}'] td.eta")
            expect(cell).to_contain_text("≤")
            expect(cell).to_have_attribute("title", re.compile(r"^Starts in .+ Done in .+ nine of ten times in "))
            seen.open(f"#/jobs/{waiting}")
            facts = seen.page.locator("dl.facts").first
            expect(facts).to_contain_text("Starts in")
            expect(facts).to_contain_text("Done in")


def test_a_server_that_is_only_asked_offers_no_changes(browser: Browser, tmp_path: Path):
    """Given a cluster whose own API is the place to change jobs, then the dashboard has no buttons for it."""
    jobs = [ev.JobSubmitted(1.0, Job("team-a/resnet", 1.0, name="resnet"))]
    with (
        served_api(tmp_path, static=STATIC, events=jobs, read_only="ask kubectl") as api,
        visit(browser, link(api)) as seen,
    ):
        seen.open("#/jobs")
        seen.page.get_by_role("link", name="resnet").click()
        expect(seen.page.get_by_role("heading", name="resnet #team-a/resnet")).to_be_visible()
        expect(seen.page.get_by_text("Its pods have them")).to_be_visible()
        expect(seen.page.get_by_role("button", name="Cancel")).to_have_count(0)
        expect(seen.page.get_by_role("link", name="Submit")).to_have_count(0)
        seen.open("#/submit")
        expect(seen.page.get_by_text("Not here: ask kubectl.")).to_be_visible()


def test_a_job_tells_where_its_ports_are_reached(browser: Browser, tmp_path: Path):
    """Given a job that names ports, then its page says where they are; when it is over, it does not."""
    with served_api(tmp_path, static=STATIC, ports_at="127.0.0.1") as api, visit(browser, link(api)) as seen:
        job = api.submit("name: web\nresources: {accelerators: 1, ports: [8080, 9000-9010]}\nrun: serve\n")
        seen.open(f"#/jobs/{job['id']}")
        expect(seen.page.locator("[data-endpoints] .span")).to_have_text(["127.0.0.1:8080", "127.0.0.1:9000-9010"])
        api.ask("DELETE", f"/jobs/{job['id']}")
        expect(seen.page.locator("[data-endpoints]")).to_have_count(0)
