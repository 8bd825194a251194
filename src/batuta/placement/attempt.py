"""The answer of a placer while it is being made, and why a job could not be placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId, Spread
from batuta.core.node_table import NodeTable
from batuta.core.placer import EVERYWHERE, Failure, Move, Placed, Target
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.core.world import World, speed_at
from batuta.placement.cluster_state import ClusterState
from batuta.placement.packing import most
from batuta.placement.utilisation import BUSIEST


@dataclass(frozen=True, slots=True)
class PlacerOptions:
    """What a placer may do beyond placing what changes. Each number bounds the work of one cycle.

    Every placer takes them and heeds those about shares; the rest is for the one that moves running jobs.
    """

    repack: Literal["when-needed", "never"] = "when-needed"
    """Whether many jobs may be moved at once for one that fits nowhere."""
    shares: Literal["bin-pack", "spread"] = "bin-pack"
    """Whether shares of GPUs go to the fullest card with room, or to the emptiest."""
    busiest: float = BUSIEST
    """A card gets no further sharer, while there is another place, if it would be busier than this."""
    moves: int = 8
    """Running jobs that are brought closer together in one cycle."""
    tries: int = 32
    """Running jobs that are looked at for that."""
    rescues: int = 4
    """Jobs for which others are moved in one cycle."""
    repack_nodes: int = 64
    """Nodes that are repacked at once: those with the most free GPUs."""
    scattered: float = 1.0
    """The speed factor of a job on more nodes than it needs, when its curve does not say; 1 is no loss."""

    def room(self, world: World, within: Mapping[JobId, int] = EVERYWHERE) -> ClusterState:
        """What there is to place on, with shares of GPUs treated as these options say."""
        return ClusterState.of(world, within, busiest=self.busiest, spreads=self.shares == "spread")


@dataclass(slots=True)
class PlacementAttempt:
    """What has been decided so far, and the room that is left."""

    world: World
    now_s: float
    costs: Costs
    options: PlacerOptions
    room: ClusterState
    targets: Sequence[Target] = ()
    placements: dict[int, Placement] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    moves: dict[int, Move] = field(default_factory=dict)

    def done(self) -> Placed:
        return Placed(self.placements, self.failures, self.moves, self.room.layout)

    def minds_spread(self, job: Job) -> bool:
        """Whether it matters to the job how many nodes or racks it lies on."""
        curve = job.curve
        return curve.minds_spread or self.options.scattered < 1.0 or job.topology.within is not Spread.ANY

    def speed(self, job: Job, placement: Placement) -> float:
        """Predicted speed on these GPUs; a job on needlessly many nodes is taken to be slower."""
        speed = speed_at(self.world, job, placement)
        if self.options.scattered < 1.0 and job.curve.across_nodes == 1.0 and len(placement.spans) > 1:
            table = self.room.table
            kind = table.type_of[table.index[placement.spans[0].node]]
            if len(placement.nodes) > self.fewest_nodes(job, placement.size, kind):
                speed *= self.options.scattered
        return speed

    def fewest_nodes(self, job: Job, gpus: int, gpu_type: int) -> int:
        """On how few nodes the job could lie if they were all free."""
        widest = self.room.widest(self.room.suited(job, gpu_type))
        whole = widest - widest % job.gpus_per_replica
        return -(-gpus // whole) if whole else 1

    def is_tight(self, job: Job, placement: Placement) -> bool:
        """Whether no place on the cluster could be closer together, as far as a quick look can tell."""
        table = self.room.table
        fewest = -(-placement.size // table.largest)
        return len(placement.spans) <= fewest and (len(table.by_rack) < 2 or table.racks(placement) < 2)

    def closer(self, job: Job, first: Placement, second: Placement) -> bool:
        """Whether the first place suits the job better: by what it prefers, then by speed."""
        table = self.room.table
        unmet = _unmet(table, job, second) - _unmet(table, job, first)
        return unmet > 0 or (unmet == 0 and self.speed(job, first) > self.speed(job, second) * (1 + 1e-9))


def _unmet(table: NodeTable, job: Job, placement: Placement) -> bool:
    """Whether the place is wider than the job wants."""
    if job.topology.within is Spread.NODE:
        return len(placement.nodes) > 1
    return job.topology.within is Spread.RACK and table.racks(placement) > 1


ARRANGEMENT = (Reason.FRAGMENTED, Reason.TOPOLOGY_UNMET)
"""Enough GPUs are free, but not in the right places: moving other jobs may help."""


def why(room: ClusterState, job: Job, needs: int, gpu_type: int, held: int = 0) -> Failure:
    """The first thing that stands in the way of `needs` GPUs for a job that holds `held` of them."""
    table, extra = room.table, needs - held
    if not table.by_type[gpu_type] & table.matching(job):
        return Failure(Reason.NO_MATCHING_NODE, ())
    nodes = room.suited(job, gpu_type)
    capacity, free = room.total(nodes), room.layout.free_gpus(nodes)
    if needs > capacity and not held:
        return Failure(Reason.EXCEEDS_CLUSTER, (("needs", needs), ("capacity", capacity)))
    if extra > free:
        numbers = (("needs", extra), ("free", free), ("capacity", capacity))
        return Failure(Reason.WAITING_FOR_GPUS, numbers)
    bare = replace(job, cpus_milli_per_gpu=0, memory_mib_per_gpu=0)
    best = most(room, bare, nodes)
    if best >= extra and bare != job:
        return Failure(Reason.SHORT_OF_CPU_OR_MEMORY, (("needs", extra), ("free", free)))
    topology = job.topology
    if topology.single_numa or (topology.required and topology.within is not Spread.ANY):
        return Failure(Reason.TOPOLOGY_UNMET, (("needs", needs), ("best", best)))
    return Failure(Reason.FRAGMENTED, (("needs", extra), ("free", free)))
