"""What people do with jobs in the dashboard: list them, run one again, search its log, see who uses what."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from batuta.api.dependencies import STATIC
from batuta.bootstrap.forecast_process import answer
from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.world import World
from tests.e2e.test_dashboard_pages import link
from tests.support.browser import PHONE, any_browser, visit
from tests.support.served_api import ELASTIC, ServedApi, served_api

PAGES = ("Overview", "Jobs", "Nodes", "Queues", "Users", "Decisions", "Health", "Waste", "Policy")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Job 1 of ben has grown beyond what it asked for, 2 has ended, 3 of ben waits for more than there is."""
    with served_api(tmp_path_factory.mktemp("api"), static=STATIC, foresight=answer) as api:
        api.submit(ELASTIC, user="ben")
        api.wait_for("1", "RUNNING")
        api.submit("name: done\nresources: {accelerators: virtual:1}\nenvs: {LR: '1'}\nrun: train\n", user="ben")
        api.wait_for("2", "RUNNING")
        log = "".join(f"step {step}\n" for step in range(9_000))
        api.live.files.write_log("2", f"Warning: <b>first</b>\n{log}warning: last\n", 0)
        api.ask("DELETE", "/jobs/2", "ben")
        api.wait_for("2", "CANCELLED")
        api.submit("name: huge\nnum_nodes: 8\nresources: {accelerators: virtual:1}\nrun: x\n", user="ben")
        for node in ("node-0", "node-1"):
            api.live.service.request(partial(half_busy, node)).result(10)
        yield api


def half_busy(node: str, world: World) -> tuple[ev.Event, ...]:
    return (ev.GpusUsed(world.now_s, node, (0.5,) * 4),)


def right_edge(place: Locator) -> float:
    """Where the text of an element ends."""
    return float(
        place.evaluate(
            "e => { const r = document.createRange(); r.selectNodeContents(e); return r.getBoundingClientRect().right }"
        )
    )


def test_waiting_jobs_come_first_and_their_numbers_end_at_one_edge(browser: Browser, api: ServedApi):
    """Given jobs that wait, run and are over, when all are listed, then so in this order, numbers aligned."""
    with visit(browser, link(api)) as seen:
        seen.open("#/jobs?show=all")
        rows = seen.page.locator("tbody tr")
        expect(rows).to_have_count(3)
        assert [row.get_attribute("data-job") for row in rows.all()] == ["3", "1", "2"]
        expect(seen.page.locator("td.eta .likely")).to_have_count(2)
        edges = [right_edge(cell) for cell in seen.page.locator("td.eta .likely").all()]
        edges += [right_edge(seen.page.locator("tr[data-job='2'] td.eta"))]
        edges += [right_edge(seen.page.locator("th.eta"))]
        assert max(edges) - min(edges) < 7, edges


def test_a_size_says_what_it_is_to_be_compared_with(browser: Browser, api: ServedApi):
    """Given a job with 4 GPUs that asked for 2, then it is said which number is which."""
    assert api.job("1")["gpus"]["now"] == 4
    with visit(browser, link(api)) as seen:
        seen.open("#/jobs")
        cell = seen.page.locator("tr[data-job='1'] td.gpus")
        expect(cell).to_have_attribute("title", "asked for 2, may have 1 to 4")
        expect(cell).to_contain_text("asked 2, range 1–4")
        seen.open("#/jobs/1")
        expect(seen.page.locator("dd[data-gpus]")).to_have_text("4 asked for 2, may have 1 to 4")


def test_every_page_is_reached_on_a_phone(browser: Browser, api: ServedApi):
    """Given a narrow screen, then each page is a tap or two away, and nothing has to be pushed sideways."""
    with visit(browser, link(api), size=PHONE) as seen:
        page = seen.page
        for name in PAGES:
            entry = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)
            if not entry.is_visible():
                page.get_by_role("button", name="More").tap()
            box = entry.bounding_box()
            assert box is not None
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= PHONE[0], name
            entry.tap()
            expect(page.get_by_role("heading", name=name, level=1)).to_be_attached()
        more = page.get_by_role("button", name="More")
        more.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Less")).to_have_attribute("aria-expanded", "true")


def test_a_job_that_is_over_runs_again(browser: Browser, api: ServedApi):
    """When its user presses one button, then a new job of another name runs what it ran."""
    with visit(browser, link(api, "ben")) as seen:
        page = seen.page
        seen.open("#/jobs/2")
        page.get_by_role("button", name="Run again").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("done-again")
        dialog.get_by_role("button", name="Run again").click()
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_contain_text("done-again")
        made = api.job(page.url.rpartition("/")[2])
        assert (made["user"], made["task"]["envs"]) == ("ben", {"LR": "1"})
        api.ask("DELETE", f"/jobs/{made['id']}")
        api.wait_for(made["id"], "CANCELLED")


def test_a_job_is_cloned_into_the_editor(browser: Browser, api: ServedApi):
    with visit(browser, link(api, "eva")) as seen:
        page = seen.page
        seen.open("#/jobs/2")
        expect(page.get_by_role("link", name="Clone")).to_be_visible()
        expect(page.get_by_role("button", name="Run again")).to_have_count(0)
        page.get_by_role("link", name="Clone").click()
        editor = page.get_by_role("textbox", name="Task file, as YAML")
        expect(editor).to_have_value(re.compile(r"name: done\n.*run: train\n", re.DOTALL))
        # Values of variables are for the job's user: who clones it writes others.
        expect(page.get_by_text("Values that are null are not shown: write them anew.")).to_be_visible()
        expect(editor).to_have_value(re.compile(r"  LR: null\n"))
        editor.fill(editor.input_value().replace("LR: null", "LR: '2'"))
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("done is fine")).to_be_visible()
    with visit(browser, link(api, "vic")) as seen:
        seen.open("#/jobs/2")
        expect(seen.page.get_by_role("heading", level=1)).to_contain_text("done")
        expect(seen.page.get_by_role("link", name="Clone")).to_have_count(0)


def test_a_long_log_is_searched_and_what_is_found_is_marked(browser: Browser, api: ServedApi):
    """Given a log of which the page has the end, when a text is sought, then it is found at its begin too."""
    with visit(browser, link(api)) as seen:
        page = seen.page
        seen.open("#/jobs/2")
        expect(page.get_by_text("the last 2,000 lines")).to_be_visible()
        page.keyboard.press("/")
        box = page.get_by_role("searchbox", name="Search this log")
        expect(box).to_be_focused()
        box.fill("WARNING")
        expect(page.locator("mark")).to_have_text(["Warning", "warning"])
        expect(page.get_by_text("2 lines of 9,002")).to_be_visible()
        expect(page.locator(".hits li").first).to_contain_text("1Warning: <b>first</b>")
        box.fill("a text that is nowhere")
        expect(page.get_by_text("Not found in 9,002 lines")).to_be_visible()
        box.fill("")
        expect(page.locator("mark")).to_have_count(0)
        expect(page.get_by_role("region", name="Log of rank 0")).to_contain_text("warning: last")


def test_a_job_shows_how_busy_its_gpus_were(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        seen.open("#/jobs/1")
        panel = seen.page.get_by_role("region", name="GPU use over time")
        expect(panel).to_contain_text("50 % on average")
        expect(panel.get_by_role("img", name=re.compile("Busy: .*last 50 %"))).to_be_visible()


def test_a_job_without_gpus_is_shown_as_one(browser: Browser, tmp_path: Path):
    """Given a job on CPU with two nodes, then it has no GPUs to resize or to measure, and two logs."""
    nodes = (Node("node-0", 4, "virtual", cpus_milli=4_000),)
    with served_api(tmp_path, static=STATIC, nodes=nodes) as api, visit(browser, link(api)) as seen:
        job = api.submit("name: prepare\nnum_nodes: 2\nresources: {cpus: 1}\nrun: train\n")["id"]
        page = seen.page
        seen.open("#/jobs?show=all")
        cell = page.locator(f"tr[data-job='{job}'] td.gpus")
        expect(cell).to_have_text(re.compile("^–.*on CPU$", re.DOTALL))
        seen.open(f"#/jobs/{job}")
        expect(page.locator("dl.facts .size")).to_contain_text("2 nodes with 1 CPU each")
        ranks = page.get_by_role("combobox", name="Rank whose log is shown")
        expect(ranks.locator("option")).to_have_text(["0", "1"])
        expect(page.get_by_role("button", name="Resize")).to_have_count(0)
        expect(page.get_by_role("region", name="GPU use over time")).to_have_count(0)
        seen.open("#/nodes")
        expect(page.locator("li.card")).to_contain_text("prepare")


def test_a_user_has_a_page(browser: Browser, api: ServedApi):
    """Given jobs of ben, then a page lists the users, and his has his jobs, GPUs, GPU-hours and waste."""
    with visit(browser, link(api)) as seen:
        page = seen.page
        page.keyboard.press("g")
        page.keyboard.press("u")
        row = page.locator("[data-user='ben']")
        expect(row.locator("td").first).to_have_text("4")
        row.get_by_role("link", name="ben").click()
        expect(page.get_by_role("heading", name="ben", level=1)).to_be_visible()
        expect(page.locator("[data-fact='gpus']")).to_contain_text("1 job running, 1 waiting")
        expect(page.locator("[data-kind='unused']")).to_contain_text("GPU-hours")
        expect(page.get_by_role("table", name="Active jobs of ben").locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("table", name="Finished jobs of ben")).to_contain_text("done")
        seen.open("#/users/nobody")
        expect(page.get_by_text("nobody has no jobs here")).to_be_visible()
