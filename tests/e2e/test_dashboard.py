"""The dashboard against `batuta up --virtual`, in a real browser: what a person does on a working day."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import any_browser, visit
from tests.support.server_process import PlainServers, ServerProcess

GROWING = """\
name: growing
num_nodes: 1
resources:
  accelerators: 1
run: |
  step=${BATUTA_RESTART:-0}0
  while true; do
    step=$((step + 1))
    echo "rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES at step $step"
    [ "$SKYPILOT_NODE_RANK" = 0 ] &&
      echo '{"step": '$step', "total_steps": 4000, "loss": 0.'$((900 - step))'}' >> $BATUTA_PROGRESS
    sleep 0.2
  done
elastic:
  min_nodes: 1
  max_nodes: 3
  checkpoint: none
  restartable: true
  grace: 1s
"""
BLOCKER = "name: blocker\nnum_nodes: 3\nresources: {accelerators: 1}\nrun: sleep 1000\n"
HUGE = "name: patient\nnum_nodes: 4\nresources: {accelerators: 1}\nrun: sleep 1\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with any_browser() as found:
        yield found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with PlainServers(tmp_path) as servers:
        server = servers.start(tmp_path / "home", "--nodes", "2", "--gpus", "2")
        server.wait_ready()
        yield server
        with server.client() as client:
            for job in client.jobs():
                if not job.is_over:
                    client.cancel(job)
                    client.wait(job, timeout_s=20)


def link_of(server: ServerProcess) -> str:
    with server.client() as client:
        return client.session_link()


def test_a_job_from_submit_to_cancel(browser: Browser, server: ServerProcess):
    """Submit it with a mistake, without one; watch it grow, read why, follow its log, cancel it."""
    with server.client() as client:
        blocker = client.submit(BLOCKER)
    with visit(browser, link_of(server), expected=["422 .*/jobs"]) as seen:
        page = seen.page
        page.get_by_role("link", name="Submit", exact=True).click()
        editor = page.get_by_role("textbox", name="Task file, as YAML")

        editor.fill(GROWING.replace("num_nodes: 1\n", "num_nodez: 1\n", 1))
        page.get_by_role("button", name="Check").click()
        problems = page.get_by_role("alert")
        expect(problems).to_contain_text("num_nodez")
        expect(problems.get_by_role("button", name="Go to line 2")).to_be_visible()

        editor.fill(GROWING)
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("growing is fine")).to_be_visible()
        page.get_by_role("button", name="Submit", exact=True).click()

        expect(page.get_by_role("heading", level=1)).to_contain_text("growing")
        gpus = page.locator("[data-gpus]")
        expect(gpus).to_have_attribute("data-gpus", "1")
        expect(page.locator("h1 ~ [data-state]")).to_have_attribute("data-state", "RUNNING")

        with server.client() as client:
            client.cancel(blocker)
        expect(gpus).to_have_attribute("data-gpus", "3", timeout=30_000)
        expect(page.locator("code[data-reason]")).to_have_attribute("data-reason", "FULL_SIZE", timeout=15_000)
        expect(page.get_by_text("It runs at its full size of 3 GPUs.")).to_be_visible()
        story = page.get_by_role("list", name="Story")
        expect(story).to_contain_text("grows from 1 to 3 GPUs")

        log = page.get_by_role("region", name="Log of rank 0")
        expect(log).to_contain_text("rank 0 of 3")
        first = log.inner_text()
        expect(log).not_to_have_text(first)
        page.get_by_role("combobox", name="Rank whose log is shown").select_option("2")
        expect(page.get_by_role("region", name="Log of rank 2")).to_contain_text("rank 2 of 3")
        expect(page.get_by_role("img", name=re.compile("loss: .* points"))).to_be_visible()

        page.get_by_role("button", name="Cancel", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Cancel growing?")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
        expect(page.locator("h1 ~ [data-state]")).to_have_attribute("data-state", "CANCELLED", timeout=20_000)


def test_a_job_that_waits_says_why_and_what_would_help(browser: Browser, server: ServerProcess):
    with server.client() as client:
        client.submit(BLOCKER)
        patient = client.submit(HUGE)
    with visit(browser, link_of(server)) as seen:
        page = seen.page
        seen.open(f"#/jobs/{patient.id}")
        expect(page.locator("code[data-reason]")).to_have_attribute("data-reason", "WAITING_FOR_GPUS")
        expect(page.get_by_text("It needs 4 GPUs")).to_be_visible()
        expect(page.get_by_role("heading", name="What would help")).to_be_visible()
        expect(page.get_by_text("It has not started yet")).to_be_visible()

        page.get_by_role("button", name="Park").click()
        page.get_by_role("dialog").get_by_role("button", name="Park the job").click()
        expect(page.get_by_text("It is parked until it is started again.")).to_be_visible()
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_text("It needs 4 GPUs")).to_be_visible()


def test_nodes_and_policy_are_changed_and_the_decisions_are_told(browser: Browser, server: ServerProcess):
    with visit(browser, link_of(server)) as seen:
        page = seen.page
        seen.open("#/nodes")
        card = page.locator("li.card[data-node=node-1]")
        card.get_by_role("button", name="Cordon").click()
        expect(card).to_contain_text("Cordoned")
        card.get_by_role("button", name="Uncordon").click()
        expect(card).to_contain_text("Ready")

        seen.open("#/policy")
        page.get_by_role("searchbox", name="Filter policies").fill("fifo")
        page.get_by_role("button", name="Use fifo", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Use fifo").click()
        expect(page.get_by_text("fifo decides how many GPUs each job gets")).to_be_visible()

        seen.open("#/")
        with server.client() as client:
            client.submit(BLOCKER)
        expect(page.get_by_role("log")).to_contain_text("starts with 3 GPUs")
        expect(page.locator("a.tile")).to_have_count(3)
        expect(page.get_by_test_id("gpus")).to_have_text("3 / 4")
        expect(page.get_by_test_id("running")).to_have_text("1")


def test_a_server_that_dies_is_missed_and_found_again(browser: Browser, tmp_path: Path):
    with PlainServers(tmp_path) as servers:
        first = servers.start(tmp_path / "home")
        url = first.wait_ready()
        with visit(browser, link_of(first)) as seen:
            page = seen.page
            seen.is_calm = False
            first.kill()
            expect(page.get_by_test_id("connection")).to_have_text("Offline")
            expect(page.get_by_text("The connection to the server is lost")).to_be_visible()

            port = url.rpartition(":")[2]
            servers.start(tmp_path / "home", "--port", port).wait_ready()
            expect(page.get_by_test_id("connection")).to_have_text("Live", timeout=30_000)
            expect(page.get_by_text("The connection to the server is lost")).to_be_hidden()
