"""The layout while a cycle is placed, with what was learned about it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from batuta.core.bitsets import bits, mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, JobId
from batuta.core.job_table import Beside
from batuta.core.layout import Layout
from batuta.core.load import expected_load
from batuta.core.placer import EVERYWHERE
from batuta.core.world import Avoided, World
from batuta.placement.busy_cards import BUSIEST, BusyCards
from batuta.placement.calm import CalmNodes, calmest_gpus
from batuta.placement.choose_gpus import choose_gpus, numa_part
from batuta.placement.stranding import Stranding

if TYPE_CHECKING:
    from batuta.placement.racks import RackProfiles
    from batuta.placement.sharing import CardLevels

NOTHING_ASKED = Beside(0, 0, 0)
NOTHING_KNOWN = BusyCards({}, dict, 0.0, 0)
NOTHING_AVOIDED: Mapping[JobId, Avoided] = {}
Part = tuple[int, int]
"""A node, and how many of its GPUs."""


class Room:
    """A working copy of the layout. What it remembers are upper bounds: true while GPUs are only taken."""

    __slots__ = (
        "_asked",
        "_avoided",
        "_busy",
        "_calm",
        "_know",
        "_levels",
        "_missing",
        "_stranding",
        "_suited",
        "_widest",
        "_within",
        "cards",
        "layout",
        "loads",
        "racks",
        "spreads",
        "table",
    )

    def __init__(
        self,
        layout: Layout,
        missing: Mapping[int, int],
        avoided: Mapping[JobId, Avoided] = NOTHING_AVOIDED,
        within: Mapping[JobId, int] = EVERYWHERE,
        asked: Beside = NOTHING_ASKED,
    ) -> None:
        self.layout = layout
        self.table = layout.table
        self._missing = missing
        self._avoided = avoided
        self._within = within
        self._widest: dict[int, int] = {}
        self._suited: dict[tuple[object, ...], int] = {}
        self._levels: dict[tuple[int, int, int, bool], list[int]] = {}
        self._asked = asked
        self._stranding: Stranding | None = None
        self._know: Callable[[], BusyCards] | None = None
        """Finds out how busy GPUs really are; None where nobody knows."""
        self._busy: BusyCards | None = None
        self._calm: CalmNodes | None = None
        self.loads: Callable[[Job], float] = _unknown
        """How busy a job will keep a GPU."""
        self.spreads = False
        """Whether shares go to empty cards first, and not to full ones."""
        self.cards: CardLevels | None = None
        """Made when the first job that shares a card is placed."""
        self.racks: dict[int, RackProfiles] = {}
        """By set of nodes: how full the racks are, as it was when somebody last asked."""

    @staticmethod
    def of(world: World, within: Mapping[JobId, int] = EVERYWHERE, busiest: float = BUSIEST) -> Room:
        """A copy of what the World has, to place on for as long as it does not change."""
        room = Room(world.layout.sketch(), world.missing(), world.avoided, within, world.jobs.beside)
        if world.usage or world.loads:
            room._know = partial(BusyCards.of_world, world, busiest)
            room.loads = partial(expected_load, world)
        return room

    def fork(self) -> Room:
        """A copy to try something out on."""
        twin = Room(self.layout.fork(), self._missing, self._avoided, self._within, self._asked)
        twin._suited, twin._widest = self._suited, self._widest
        twin._know, twin._busy = self._know, None if self._busy is None else self._busy.fork()
        twin.loads, twin.spreads = self.loads, self.spreads
        return twin

    @property
    def busy(self) -> BusyCards:
        """How busy GPUs really are; worked out when somebody asks."""
        if self._busy is None:
            self._busy = NOTHING_KNOWN if self._know is None else self._know()
        return self._busy

    def calm_first(self, nodes: int, gpus: int) -> Iterator[int]:
        """Nodes that are as good for a job with so many GPUs on one: the really least used first."""
        if self._know is None or not self.busy:
            return bits(nodes)
        if self._calm is None:
            self._calm = CalmNodes(self.busy, self.layout)
        return self._calm.calm_first(nodes, gpus)

    @property
    def stranding(self) -> Stranding:
        """How many GPUs a choice would leave without CPU and memory; made when somebody asks."""
        if self._stranding is None:
            self._stranding = Stranding(self.layout, self._asked)
        return self._stranding

    def suited(self, job: Job, gpu_type: int) -> int:
        """Nodes of this type that may get new replicas of the job."""
        if self._within and job.id in self._within:
            nodes = self.layout.usable & self.table.by_type[gpu_type] & self._within[job.id]
        else:
            key = (gpu_type, job.node_labels, job.node_terms, job.tolerations)
            known = self._suited.get(key)
            if known is None:
                known = self.layout.usable & self.table.by_type[gpu_type] & self.table.matching(job)
                self._suited[key] = known
            nodes = known
        if self._avoided and job.id in self._avoided:
            nodes &= ~self._avoided[job.id].nodes
        return nodes

    def levels(self, job: Job) -> list[int]:
        """levels[k]: nodes on which the job could have at most k GPUs; exact if it asks for GPUs only.

        Otherwise CPU, memory and NUMA are looked at when a node comes up, and the node is lowered to what it
        really has. So no job looks at all nodes, and no two jobs of the same shape at the same full one.
        """
        cpus, memory, numa = job.cpus_milli_per_gpu, job.memory_mib_per_gpu, job.topology.single_numa
        if not (cpus or memory or numa):
            return self.layout.buckets
        key = (cpus, memory, job.gpus_per_replica, numa)
        levels = self._levels.get(key)
        if levels is None:
            levels = self._levels[key] = list(self.layout.buckets)
        return levels

    def capacity(self, i: int, job: Job, own: int = 0) -> int:
        """How many more GPUs the job could have on a node where it has `own`: whole replicas only."""
        layout = self.layout
        free = layout.free[i]
        if job.topology.single_numa and self.table.nodes[i].numa:
            free = numa_part(self.table.nodes[i].numa, free, 0, own)
        most = free.bit_count()
        if job.cpus_milli_per_gpu:
            most = min(most, layout.cpus_milli[i] // job.cpus_milli_per_gpu)
        if job.memory_mib_per_gpu:
            most = min(most, layout.memory_mib[i] // job.memory_mib_per_gpu)
        return max(most - most % job.gpus_per_replica, 0)

    def take(self, i: int, count: int, job: Job, own: int = 0) -> Span:
        """Gives a job GPUs of a node, chosen close together; of such that are as close the least used."""
        node, numa = self.table.nodes[i], job.topology.single_numa
        what = node.nvlink, node.numa, self.layout.free[i], count, own, numa
        if self._know is None or i not in self.busy.nodes:
            mask, gpus = choose_gpus(*what)
        else:
            mask, gpus = calmest_gpus(*what, [round(10 * self.busy.of(i, k)) for k in range(node.gpus)])
        self.layout.take(i, mask, job)
        return Span(node.name, gpus)

    def first_gpu(self, i: int) -> int:
        """The free GPU of a node that leaves the others closest together."""
        node = self.table.nodes[i]
        return choose_gpus(node.nvlink, node.numa, self.layout.free[i], 1).gpus[0]

    def retake(self, i: int, count: int, job: Job, held: int) -> int:
        """Gives a job GPUs of a node, those that it held there first. Returns them as a set."""
        node, free, numa = self.table.nodes[i], self.layout.free[i], job.topology.single_numa
        kept = held & free
        if kept and numa and node.numa and (numa_part(node.numa, free, 0, kept)).bit_count() < count:
            # Its old NUMA node is too narrow for all; another one is not.
            kept = 0
        if kept.bit_count() >= count:
            mask = choose_gpus(node.nvlink, node.numa, kept, count, 0, numa).mask
        else:
            more = count - kept.bit_count()
            mask = kept | choose_gpus(node.nvlink, node.numa, free & ~kept, more, kept, numa).mask
        self.layout.take(i, mask, job)
        return mask

    def seat(self, job: Job, parts: Iterable[Part]) -> Placement:
        """Takes GPUs on every chosen node."""
        return Placement(tuple([self.take(i, count, job) for i, count in parts]))

    def occupy(self, placement: Placement, job: Job) -> None:
        """Takes exactly these GPUs."""
        self.layout.place(placement, job)

    def give_back(self, i: int, mask: int, job: Job) -> None:
        """Gives some GPUs of a node back. What was remembered about full nodes no longer holds."""
        self.layout.give_back(i, mask, job)
        self._forget()

    def vacate(self, placement: Placement, job: Job) -> None:
        """Gives all these GPUs back."""
        self.layout.remove(placement, job)
        self._forget()

    def _forget(self) -> None:
        self._levels.clear()
        self.cards = self._calm = None

    def total(self, nodes: int) -> int:
        """Healthy GPUs of a set of usable nodes, free or not."""
        total = sum(size * (own & nodes).bit_count() for size, own in self.table.by_size.items())
        return total - sum(mask.bit_count() for i, mask in self._missing.items() if nodes >> i & 1)

    def widest(self, nodes: int) -> int:
        """Healthy GPUs of the largest of these usable nodes."""
        widest = self._widest.get(nodes)
        if widest is None:
            ill = sum(1 << i for i in self._missing)
            whole = max((size for size, own in self.table.by_size.items() if own & nodes & ~ill), default=0)
            widest = max([whole, *(self.layout.healthy[i].bit_count() for i in bits(ill & nodes))])
            self._widest[nodes] = widest
        return widest

    def masks(self, placement: Placement) -> dict[int, int]:
        """The GPUs of a placement as a set per node."""
        index, found = self.table.index, dict[int, int]()
        for name, gpus in placement.spans:
            i = index[name]
            found[i] = found.get(i, 0) | mask_of(gpus)
        return found


def _unknown(job: Job) -> float:
    return 0.0
