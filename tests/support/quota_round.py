"""A round of quota in the making: jobs of queue `a` wait, nobody has been served yet."""

from collections.abc import Mapping
from typing import Any

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.quota import MILLI, ClusterQueue, Quota
from batuta.quota.ledger import Ledger
from batuta.quota.memory import Memory
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims, RowHolders
from tests.support.quotas import CELL, gpus, quota_of
from tests.support.worlds import NOW_S, make_job, make_world

PATIENCE_S = 600.0
YOUNG_S, OLD_S = NOW_S - 1.0, NOW_S - PATIENCE_S


def team(**rules: Any) -> Quota:
    """Two queues of four GPUs each that lend to each other; the first has these rules."""
    return quota_of(ClusterQueue("a", "team", gpus(4), **rules), ClusterQueue("b", "team", gpus(4)))


class Round:
    """Jobs of queue `a`, each (size, priority), and what is used, kept and known of them."""

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
        self.memory = Memory()
        self.tree = self.memory.empty_tree(self.world.effective_quota)
        self.cell = self.tree.number(CELL)
        self.roll = Roll(self.world, NOW_S, self.tree, self.memory)
        self.claims = RowClaims(self.world, NOW_S, self.tree, self.roll, frozenset(), PATIENCE_S)
        self.ledger = Ledger(self.world.effective_quota, self.tree, RowHolders(self.claims))
        self.keeper = Keeper(self.ledger, self.claims.ends_s, self.claims.releases)

    def use(self, queue: str, size: int) -> None:
        """Somebody uses so many GPUs of a queue's quota."""
        self.tree.queues[queue].add({self.cell: size * MILLI})

    def used(self, queue: str) -> int:
        return self.tree.queues[queue].usage.get(self.cell, 0) // MILLI

    def keep(self, size: int) -> None:
        """Something is kept for somebody of queue `a` who needs so many GPUs."""
        self.keeper.keep(self.tree.queues["a"], {self.cell: size * MILLI})

    def kept(self) -> int | None:
        """How many GPUs are kept for somebody of queue `a`; None if nobody is looked after."""
        queue = self.tree.queues["a"]
        if queue not in self.keeper.kept:
            return None
        return self.keeper.kept_in(queue).get(self.cell, 0) // MILLI
