"""The free GPUs while a cycle is placed, and which nodes and GPUs suit a job best.

GPUs of a node are chosen close together, leaving whole groups to others; the answer depends on a few small
values, so it is cached. Racks with the same number of nodes at every level are looked at once.

Ties are broken twice. A job goes where it strands the fewest GPUs without CPU and memory beside them: one
that wants little CPU to a node with little, one that wants much to a rich one. (Weng et al., "Beware of
Fragmentation", ATC 2023, weigh the same against every kind of job that is expected; this asks for no
forecast, and in `benchmarks/fractional_packing.py` it strands fewer.) Of places that are still alike, the
one that is really used the least wins, where measured use is known and fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from batuta.core.arrays import bits, mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, JobId
from batuta.core.job_table import Beside
from batuta.core.layout import UNCOUNTED, Layout
from batuta.core.node_table import NodeTable
from batuta.core.placer import EVERYWHERE
from batuta.core.utilisation import expected_load
from batuta.core.world import ExcludedNodes, World
from batuta.placement.utilisation import BUSIEST, UNKNOWN, BusyCards

if TYPE_CHECKING:
    from batuta.placement.sharing import CardLevels

Groups: TypeAlias = tuple[int, ...]  # by GPU of a node: the number of its NVLink or NUMA group; empty: one group
Part: TypeAlias = tuple[int, int]  # a node, and how many of its GPUs
Profile: TypeAlias = tuple[int, ...]  # of a rack: how many of its nodes have 0, 1, 2, … GPUs for a job
TENTHS = 10
_TENTH_UNKNOWN = round(TENTHS * UNKNOWN)  # what a node counts as of which nothing is known
WHOLE = 100  # percent of a card
NOTHING_ASKED = Beside(0, 0, 0)
NOTHING_KNOWN = BusyCards({}, dict, 0.0, 0)


class Chosen(NamedTuple):
    """Some GPUs of one node, as a set and in worker order."""

    mask: int
    gpus: tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def choose_gpus(nvlink: Groups, numa: Groups, free: int, count: int, own: int = 0, single_numa: bool = False) -> Chosen:
    """Takes `count` of the free GPUs, which fit: beside its `own`, in the smallest group that suffices, else few."""
    if single_numa and numa:
        free = numa_part(numa, free, count, own)
    if free.bit_count() < count:
        raise ValueError(f"{count} GPUs wanted, {free.bit_count()} are free")
    groups = group_masks(nvlink or numa)
    if not groups:
        taken = lowest(free, count)
        return Chosen(taken, tuple(bits(taken)))
    taken = _beside_own(groups, free, count, own) if own else 0
    while (left := count - taken.bit_count()) > 0:
        parts = [(part.bit_count(), k) for k, group in enumerate(groups) if (part := group & free & ~taken)]
        fitting = [part for part in parts if part[0] >= left]
        # The smallest group that suffices leaves larger ones whole; without one, the largest keep them few.
        _, k = min(fitting) if fitting else max(parts, key=lambda part: (part[0], -part[1]))
        taken |= lowest(groups[k] & free & ~taken, left)
    # In the order of the groups, so that the GPUs of one replica lie in one group as far as possible.
    return Chosen(taken, tuple(gpu for group in groups for gpu in bits(group & taken)))


def _beside_own(groups: tuple[int, ...], free: int, count: int, own: int) -> int:
    taken = 0
    for group in sorted(groups, key=lambda group: -(group & own).bit_count()):
        if group & own:
            taken |= lowest(group & free, count - taken.bit_count())
    return taken


@lru_cache(maxsize=1 << 16)
def crossings(nvlink: Groups, mask: int) -> int:
    """How many NVLink groups these GPUs lie in."""
    return sum(1 for group in group_masks(nvlink) if group & mask)


@lru_cache(maxsize=1 << 16)
def numa_part(numa: Groups, free: int, count: int, own: int = 0) -> int:
    """The free GPUs of one NUMA node: that of `own`, else the fullest with `count`, else the widest."""
    nodes = group_masks(numa)
    if own:
        home = max(nodes, key=lambda node: (node & own).bit_count())
        return free & home if not own & ~home else 0
    parts = [node & free for node in nodes]
    fitting = [part for part in parts if part.bit_count() >= count]
    if count and fitting:
        return min(fitting, key=int.bit_count)
    return max(parts, key=int.bit_count, default=free)


@lru_cache(maxsize=1 << 12)
def group_masks(groups: Groups) -> tuple[int, ...]:
    """One set of GPUs per group, in the order of their first GPU; none when the node states no groups."""
    masks: dict[int, int] = {}
    for gpu, group in enumerate(groups):
        masks[group] = masks.get(group, 0) | 1 << gpu
    return tuple(masks.values())


def lowest(mask: int, count: int) -> int:
    """The `count` lowest GPUs of a set; all of them when there are fewer."""
    if mask.bit_count() <= count:
        return mask
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken


class LeastUtilisedNodes:
    """The nodes by how busy those of their free GPUs are that a job would get."""

    __slots__ = ("_busy", "_layout", "_tiers")

    def __init__(self, busy: BusyCards, layout: Layout) -> None:
        self._busy = busy
        self._layout = layout
        self._tiers: dict[int, list[int]] = {}  # by GPUs of a job, then by tenths: nodes, as busy at least

    def calm_first(self, nodes: int, gpus: int) -> Iterator[int]:
        """These nodes, the calmest first; of equals the lowest number. For a job with so many GPUs there."""
        tiers = self._tiers.get(gpus)
        if tiers is None:
            tiers = self._tiers[gpus] = self._sorted(gpus)
        for tenth, _ in enumerate(tiers):
            here = tiers[tenth] & nodes
            while here:
                low = here & -here
                here ^= low
                i = low.bit_length() - 1
                actual = self._tenth(i, gpus)
                if actual > tenth:
                    tiers[tenth] ^= low
                    tiers[actual] |= low
                else:
                    yield i

    def _sorted(self, gpus: int) -> list[int]:
        tiers = [0] * (TENTHS + 1)
        known = 0
        for i in self._busy.nodes:
            known |= 1 << i
            tiers[self._tenth(i, gpus)] |= 1 << i
        tiers[_TENTH_UNKNOWN] |= self._layout.table.all & ~known
        return tiers

    def _tenth(self, i: int, gpus: int) -> int:
        """How busy the calmest so many free GPUs of a node are on the average, in tenths."""
        if i not in self._busy.nodes:
            return _TENTH_UNKNOWN
        busy = sorted([self._busy.of(i, gpu) for gpu in bits(self._layout.free[i])])[:gpus]
        return round(TENTHS * sum(busy) / len(busy)) if busy else TENTHS


def calmest_gpus(
    nvlink: Groups, numa: Groups, free: int, count: int, own: int, single_numa: bool, tenths: list[int]
) -> Chosen:
    """The same, and of choices as close together the one with the calmest GPUs, by `tenths` that each is busy."""
    first = choose_gpus(nvlink, numa, free, count, own, single_numa)
    groups = group_masks(nvlink or numa)
    calm = 0
    by_tenth: dict[int, int] = {}
    for gpu in bits(free):
        by_tenth[tenths[gpu]] = by_tenth.get(tenths[gpu], 0) | 1 << gpu
    for tenth in sorted(by_tenth)[:-1]:
        calm |= by_tenth[tenth]
        if calm.bit_count() < count:
            continue
        try:
            found = choose_gpus(nvlink, numa, calm, count, own, single_numa)
        except ValueError:
            continue  # not so many in one NUMA node
        if _shape(groups, free, found.mask, own) == _shape(groups, free, first.mask, own):
            return found
    return first


def _shape(groups: tuple[int, ...], free: int, taken: int, own: int) -> list[tuple[int, int, int]]:
    """What a choice takes of each group and leaves there: two alike are as good."""
    return sorted(
        ((taken & group).bit_count(), (free & ~taken & group).bit_count(), (own & group).bit_count())
        for group in groups
    )


class Stranding:
    """What a GPU needs beside it, and how many would lack it on a node."""

    __slots__ = ("_cpus_milli", "_layout", "_memory_mib")

    def __init__(self, layout: Layout, asked: Beside) -> None:
        self._layout = layout
        percent = max(asked.gpu_percent, 1)
        self._cpus_milli, self._memory_mib = asked.cpus_milli / percent, asked.memory_mib / percent

    def added(self, i: int, gpus: int, job: Job) -> float:
        """Percent of GPUs that are stranded on a node once a job has so many there, beyond those that are."""
        free = self._free_percent(i)
        cpus, memory = self._layout.cpus_milli[i], self._layout.memory_mib[i]
        promised = self._layout.table.nodes[i].gpu_compute_percent
        takes = WHOLE * gpus if job.share is None else job.share.booked_percent(promised)
        wants_cpus, wants_memory = job.cpus_milli_per_gpu * gpus, job.memory_mib_per_gpu * gpus
        after = self._stranded(free - takes, cpus - wants_cpus, memory - wants_memory)
        return after - self._stranded(free, cpus, memory)

    def least(self, nodes: Iterable[int], gpus: int, job: Job) -> int:
        """The first of these nodes on which the job strands the fewest."""
        return min(nodes, key=lambda i: self.added(i, gpus, job))

    def _free_percent(self, i: int) -> int:
        node, cards = self._layout.table.nodes[i], self._layout.cards
        shared = [cards[i, gpu] for gpu in range(node.gpus if cards else 0) if (i, gpu) in cards]
        whole = WHOLE * self._layout.free[i].bit_count()
        return whole + sum(max(WHOLE - card.booked_percent(node.gpu_compute_percent), 0) for card in shared)

    def _stranded(self, free_percent: int, cpus_milli: int, memory_mib: int) -> float:
        served = float(free_percent)
        if self._cpus_milli and cpus_milli < UNCOUNTED // 2:
            served = min(served, max(cpus_milli, 0) / self._cpus_milli)
        if self._memory_mib and memory_mib < UNCOUNTED // 2:
            served = min(served, max(memory_mib, 0) / self._memory_mib)
        return free_percent - served


def _still_used(world: World) -> dict[int, int]:
    """By node: the GPUs that jobs were told to leave and may still be on."""
    found: dict[int, int] = {}
    for placement in world.leaving.values():
        for node, gpus in placement.spans:
            i = world.nodes.index[node]
            found[i] = found.get(i, 0) | mask_of(gpus)
    return found


@dataclass(slots=True, eq=False)
class ClusterState:
    """A working copy of the layout. What it remembers are upper bounds: true while GPUs are only taken."""

    layout: Layout
    _missing: Mapping[int, int]
    _avoided: Mapping[JobId, ExcludedNodes] = field(default_factory=dict)
    _within: Mapping[JobId, int] = field(default_factory=dict)
    _asked: Beside = NOTHING_ASKED
    _widest: dict[int, int] = field(default_factory=dict)
    _suited: dict[tuple[object, ...], int] = field(default_factory=dict)
    _levels: dict[tuple[int, int, int, bool], list[int]] = field(default_factory=dict)
    _stranding: Stranding | None = None
    _know: Callable[[], BusyCards] | None = None  # finds out how busy GPUs really are; None where it is unknown
    _leaving: Mapping[int, int] = field(default_factory=dict)  # by node: free GPUs that a job may still be on
    _busy: BusyCards | None = None
    _calm: LeastUtilisedNodes | None = None
    loads: Callable[[Job], float] = lambda _: 0.0  # how busy a job will keep a GPU
    spreads: bool = False  # whether shares go to empty cards first, and not to full ones
    cards: CardLevels | None = None  # made when the first job that shares a card is placed
    racks: dict[int, RackProfiles] = field(default_factory=dict)  # by set of nodes: how full racks were last
    table: NodeTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.layout.table

    @staticmethod
    def of(
        world: World, within: Mapping[JobId, int] = EVERYWHERE, *, busiest: float = BUSIEST, spreads: bool = False
    ) -> ClusterState:
        """A copy of what the World has, to place on for as long as it does not change."""
        room = ClusterState(world.layout.sketch(), world.missing(), world.avoided, within, world.jobs.beside)
        room.spreads, room._leaving = spreads, _still_used(world)
        if world.usage or world.loads:
            room._know = partial(BusyCards.of_world, world, busiest)
            room.loads = partial(expected_load, world)
        return room

    def fork(self) -> ClusterState:
        twin = ClusterState(self.layout.fork(), self._missing, self._avoided, self._within, self._asked)
        twin._suited, twin._widest = self._suited, self._widest
        twin._know, twin._busy = self._know, None if self._busy is None else self._busy.fork()
        twin.loads, twin.spreads, twin._leaving = self.loads, self.spreads, self._leaving
        return twin

    @property
    def busy(self) -> BusyCards:
        """How busy GPUs really are; worked out when it is read."""
        if self._busy is None:
            self._busy = NOTHING_KNOWN if self._know is None else self._know()
        return self._busy

    def calm_first(self, nodes: int, gpus: int) -> Iterator[int]:
        """Nodes that are as good for a job with so many GPUs on one: the really least used first."""
        if self._know is None or not self.busy:
            return bits(nodes)
        if self._calm is None:
            self._calm = LeastUtilisedNodes(self.busy, self.layout)
        return self._calm.calm_first(nodes, gpus)

    @property
    def stranding(self) -> Stranding:
        """How many GPUs a choice would leave without CPU and memory; made when it is read."""
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
                known = self._suited[key] = self.layout.usable & self.table.by_type[gpu_type] & self.table.matching(job)
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
        """Gives a job GPUs of a node, chosen close together; of such that are as close the least used.

        One that another job is still on counts as used most: the job could not start there at once.
        """
        node, numa = self.table.nodes[i], job.topology.single_numa
        what = node.nvlink, node.numa, self.layout.free[i], count, own, numa
        leaving, known = self._leaving.get(i, 0), self._know is not None and i in self.busy.nodes
        if not (leaving or known):
            mask, gpus = choose_gpus(*what)
        else:
            used = [
                (TENTHS + 1) * (leaving >> k & 1) + (round(TENTHS * self.busy.of(i, k)) if known else 0)
                for k in range(node.gpus)
            ]
            mask, gpus = calmest_gpus(*what, used)
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
        return Placement(tuple([self.take(i, count, job) for i, count in parts]))

    def occupy(self, placement: Placement, job: Job) -> None:
        self.layout.place(placement, job)

    def give_back(self, i: int, mask: int, job: Job) -> None:
        """Gives some GPUs of a node back. What was remembered about full nodes no longer holds."""
        self.layout.give_back(i, mask, job)
        self._forget()

    def vacate(self, placement: Placement, job: Job) -> None:
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
        index, found = self.table.index, dict[int, int]()
        for name, gpus in placement.spans:
            i = index[name]
            found[i] = found.get(i, 0) | mask_of(gpus)
        return found


class RackProfiles:
    """The racks by profile. It remembers the levels, so later questions look only at what has changed."""

    __slots__ = ("_alike", "_levels", "_nodes", "_of_rack", "_racks", "_table")

    def __init__(self, table: NodeTable, nodes: int) -> None:
        self._table, self._nodes = table, nodes
        self._racks = dict(zip(table.by_rack, range(len(table.by_rack)), strict=True))
        self._levels: list[int] = []
        self._of_rack: list[Profile] = [()] * len(self._racks)
        self._alike: dict[Profile, int] = {(): (1 << len(self._racks)) - 1}  # the racks with a profile, as one bit each

    def by_fit(self, levels: Sequence[int], gpus: int, step: int) -> Iterator[int]:
        """The racks that could hold so many GPUs, as sets of nodes: fewest nodes first, then the fullest."""
        self._bring_up_to_date(levels)
        found: dict[tuple[int, int], int] = {}
        for profile, racks in self._alike.items():
            fit = _fit(profile, gpus, step)
            if fit is not None:
                found[fit] = found.get(fit, 0) | racks
        by_number = list(self._table.by_rack.values())
        for fit in sorted(found):
            for number in bits(found[fit]):
                yield by_number[number]

    def _bring_up_to_date(self, levels: Sequence[int]) -> None:
        now = [level & self._nodes for level in levels]
        if len(self._levels) == len(now):
            changed = 0
            for old, new in zip(self._levels, now, strict=True):
                changed |= old ^ new
            touched = {self._table.rack_of[i] for i in bits(changed)}
        else:
            touched = set(self._table.by_rack)
        self._levels = now
        for name in touched:
            rack = self._table.by_rack[name]
            self._note(self._racks[name], tuple([(level & rack).bit_count() for level in now]))

    def _note(self, number: int, profile: Profile) -> None:
        bit, before = 1 << number, self._of_rack[number]
        self._alike[before] ^= bit
        if not self._alike[before]:
            del self._alike[before]
        self._alike[profile] = self._alike.get(profile, 0) | bit
        self._of_rack[number] = profile


def _fit(profile: Profile, gpus: int, step: int) -> tuple[int, int] | None:
    """How many nodes the job would take, and how many GPUs the rack has for it; None if too few."""
    free, left, count = 0, gpus, 0
    for k in range(len(profile) - 1, step - 1, -1):
        there = profile[k]
        if there:
            whole = k - k % step
            free += there * whole
            if left > 0:
                used = min(there, -(-left // whole))
                count += used
                left -= used * whole
    return (count, free) if left <= 0 else None
