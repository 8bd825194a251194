"""A scheduling cycle in the making: jobs of queue `a` wait, none has been served yet."""

from collections.abc import Mapping
from typing import Any

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.quota import MILLI, ClusterQueue, Quota
from batuta.quota.cache import AdmissionCache
from batuta.quota.reservation import Reservations
from batuta.quota.snapshot import JobWorkloads, QuotaState, Snapshot
from tests.support.quotas import CELL, gpus, quota_of
from tests.support.worlds import NOW_S, make_job, make_world

PATIENCE_S = 600.0
YOUNG_S = NOW_S - 1.0


def team(**rules: Any) -> Quota:
    """Two queues of four GPUs each that lend to each other; the first has these rules."""
    return quota_of(ClusterQueue("a", "team", gpus(4), **rules), ClusterQueue("b", "team", gpus(4)))


class QuotaCycle:
    """Jobs of queue `a`, each (size, priority), and what is used, reserved and known of them."""

    def __init__(
        self,
        quota: Quota,
        *jobs: tuple[int, int],
        submit_s: float = YOUNG_S,
        running: Mapping[str, str] | None = None,
        **wishes: Any,
    ) -> None:
        made = [
            make_job(f"j{row}", size, priority=priority, queue="a", submit_s=submit_s, **wishes)
            for row, (size, priority) in enumerate(jobs)
        ]
        self.world = make_world([Node("n0", 16)], running, made)
        apply(self.world, ev.QuotaSet(NOW_S, quota))
        cache = AdmissionCache()
        self.tree = cache.empty_tree(self.world.effective_quota)
        self.fr = self.tree.number(CELL)
        self.snapshot = Snapshot(self.world, NOW_S, self.tree, cache)
        self.workloads = JobWorkloads(self.world, NOW_S, self.tree, self.snapshot, frozenset(), PATIENCE_S)
        self.state = QuotaState(self.world.effective_quota, self.tree, self.workloads)
        self.reservations = Reservations(self.state, self.workloads.ends_s, self.workloads.releases)

    def use(self, queue: str, size: int) -> None:
        """So many GPUs of a queue's quota are used."""
        self.tree.queues[queue].add({self.fr: size * MILLI})
