"""The page of health: what is not well and why, what people keep out, and when the guard rail holds."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from batuta.api.app import login_path
from batuta.api.dependencies import STATIC
from batuta.core.health_record import Alert, Cordon, Record, State, Target
from batuta.core.health_rules import Action
from batuta.engine.health import HealthSeen
from tests.e2e.test_dashboard_pages import CHECKS
from tests.support.browser import DESKTOP, PHONE, any_browser, visit
from tests.support.served_api import ServedApi, served_api

GONE = "Xid 79: GPU has fallen off the bus"


class Ward:
    """Who looks after the health of nodes: what it has been told, and nothing else."""

    def __init__(self) -> None:
        now_s = time.time()
        self._seen = HealthSeen(
            {
                Target("node-0", 1): Record(State.ILL, now_s - 120, GONE, "health", Action.REBOOT),
                Target("node-0", 2): Record(State.SUSPECT, now_s - 30, "Xid 31: page fault", "health"),
                Target("node-1", 3): Record(
                    State.ILL, now_s - 60, "Xid 48: double bit error", "health", Action.REPLACE, held=True
                ),
            },
            {},
            (Alert("virtual", Target("node-1", 3), "Xid 48: double bit error"),),
        )

    def seen(self) -> HealthSeen:
        return self._seen

    def mended(self, node: str, gpu: int | None, who: str) -> None:
        target = Target(node) if gpu is None else Target(node, gpu)
        record = Record(State.BURN_IN, time.time(), GONE, who)
        self._seen = replace(self._seen, records={**self._seen.records, target: record})

    def cordoned(self, node: str, who: str) -> None:
        self._seen = replace(self._seen, cordons={**self._seen.cordons, node: Cordon(who, 1.0)})

    def uncordoned(self, node: str, who: str) -> None:
        self._seen = replace(self._seen, cordons={})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("api")
    with served_api(folder, static=STATIC, node_health=Ward()) as api:
        yield api


def link(api: ServedApi, user: str = "ana") -> str:
    return api.url + login_path(api.live.app, api.live.hash_of(user))


def row(page: Page, target: str) -> Locator:
    return page.locator(f'[data-target="{target}"]')


def test_each_illness_has_its_reason_its_time_and_what_to_do(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        page.keyboard.press("g")
        page.keyboard.press("h")
        expect(page.get_by_role("heading", name="Health", level=1)).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="8 GPUs")).to_have_text(
            "2 nodes with 8 GPUs: 1 out of service, 1 ill and in service, 1 suspect"
        )
        expect(row(page, "node-0 1")).to_contain_text(GONE)
        expect(row(page, "node-0 1")).to_contain_text("2 min ago")
        expect(row(page, "node-0 1")).to_contain_text("Batuta")
        expect(row(page, "node-0 1")).to_contain_text("reboot")
        expect(row(page, "node-0 2")).to_contain_text("Suspect")
        expect(row(page, "node-1 3")).to_contain_text("kept in service by the guard rail")
        alert = page.get_by_role("alert").filter(has_text="The guard rail holds")
        expect(alert).to_contain_text("node-1, GPU 3 of pool virtual: Xid 48: double bit error")


def test_a_humans_cordon_is_marked_as_one_as_it_happens(browser: Browser, api: ServedApi):
    with visit(browser, link(api, "vic")) as seen:
        seen.open("#/health")
        expect(row(seen.page, "node-0 1")).to_be_visible()
        assert api.ask("POST", "/nodes/node-1/cordon").status_code == 200
        cordon = row(seen.page, "node-1 cordon")
        expect(cordon).to_contain_text("by a human: only a human undoes it")
        expect(cordon).to_contain_text("ana")
        # and among what happened lately, also when it is over
        assert api.ask("POST", "/nodes/node-1/uncordon").status_code == 200
        expect(cordon).to_have_count(0)
        lately = seen.page.get_by_role("region", name="Lately")
        expect(lately).to_contain_text("Node node-1 was cordoned")
        expect(lately).to_contain_text("Node node-1 takes work again")
        expect(seen.page.get_by_role("button", name="Mended")).to_have_count(0)


def test_who_has_mended_it_says_so_and_it_is_tested(browser: Browser, api: ServedApi):
    with visit(browser, link(api)) as seen:
        page = seen.page
        seen.open("#/health")
        page.get_by_role("button", name="Mended: node-0, GPU 1").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Is node-0, GPU 1 mended?")
        expect(dialog).to_contain_text("What had to be done: reboot")
        dialog.get_by_role("button", name="It is mended").click()
        expect(row(page, "node-0 1")).to_have_attribute("data-state", "burn-in")
        expect(row(page, "node-0 1")).to_contain_text("ana")


def test_where_all_is_well_it_says_so(browser: Browser, tmp_path_factory: pytest.TempPathFactory):
    with (
        served_api(tmp_path_factory.mktemp("well"), static=STATIC) as api,
        visit(browser, link(api)) as seen,
    ):
        seen.open("#/health")
        expect(seen.page.get_by_text("Everything is well")).to_be_visible()
        expect(seen.page.get_by_text("2 nodes with 8 GPUs, all well")).to_be_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_is_readable_and_named(browser: Browser, api: ServedApi, size: tuple[int, int], scheme: str):
    api.ask("POST", "/nodes/node-1/cordon")
    with visit(browser, link(api), size=size, scheme=scheme) as seen:
        seen.open("#/health")
        expect(row(seen.page, "node-1 cordon")).to_be_visible()
        assert seen.page.evaluate(CHECKS) == [], f"{size[0]} px, {scheme}"
