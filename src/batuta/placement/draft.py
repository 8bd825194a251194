"""The answer of a placer while it is being written, and how good a place is for a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from batuta.core.cluster import Placement
from batuta.core.job import Job, Spread
from batuta.core.node_table import NodeTable
from batuta.core.placer import Failure, Move, Placed, Target
from batuta.core.weigh import Costs
from batuta.core.world import World, speed_at
from batuta.placement.busy_cards import BUSIEST
from batuta.placement.room import Room


@dataclass(frozen=True, slots=True)
class PlacerOptions:
    """What a placer may do beyond placing what changes. Each number bounds the work of one cycle."""

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


@dataclass(slots=True)
class Draft:
    """What has been decided so far, and the room that is left."""

    world: World
    now_s: float
    costs: Costs
    options: PlacerOptions
    room: Room
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
