"""kill -9 of the server at random moments of a busy time: nothing is lost, doubled, left over or torn.

Moments, jobs and what people ask for are drawn from a seed: BATUTA_SEED chooses another one, BATUTA_KILLS
how often the server is killed (200 where CI is set, 40 elsewhere).
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from batuta.apitypes.resources import Job
from batuta.core import event as ev
from tests.support.aftermath import (
    courses,
    overbooked_now,
    read_journal,
    what_is_wrong_in,
    what_is_wrong_with,
)
from tests.support.busy_jobs import STUBBORN, BusyJob
from tests.support.busy_run import NODES, Change, Life, Users, draw_lives
from tests.support.process_table import end_all, wait_for_none
from tests.support.server_process import ForkServer, ServerProcess

KILLS = int(os.environ.get("BATUTA_KILLS") or (200 if os.environ.get("CI") else 40))
SEED = int(os.environ.get("BATUTA_SEED") or 20)
ALL_OVER_WITHIN_S = 90.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]


@dataclass
class Time:
    """A busy time: what was planned, and what became of it."""

    lives: list[Life]
    home: Path
    seen: Path
    users: Users
    moments: list[str] = field(default_factory=list)
    told: dict[str, Job] = field(default_factory=dict)
    exit_code: int | None = None
    took_s: float = 0.0

    @property
    def jobs(self) -> list[BusyJob]:
        return [job for life in self.lives for job in life.submits]

    def report(self, wrong: Sequence[str], events: Sequence[ev.Event] = ()) -> str:
        """What one needs to find out why: the seed, what is wrong, the last moments and events."""
        shown = [f"{type(event).__name__} {str(event)[:300]}" for event in events[-20:]]
        return "\n".join(
            [
                f"BATUTA_SEED={SEED} BATUTA_KILLS={KILLS}, state in {self.home}",
                *(f"  ✗ {sentence}" for sentence in wrong[:40]),
                "last kills:",
                *self.moments[-10:],
                "last events:",
                *shown,
            ]
        )


@pytest.fixture(scope="module")
def busy_time(tmp_path_factory: pytest.TempPathFactory) -> Time:
    """Runs it once; each test below looks at it from another side."""
    folder = tmp_path_factory.mktemp("kill")
    home, seen = folder / "home", folder / "seen"
    seen.mkdir()
    busy = Time(draw_lives(SEED, KILLS), home, seen, Users(home, seen))
    begun = time.monotonic()
    try:
        with ForkServer(folder) as servers:
            for number, life in enumerate(busy.lives):
                _live(busy, servers.start(home), life, number)
            last = servers.start(home)
            last.wait_ready()
            _come_to_an_end(busy, last)
            busy.exit_code = last.end()
    except BaseException:
        end_all(home)
        raise
    busy.took_s = time.monotonic() - begun
    return busy


def _live(busy: Time, server: ServerProcess, life: Life, number: int) -> None:
    """One life of a server, from its start to kill -9."""
    begun = time.monotonic()
    busy.users.want(*life.submits, *life.changes)
    if life.when_ready:
        server.wait_ready()
    time.sleep(life.after_s)
    assert not busy.users.trouble, busy.report(busy.users.trouble)
    assert server.is_alive, busy.report([f"server {number} has ended by itself:\n{server.last_words()}"])
    server.kill()
    now_s = time.time()
    overbooked = overbooked_now(busy.home)
    assert not overbooked, busy.report(overbooked)
    busy.moments.append(f"{number} at {now_s:.3f}, {life}: pid {server.pid}, {time.monotonic() - begun:.2f} s old")


def _come_to_an_end(busy: Time, server: ServerProcess) -> None:
    """Nobody kills any more: what waits is let go, and all jobs come to their end."""
    users = busy.users
    for node in NODES:
        users.want(Change("uncordon", node))
    users.want(Change("policy", value="elastic-fifo"))
    for job in busy.jobs:
        users.want(Change("cancel" if job.kind == STUBBORN else "resume", job.name))
    users.finish()
    give_up = time.monotonic() + ALL_OVER_WITHIN_S
    with server.client() as client:
        while alive := client.jobs(active=True):
            assert time.monotonic() < give_up, busy.report([f"still alive: {job}" for job in alive])
            time.sleep(0.1)
        busy.told = {job.id: job for job in client.jobs()}


def test_every_job_that_was_accepted_is_there_and_no_other(busy_time: Time) -> None:
    assert not busy_time.users.trouble, busy_time.report(busy_time.users.trouble)
    accepted = busy_time.users.ids
    assert set(accepted) == {job.name for job in busy_time.jobs}
    assert {job.name: job.id for job in busy_time.told.values()} == accepted
    assert len(set(accepted.values())) == len(accepted)


def test_every_job_took_the_course_that_it_should(busy_time: Time) -> None:
    """It ended as it should, never ran twice at once, shared no GPU, and its log is complete."""
    _, events = read_journal(busy_time.home)
    users = busy_time.users
    found = courses(busy_time.jobs, users.ids, users.cancelled, busy_time.told, events, busy_time.home, busy_time.seen)
    wrong = [f"{course}: {sentence}" for course in found for sentence in what_is_wrong_with(course)]
    assert not wrong, busy_time.report(wrong, events)


def test_no_process_is_left(busy_time: Time) -> None:
    left = wait_for_none(busy_time.home)
    assert not left, busy_time.report([f"left over: {one}" for one in left])
    assert busy_time.exit_code == 0


def test_the_journal_is_consistent_and_every_plan_is_decided_again(busy_time: Time) -> None:
    world, events = read_journal(busy_time.home)
    wrong = list(what_is_wrong_in(world, events))
    assert not wrong, busy_time.report(wrong, events)
    assert world.jobs.n == 0
    assert sum(isinstance(event, ev.Planned) for event in events) >= KILLS // 2, "it was not busy"
