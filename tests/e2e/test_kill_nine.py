"""kill -9 of the server at random moments of a busy time: nothing is lost, doubled, left over or torn.

Moments, jobs and what people ask for are drawn from a seed: BATUTA_SEED chooses another one, BATUTA_KILLS
how often the server is killed (200 where CI is set, 40 elsewhere). `test_kill_storm.py` adds faults of the machine.
"""

import os
import sys

import pytest

from batuta.core import event as ev
from tests.support.aftermath import courses, read_journal, what_is_wrong_in, what_is_wrong_with
from tests.support.busy_run import draw_lives
from tests.support.busy_time import BusyTime
from tests.support.process_table import wait_for_none

KILLS = int(os.environ.get("BATUTA_KILLS") or (200 if os.environ.get("CI") else 40))
SEED = int(os.environ.get("BATUTA_SEED") or 20)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]


@pytest.fixture(scope="module")
def busy_time(tmp_path_factory: pytest.TempPathFactory) -> BusyTime:
    """Runs it once; each test below looks at it from another side."""
    folder = tmp_path_factory.mktemp("kill")
    busy = BusyTime(SEED, draw_lives(SEED, KILLS), folder / "home", folder)
    busy.run()
    return busy


def test_every_job_that_was_accepted_is_there_and_no_other(busy_time: BusyTime) -> None:
    assert not busy_time.users.trouble, busy_time.report(busy_time.users.trouble)
    accepted = busy_time.users.ids
    assert set(accepted) == {job.name for job in busy_time.jobs}
    assert {job.name: job.id for job in busy_time.told.values()} == accepted
    assert len(set(accepted.values())) == len(accepted)


def test_every_job_took_the_course_that_it_should(busy_time: BusyTime) -> None:
    """It ended as it should, never ran twice at once, shared no GPU, and its log is complete."""
    _, events = read_journal(busy_time.home)
    users = busy_time.users
    found = courses(busy_time.jobs, users.ids, users.cancelled, busy_time.told, events, busy_time.home, busy_time.seen)
    wrong = [f"{course}: {sentence}" for course in found for sentence in what_is_wrong_with(course)]
    assert not wrong, busy_time.report(wrong, events)


def test_no_process_is_left(busy_time: BusyTime) -> None:
    left = wait_for_none(busy_time.home)
    assert not left, busy_time.report([f"left over: {one}" for one in left])
    assert busy_time.exit_code == 0


def test_the_journal_is_consistent_and_every_plan_is_decided_again(busy_time: BusyTime) -> None:
    world, events = read_journal(busy_time.home)
    wrong = list(what_is_wrong_in(world, events))
    assert not wrong, busy_time.report(wrong, events)
    assert world.jobs.n == 0
    assert sum(isinstance(event, ev.Planned) for event in events) >= KILLS // 2, "it was not busy"
