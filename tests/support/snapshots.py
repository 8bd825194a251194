"""Snapshots of Worlds, without an engine."""

from batuta.api.scheduler_counters import SchedulerCounters
from batuta.api.snapshot import SnapshotCache, WorldSnapshot
from batuta.core.plan import Plan
from batuta.core.world import World


class StillService:
    """As much of a service as a snapshot needs."""

    def __init__(self, world: World, plan: Plan | None = None) -> None:
        self.world = world
        self.plan = plan
        self.reads = 0

    def reading(self) -> "StillService":
        return self

    def __enter__(self) -> tuple[World, Plan | None]:
        self.reads += 1
        return self.world, self.plan

    def __exit__(self, *_: object) -> None:
        pass


def snapshots_of(world: World, plan: Plan | None = None, cycles: SchedulerCounters | None = None) -> SnapshotCache:
    return SnapshotCache(StillService(world, plan), cycles or SchedulerCounters())  # type: ignore[arg-type]


def snapshot_of(world: World, plan: Plan | None = None) -> WorldSnapshot:
    return snapshots_of(world, plan).take()
