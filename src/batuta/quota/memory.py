"""What the step `admit` keeps from cycle to cycle."""

from __future__ import annotations

from operator import is_

from batuta.core.job import Job, JobId
from batuta.core.quota import Flavors, Quota
from batuta.core.world import World
from batuta.quota.asks import Ask, Menu, menu_of
from batuta.quota.doors import Door
from batuta.quota.past import Past
from batuta.quota.plain_quota import PlainQuota, plain_quota
from batuta.quota.tree import Amounts, Tree


class Memory:
    """What can be kept for as long as quota stays the same.

    It belongs to one loop: two cycles at the same time would write into the same tree. Whoever decides beside
    the engine takes rules of its own.
    """

    def __init__(self) -> None:
        self._tree: tuple[Quota, Tree] | None = None
        self.doors: dict[tuple[str, str], Door | None] = {}
        """By namespace and name of a queue; None for jobs that quota does not concern."""
        self.menus: list[Menu] = []
        """What there is to choose from in queues: mostly the same in many of them."""
        self.menu_of: dict[str, int] = {}
        """By queue: the number of its menu."""
        self.alike: dict[tuple[object, ...], Ask] = {}
        """What jobs that are alike ask for: the very same, whenever they came, for as long as nodes stay."""
        self.uses: dict[JobId, tuple[Job, Flavors, int, Amounts]] = {}
        """By job that ran: what it uses, given this request, these flavors and this size."""
        self.past: dict[int, Past] = {}
        """By number of a tree of cohorts: what the last round saw there, and what it came to."""
        self.number_of: dict[str, int] = {}
        """By queue: the number of its tree."""
        self.plain: PlainQuota
        """Queues of which a few numbers say it all."""
        self._reach: list[list[int]] = []
        """What nodes could give to jobs, by what these want of nodes."""

    def empty_tree(self, quota: Quota) -> Tree:
        if self._tree is None or self._tree[0] is not quota:
            tree = Tree(quota)
            self._tree = quota, tree
            self.doors, self.menu_of, self.alike, self.uses, self.past = {}, {}, {}, {}, {}
            number: dict[Menu, int] = {}
            for queue in quota.cluster_queues:
                self.menu_of[queue.name] = number.setdefault(menu_of(queue), len(number))
            self.menus = list(number)
            roots = dict.fromkeys(node.root for node in tree.queues.values())
            numbers = {root: number for number, root in enumerate(roots)}
            self.number_of = {name: numbers[node.root] for name, node in tree.queues.items()}
            self.plain = plain_quota(quota, tree, self.number_of)
        self._tree[1].clear()
        return self._tree[1]

    def heed_nodes(self, world: World) -> None:
        """If nodes could give more or less to some jobs than before, no answer holds any more."""
        before, now = self._reach, list(world.reach.values())
        if len(now) < len(before) or not all(map(is_, before, now)):
            self.alike, self.past = {}, {}
        self._reach = now

    def forget_the_gone(self, world: World) -> None:
        """Jobs that are over are forgotten when they are as many as those that live."""
        living = world.jobs.key_of
        if len(self.uses) > 2 * len(living):
            self.uses = {job: known for job, known in self.uses.items() if job in living}
