"""A busy time on a server that is killed again and again: who submits and changes what, drawn from a seed."""

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batuta.client.client import Client
from batuta.client.errors import ApiError, ClientError, NoServerError
from tests.support.busy_jobs import KINDS, KINDS_FOR_FULL_DISKS, STUBBORN, BusyJob, draw_job
from tests.support.machine_faults import CLOCK, DESCRIPTORS, DISK

POLICIES = ("elastic-fifo", "fifo", "elastic-tiresias", "tiresias", "afs-l", "srjf", "ffdl")
NODES = ("node-0", "node-1")
ANSWER_WITHIN_S = 60.0
_ALL_IS_WELL_WITH = (404, 409)
"""The job is over, or not any more what it was: what was asked for has no object."""


@dataclass(frozen=True)
class Change:
    """Something that somebody wants, of a job or of the cluster."""

    verb: str
    target: str = ""
    value: Any = None

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.verb, self.target, self.value) if part not in ("", None))


@dataclass(frozen=True)
class Life:
    """What happens during one life of a server, and when that ends."""

    submits: tuple[BusyJob, ...]
    changes: tuple[Change, ...]
    when_ready: bool
    """Whether it lives until it is ready; otherwise it is killed while it starts."""
    after_s: float
    faults: frozenset[str] = frozenset()
    left: int = 0
    """Descriptors that it may open beside those that it has."""
    jump_s: int = 0
    recovers: bool = False
    """Whether the disk is free again in the last part of its life."""

    def __str__(self) -> str:
        when = f"{self.after_s * 1e3:.0f} ms after {'it was ready' if self.when_ready else 'its start'}"
        return " with ".join((when, *sorted(self.faults)))


_JUMPS_S = (1, 30, 3_600, 86_400, 30 * 86_400)
_FAULTY_FOR_S = 0.4  # so much longer lives one with faults after it was ready: they have to be noticed


def with_faults(seed: int, lives: list[Life]) -> list[Life]:
    """The same lives, half of them short of descriptors, a third with a full disk, a fifth with a clock that jumps."""
    chance, found = random.Random(seed + 1), list(lives)
    for fault, every in ((DESCRIPTORS, 2), (DISK, 3), (CLOCK, 5)):
        for number in chance.sample(range(len(found)), len(found) // every):
            found[number] = replace(found[number], faults=found[number].faults | {fault})
    ahead_s = 0
    for number, life in enumerate(found):
        jump_s = 0
        if CLOCK in life.faults:
            # Ahead, and back to where it should be; never to a time before the first start.
            jump_s = -ahead_s if ahead_s and chance.random() < 0.5 else chance.choice(_JUMPS_S)
            ahead_s += jump_s
        after_s = life.after_s + (chance.uniform(0, _FAULTY_FOR_S) if life.faults and life.when_ready else 0)
        more = {"left": chance.randrange(12), "jump_s": jump_s, "recovers": chance.random() < 0.5}
        found[number] = replace(life, after_s=after_s, **more)  # type: ignore[arg-type]
    return found


def draw_lives(seed: int, count: int, *, full_disks: bool = False) -> list[Life]:
    """The same lives for the same seed."""
    chance, kinds = random.Random(seed), KINDS_FOR_FULL_DISKS if full_disks else KINDS
    lives, jobs, due = [], list[BusyJob](), dict[int, list[Change]]()
    for number in range(count):
        submits = tuple(draw_job(f"j{len(jobs) + k}", chance, kinds) for k in range(chance.choice((0, 1, 1, 2, 2, 3))))
        jobs += submits
        changes = due.pop(number, [])
        for job in submits:
            if job.kind == STUBBORN:
                due.setdefault(number + chance.randrange(1, 6), []).append(Change("cancel", job.name))
        if jobs:
            for _ in range(chance.choice((0, 1, 1, 2, 3))):
                changes += _draw_change(chance, number, jobs[-8:], due)
        when_ready = chance.random() < 0.6
        after_s = chance.uniform(0, 0.4) if when_ready else chance.uniform(0, 0.3)
        lives.append(Life(submits, tuple(changes), when_ready, after_s))
    return lives


def _draw_change(chance: random.Random, number: int, jobs: list[BusyJob], due: dict[int, list[Change]]) -> list[Change]:
    """One change, and what is to follow on it some lives later."""
    job, later = chance.choice(jobs), number + chance.randrange(1, 6)
    what = chance.random()
    if what < 0.25:
        return [Change("cancel", job.name)]
    if what < 0.5:
        due.setdefault(later, []).append(Change("resume", job.name))
        return [Change("park", job.name)]
    if what < 0.8:
        resizable = [one for one in jobs if one.is_resizable]
        return [Change("resize", chance.choice(resizable).name, chance.randrange(1, 4))] if resizable else []
    if what < 0.9:
        return [Change("policy", value=chance.choice(POLICIES))]
    if what < 0.96:
        return [Change("priority", job.name, chance.randrange(-5, 6))]
    node = chance.choice(NODES)
    due.setdefault(later, []).append(Change("uncordon", node))
    return [Change(chance.choice(("drain", "cordon")), node)]


@dataclass
class Users:
    """Carries out what people want, one after another, and asks again when a server dies over it.

    Each submit has a key of its own, so that to repeat it makes no second job.
    """

    home: Path
    seen: Path
    ids: dict[str, str] = field(default_factory=dict)
    """By name: accepted jobs."""
    cancelled: set[str] = field(default_factory=set)
    """Jobs whose cancellation was accepted."""
    parked: set[str] = field(default_factory=set)
    trouble: list[str] = field(default_factory=list)
    repeats: int = 0

    def __post_init__(self) -> None:
        self._wishes: queue.SimpleQueue[BusyJob | Change | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="users", daemon=True)
        self._thread.start()

    def want(self, *wishes: BusyJob | Change) -> None:
        for wish in wishes:
            self._wishes.put(wish)

    def finish(self) -> None:
        """Returns when all that was wanted is done."""
        self._wishes.put(None)
        self._thread.join(4 * ANSWER_WITHIN_S)
        assert not self._thread.is_alive(), "not all requests were answered"

    def _work(self) -> None:
        with Client(home=self.home, timeout_s=10.0) as client:
            # People would wait longer from try to try, and miss most of these short lives.
            client._transport.pauses_s = (0.01,) * 3
            while (wish := self._wishes.get()) is not None:
                try:
                    self._do(client, wish)
                except Exception as error:
                    self.trouble.append(f"{wish if isinstance(wish, Change) else wish.name}: {error!r}")

    def _do(self, client: Client, wish: BusyJob | Change) -> None:
        if isinstance(wish, BusyJob):
            job = self._ask(lambda: client.submit(wish.task(self.seen), key=wish.name))
            assert job is not None, f"{wish.name} was refused"
            self.ids[wish.name] = job.id
            return
        job_id = self.ids.get(wish.target, wish.target)
        answer = self._ask(lambda: _VERBS[wish.verb](client, job_id, wish.value))
        if answer is None:
            return
        if wish.verb == "cancel":
            self.cancelled.add(wish.target)
        elif wish.verb == "park":
            self.parked.add(wish.target)
        elif wish.verb == "resume":
            self.parked.discard(wish.target)

    def _ask(self, request: Callable[[], Any]) -> Any:
        """The answer; None when there is nothing left to do it to. Asks again while no server is there."""
        give_up = time.monotonic() + ANSWER_WITHIN_S
        while True:
            try:
                return request()
            except ApiError as error:
                if error.status in _ALL_IS_WELL_WITH:
                    return None
                # 503, 504, 507: it shuts down, or cannot write; 401: another server has the old one's port by now.
                if error.status not in (401, 503, 504, 507) or time.monotonic() > give_up:
                    raise
            except ClientError as error:
                lost = isinstance(error, NoServerError) or "lost the connection" in str(error)
                if not lost or time.monotonic() > give_up:
                    raise
            self.repeats += 1
            time.sleep(0.02)


_VERBS: dict[str, Callable[[Client, str, Any], Any]] = {
    "cancel": lambda client, job, _: client.cancel(job),
    "park": lambda client, job, _: client.park(job),
    "resume": lambda client, job, _: client.resume(job),
    "resize": lambda client, job, nodes: client.resize(job, nodes),
    "priority": lambda client, job, priority: client.set_priority(job, priority),
    "policy": lambda client, _, name: client.set_policy(name),
    "cordon": lambda client, node, _: client.cordon(node),
    "uncordon": lambda client, node, _: client.uncordon(node),
    "drain": lambda client, node, _: client.drain(node),
}
