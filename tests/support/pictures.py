"""Pictures of Worlds, without an engine."""

from batuta.api.cycle_watch import CycleWatch
from batuta.api.picture import Picture, Pictures
from batuta.core.plan import Plan
from batuta.core.world import World


class StillService:
    """As much of a service as a picture needs."""

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


def pictures_of(world: World, plan: Plan | None = None, cycles: CycleWatch | None = None) -> Pictures:
    return Pictures(StillService(world, plan), cycles or CycleWatch())  # type: ignore[arg-type]


def picture_of(world: World, plan: Plan | None = None) -> Picture:
    return pictures_of(world, plan).take()
