"""The placer for policies that give parts of a node that double, and whole nodes: every job lies tight.

Whole nodes first, from empty ones; where none is empty, the one with the fewest small jobs is cleared.
Then the parts, each on the fullest node that has room. So no job spans more nodes than it must, and few move.
What it does not know how to do, it leaves to the topology-aware placer: wishes, racks, shares, broken jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from batuta.core.arrays import bits
from batuta.core.cluster import Placement, Span
from batuta.core.eligibility import in_motion_or_left_alone
from batuta.core.job import ANYWHERE, NO_RESTART_S, Job, JobId
from batuta.core.placer import EVERYWHERE, Move, Placed, Target
from batuta.core.reason import Evidence, Reason
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement.attempt import PlacerOptions
from batuta.placement.cluster_state import ClusterState
from batuta.placement.defragmentation import evidence_of
from batuta.placement.placer import TopologyPlacer

Part = tuple[int, int]  # minus the GPUs of a part, so that a heap has the largest first, and the row it is for


@dataclass(frozen=True, slots=True)
class WholeNodePlacer:
    """Tight placements without gaps, for jobs that ask for nothing but GPUs."""

    options: PlacerOptions = field(default_factory=PlacerOptions)

    def place(
        self,
        world: World,
        now_s: float,
        targets: Sequence[Target],
        costs: Costs,
        within: Mapping[JobId, int] = EVERYWHERE,
    ) -> Placed:
        jobs = world.jobs
        width = max(world.nodes.by_size, default=0)
        is_plain = not within and not jobs.broken and len(world.nodes.by_rack) < 2
        is_plain = is_plain and all(_is_plain(jobs.jobs[target.row], width) for target in targets)
        placed = _Tight(world, now_s, targets, costs).place() if is_plain else None
        return placed or TopologyPlacer(self.options).place(world, now_s, targets, costs, within)


def _is_plain(job: Job, width: int) -> bool:
    """Whether the job wants nothing but GPUs, in replicas that fill nodes of this width."""
    return (
        job.share is None
        and not job.cpu_only
        and width % job.gpus_per_replica == 0
        and job.topology == ANYWHERE
        and not (job.cpus_milli_per_gpu or job.memory_mib_per_gpu or job.node_labels or job.node_terms)
    )


class _Tight:
    """One attempt. It gives up as a whole: half a tight placement is none."""

    def __init__(self, world: World, now_s: float, targets: Sequence[Target], costs: Costs) -> None:
        self.world, self.targets, self.costs = world, targets, costs
        self.room = ClusterState.of(world)
        self.width = max(world.nodes.by_size, default=0)
        self.full = world.nodes.by_size.get(self.width, 0)
        self.spans: dict[int, list[Span]] = {}
        self.moved: set[int] = set()
        self.kinds = {target.row: target.gpu_type for target in targets}
        self._small: dict[int, list[int]] | None = None
        self.fixed = in_motion_or_left_alone(world.jobs, now_s) if costs.freeze_transitions else None

    def place(self) -> Placed | None:
        jobs, room = self.world.jobs, self.room
        for target in self.targets:
            held = jobs.placements[target.row]
            if held is not None:
                room.vacate(held, jobs.jobs[target.row])
        wanted = sorted((t for t in self.targets if t.gpus), key=lambda t: (-t.gpus, t.row))
        parts: list[Part] = []
        for target in wanted:
            nodes, rest = divmod(target.gpus, self.width)
            self.spans[target.row] = []
            if not all(self._whole_node(target.row, parts) for _ in range(nodes)):
                return None
            if rest:
                heappush(parts, (-rest, target.row))
        while parts:
            rest, row = heappop(parts)
            if not self._part(row, -rest, parts):
                return None
        placements = {row: Placement(tuple(spans)) for row, spans in self.spans.items()}
        moved = sorted(self.moved)
        moves = {row: Move(placements.pop(row), Reason.MADE_ROOM, self._evidence(row)) for row in moved}
        return Placed(placements, {}, moves, room.layout)

    def _evidence(self, row: int) -> Evidence:
        """In seconds on one GPU: what a cleared node can do while the move pays, and what the move loses."""
        gain_s = self.costs.least_horizon_s * self.width
        cost_s = self.costs.charge * float(self.world.jobs.restart_s[row]) * self._size(row)
        return evidence_of(gain_s, cost_s)

    def _whole_node(self, row: int, parts: list[Part]) -> bool:
        job = self.world.jobs.jobs[row]
        suited = self.room.suited(job, self.kinds[row]) & self.full
        empty = self.room.layout.buckets[self.width] & suited
        if not empty:
            i = self._to_clear(suited)
            if i is None:
                return False
            for other in self._small_jobs().pop(i):
                self._evict(other, parts)
            empty = 1 << i
        own = empty & self._held(row)
        self._take(row, _lowest(own or empty), self.width)
        return True

    def _part(self, row: int, gpus: int, parts: list[Part]) -> bool:
        """Takes a part of a node: the fullest one that has room; else one small job makes way."""
        job, room = self.world.jobs.jobs[row], self.room
        suited, held = room.suited(job, self.kinds[row]), self._held(row)
        for free in range(gpus, self.width + 1):
            nodes = room.layout.buckets[free] & suited if free < len(room.layout.buckets) else 0
            if nodes:
                self._take(row, _lowest(nodes & held or nodes), gpus)
                return True
        for free in range(gpus - 1, 0, -1):
            for i in bits(room.layout.buckets[free] & suited):
                others = [other for other in self._small_jobs().get(i, ()) if gpus - free <= self._size(other) < gpus]
                if others:
                    other = min(others, key=lambda other: (self._size(other), other))
                    self._small_jobs()[i].remove(other)
                    self._evict(other, parts)
                    self._take(row, i, gpus)
                    return True
        return False

    def _take(self, row: int, i: int, gpus: int) -> None:
        self.spans[row].append(self.room.take(i, gpus, self.world.jobs.jobs[row]))

    def _evict(self, row: int, parts: list[Part]) -> None:
        jobs = self.world.jobs
        held = jobs.placements[row]
        assert held is not None
        self.room.vacate(held, jobs.jobs[row])
        self.spans[row], self.kinds[row] = [], int(jobs.gpu_type[row])
        self.moved.add(row)
        heappush(parts, (-held.size, row))

    def _size(self, row: int) -> int:
        return int(self.world.jobs.held[row])

    def _held(self, row: int) -> int:
        held = self.world.jobs.placements[row]
        return 0 if held is None else sum(1 << self.world.nodes.index[name] for name in held.nodes)

    def _to_clear(self, nodes: int) -> int | None:
        """The node with the fewest small jobs, then with the fewest GPUs in use, that can be cleared."""
        free = self.room.layout.free
        found: list[tuple[int, int, int]] = []
        for i, rows in self._small_jobs().items():
            used = sum(map(self._size, rows))
            if nodes >> i & 1 and rows and free[i].bit_count() + used == self.width:
                found.append((len(rows), used, i))
        return min(found)[2] if found else None

    def _small_jobs(self) -> dict[int, list[int]]:
        """By node: jobs that stay, lie there alone and could lie elsewhere."""
        if self._small is None:
            self._small = {}
            for row, i in self._movable():
                self._small.setdefault(i, []).append(row)
        return self._small

    def _movable(self) -> Iterator[tuple[int, int]]:
        jobs, index = self.world.jobs, self.world.nodes.index
        targets, restart_s = {target.row for target in self.targets}, jobs.restart_s
        for row, held in enumerate(jobs.placements):
            if held is None or row in targets or len(held.spans) != 1 or held.size >= self.width:
                continue
            if self.fixed is not None and self.fixed[row]:
                continue
            job = jobs.jobs[row]
            if restart_s[row] < NO_RESTART_S and job.id not in jobs.unsaved and _is_plain(job, self.width):
                yield row, index[held.spans[0].node]


def _lowest(nodes: int) -> int:
    return (nodes & -nodes).bit_length() - 1
