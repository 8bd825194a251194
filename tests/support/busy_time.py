"""A server that is killed again and again while people use it, with faults of the machine or without."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batuta.apitypes.resources import Job
from batuta.core import event as ev
from tests.support.aftermath import overbooked_now, read_journal
from tests.support.busy_jobs import STUBBORN, BusyJob
from tests.support.busy_run import NODES, Change, Life, Users
from tests.support.machine_faults import CLOCK, DESCRIPTORS, DISK, SmallDisk, WallClock, take_descriptors
from tests.support.process_table import end_all
from tests.support.server_process import ForkServer, ServerProcess

ALL_OVER_WITHIN_S = 90.0


@dataclass
class BusyTime:
    """A busy time: what was planned, and what became of it."""

    seed: int
    lives: list[Life]
    home: Path
    folder: Path  # for all else; not on the disk that is filled
    disk: SmallDisk | None = None
    clock: WallClock | None = None
    moments: list[str] = field(default_factory=list)
    told: dict[str, Job] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)  # lives by what went wrong around them
    gave_up: list[str] = field(default_factory=list)  # servers that ended by themselves at their start, for a fault
    exit_code: int | None = None
    took_s: float = 0.0

    def __post_init__(self) -> None:
        self.seen = self.folder / "seen"
        self.seen.mkdir()
        self.users = Users(self.home, self.seen)

    @property
    def jobs(self) -> list[BusyJob]:
        return [job for life in self.lives for job in life.submits]

    def report(self, wrong: Sequence[str], events: Sequence[ev.Event] = ()) -> str:
        """What one needs to find out why: the seed, what is wrong, the last moments and events."""
        shown = [f"{type(event).__name__} {str(event)[:300]}" for event in events[-20:]]
        return "\n".join(
            [
                f"BATUTA_SEED={self.seed} BATUTA_KILLS={len(self.lives)}, state in {self.home}",
                *(f"  ✗ {sentence}" for sentence in wrong[:40]),
                "last kills:",
                *self.moments[-10:],
                "last events:",
                *shown,
            ]
        )

    def run(self) -> None:
        begun = time.monotonic()
        try:
            with ForkServer(self.folder, None if self.clock is None else self.clock.env) as servers:
                for number, life in enumerate(self.lives):
                    self._live(servers.start(self.home), life, number)
                last = servers.start(self.home)
                last.wait_ready()
                self._come_to_an_end(last)
                self.exit_code = last.end()
        except BaseException:
            end_all(self.home)
            raise
        self.took_s = time.monotonic() - begun

    def _live(self, server: ServerProcess, life: Life, number: int) -> None:
        """One life of a server, from its start to kill -9."""
        begun = time.monotonic()
        self.faults.update(life.faults)
        self.users.want(*life.submits, *life.changes)
        if life.when_ready:
            server.wait_ready()
        self._begin_faults(server, life)
        time.sleep(life.after_s / 2)
        if self.disk is not None and life.recovers:
            self.disk.free()
        time.sleep(life.after_s / 2)
        assert not self.users.trouble, self.report([*self.users.trouble, server.last_words(60)])
        if not server.is_alive:
            words = f"server {number} ({life}) has ended by itself with {server.code}:\n{server.last_words()}"
            gave_up = life.faults and not life.when_ready and server.code
            assert gave_up, self.report([words])
            self.gave_up.append(words)
        server.kill()
        if self.disk is not None:
            self.disk.free()
        overbooked = overbooked_now(self.home)
        assert not overbooked, self.report(overbooked)
        age_s = time.monotonic() - begun
        self.moments.append(f"{number} at {time.time():.3f}, {life}: pid {server.pid}, {age_s:.2f} s old")

    def _begin_faults(self, server: ServerProcess, life: Life) -> None:
        if self.clock is not None and CLOCK in life.faults:
            self.clock.jump(life.jump_s)
        if self.disk is not None and DISK in life.faults:
            self.disk.fill()
        if DESCRIPTORS in life.faults:
            take_descriptors(server.pid, life.left)

    def _come_to_an_end(self, server: ServerProcess) -> None:
        """No server is killed any more: what waits is let go, and all jobs come to their end."""
        users = self.users
        for node in NODES:
            users.want(Change("uncordon", node))
        users.want(Change("policy", value="elastic-fifo"))
        for job in self.jobs:
            users.want(Change("cancel" if job.kind == STUBBORN else "resume", job.name))
        users.finish()
        give_up = time.monotonic() + ALL_OVER_WITHIN_S
        with server.client() as client:
            while alive := client.jobs(active=True):
                if time.monotonic() > give_up:
                    server.kill()
                    own = [event for event in read_journal(self.home)[1] if any(job.id in str(event) for job in alive)]
                    raise AssertionError(self.report([f"still alive: {job}" for job in alive], own))
                time.sleep(0.1)
            self.told = {job.id: job for job in client.jobs()}
