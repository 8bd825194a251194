"""The page of queues: bars in the tree of cohorts, and who is ahead of whom with the reason."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from batuta.api.app import login_path
from batuta.api.dependencies import STATIC
from batuta.core import event as ev
from batuta.core.quota import ClusterQueue, Cohort, StopPolicy
from tests.e2e.test_dashboard_pages import CHECKS
from tests.support.browser import DESKTOP, PHONE, any_browser, visit
from tests.support.quotas import gpus, quota_of
from tests.support.served_api import ServedApi, served_api, until

QUOTA = quota_of(
    Cohort("lab", "campus"),
    ClusterQueue("poor", "lab", gpus(1), weight=2.0),
    ClusterQueue("rich", "campus", gpus(6)),
    ClusterQueue("night", "", gpus(1), stop=StopPolicy.HOLD),
    fair_sharing=True,
)
TASK = """
name: {name}
num_nodes: {nodes}
resources: {{accelerators: virtual:1, priority: {priority}, labels: {{kueue.x-k8s.io/queue-name: {queue}}}}}
run: sleep 1000
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Queue `poor` has one GPU and uses four; two of its jobs wait, the urgent one that came last before."""
    folder = tmp_path_factory.mktemp("api")
    with served_api(folder, static=STATIC, events=[ev.QuotaSet(0.0, QUOTA)]) as api:

        def submit(name: str, nodes: int, queue: str, priority: int = 0) -> None:
            api.submit(TASK.format(name=name, nodes=nodes, queue=queue, priority=priority))

        submit("wide", 4, "poor")
        submit("own", 2, "rich")
        api.wait_for("2", "RUNNING")
        submit("plain", 3, "poor")
        submit("urgent", 4, "poor", priority=5)
        until(lambda: len(api.get("/queues/poor")["waiting"]) == 2)
        yield api


def link(api: ServedApi) -> str:
    return api.url + login_path(api.live.app, api.live.hash_of("ana")) + "#/queues"


def queue(page: Page, name: str) -> Locator:
    return page.locator(f'[data-queue="{name}"]')


def bar(page: Page, name: str) -> Locator:
    return queue(page, name).get_by_role("img")


def test_bars_tell_what_is_used_borrowed_lent_and_waited_for(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        seen.open("#/queues")
        page = seen.page
        expect(bar(page, "poor")).to_have_attribute("aria-label", "gpu GPUs: 4 used of 1, 3 borrowed, 7 waited for")
        expect(bar(page, "rich")).to_have_attribute("aria-label", "gpu GPUs: 2 used of 6, 3 lent")
        expect(queue(page, "poor")).to_contain_text("1 job running, 2 waiting")
        expect(queue(page, "night")).to_contain_text("held")
        lab = page.get_by_role("list", name="In cohort lab")
        expect(lab.locator('[data-queue="poor"]')).to_be_visible()
        expect(page.get_by_role("list", name="In cohort campus").locator('[data-cohort="lab"]')).to_be_visible()
        expect(page.get_by_text("4 queues in 2 cohorts, fair sharing")).to_be_visible()


def test_by_keyboard_it_says_who_is_ahead_and_why(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        page.keyboard.press("g")
        page.keyboard.press("q")
        ahead = queue(page, "poor").locator("summary")
        ahead.focus()
        page.keyboard.press("Enter")
        waiting = queue(page, "poor").locator("[data-waiting]")
        expect(waiting).to_have_count(2)
        expect(waiting.nth(0)).to_contain_text("urgent")
        expect(waiting.nth(1)).to_contain_text("plain")
        expect(waiting.nth(1)).to_contain_text(re.compile("WaitingForQuota.*needs 3 GPUs"))
        expect(queue(page, "poor")).to_contain_text("wide")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("urgent")
        expect(page.locator("[data-reason]")).to_be_visible()
        expect(page.get_by_text("WaitingForQuota")).to_be_visible()
        expect(page.get_by_text("It is the next of queue poor.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_is_readable_and_named(browser: Browser, api: ServedApi, size: tuple[int, int], scheme: str):
    with visit(browser, link(api), size=size, scheme=scheme) as seen:
        seen.open("#/queues")
        queue(seen.page, "poor").locator("summary").click()
        expect(seen.page.locator("[data-waiting]")).to_have_count(2)
        assert seen.page.evaluate(CHECKS) == [], f"{size[0]} px, {scheme}"


def test_it_follows_what_happens(browser: Browser, api: ServedApi):
    """Last of all: it changes quota."""
    with visit(browser, link(api)) as seen:
        seen.open("#/queues")
        expect(queue(seen.page, "night")).to_contain_text("held")
        assert api.ask("PUT", "/queues/night", json={"quota": {"*": 3}}).status_code == 200
        expect(bar(seen.page, "night")).to_have_attribute("aria-label", "All GPUs: 0 used of 3", timeout=20_000)
        expect(queue(seen.page, "night")).not_to_contain_text("held")
