"""A small cluster on which stories about quota are played, cycle by cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import JobState
from batuta.core.plan import Plan, Preempt, Resize, Start
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.placement.placer import TopologyPlacer
from batuta.policies.registry import load_policy
from batuta.quota.admission import QuotaAdmission
from tests.support.invariants import check_invariants, check_plan, check_quota
from tests.support.worlds import make_job, make_nodes


class Cluster:
    """Every cycle is carried out at once, and what must always hold is checked after it."""

    def __init__(
        self,
        quota: Quota,
        nodes: Sequence[int | Node] = (8, 8),
        policy: str = "elastic-fifo",
        patience_s: float = 600.0,
    ) -> None:
        self.world, self.now_s = World(), 0.0
        self.rules = SchedulerProfile(load_policy(policy), TopologyPlacer(), QuotaAdmission(patience_s))
        sizes = [node for node in nodes if isinstance(node, int)]
        for node in (*make_nodes(*sizes), *(node for node in nodes if isinstance(node, Node))):
            self.happens(ev.NodeAdded(0.0, node))
        self.quota_is(quota)

    def happens(self, event: ev.Event) -> None:
        apply(self.world, event)
        check_invariants(self.world)

    def quota_is(self, quota: Quota) -> None:
        self.happens(ev.QuotaSet(self.now_s, quota))

    def submit(self, name: str, queue: str, size: int = 1, **wishes: Any) -> None:
        """Jobs that come later are newer, if only by a second."""
        self.now_s += 1.0
        job = make_job(name, size, queue=queue, submit_s=self.now_s, **wishes)
        self.happens(ev.JobSubmitted(self.now_s, job))

    def ends(self, name: str) -> None:
        self.happens(ev.JobEnded(self.now_s, name, JobState.SUCCEEDED))

    def loses(self, node: str) -> None:
        self.happens(ev.NodeLost(self.now_s, node))

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.happens(ev.TimePassed(self.now_s))

    def cycle(self, checked: bool = True) -> list[str]:
        """Decides, and all of it is done at once: what was done, in words.

        Unless it is `checked`, somebody may have more than quota allows.
        """
        self.now_s += 1.0
        plan = decide(self.world, self.now_s, self.rules)
        check_plan(self.world, plan)
        self.happens(ev.Planned(self.now_s, plan))
        if checked:
            check_quota(self.world)
        for command in plan.commands:
            if not isinstance(command, Preempt):
                self.happens(ev.JobStarted(self.now_s, command.job))
        self.last = plan
        return _in_words(plan)

    def rest(self) -> list[str]:
        """Cycles until nothing changes any more: all that was done."""
        done: list[str] = []
        for _ in range(20):
            now = self.cycle()
            if not now:
                return done
            done += now
        raise AssertionError(f"it does not come to rest: {done}")

    @property
    def sizes(self) -> dict[str, int]:
        """What each job has; those that wait are not in it."""
        jobs = self.world.jobs
        return {job: int(gpus) for job, gpus in zip(jobs.ids, jobs.held, strict=True) if gpus}

    def why(self, name: str) -> str:
        decision = self.last.decisions.of(name)
        assert decision is not None
        return decision.reason.name

    def sentence(self, name: str) -> str:
        return str(self.last.decisions.of(name))


def _in_words(plan: Plan) -> list[str]:
    words = {Start: "start", Resize: "resize", Preempt: "preempt"}
    return [f"{words.get(type(one), 'move')} {one.job} {one.reason.name}" for one in plan.commands]
