"""A watcher of the engine's that does not care."""

from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World


class QuietWatcher:
    def saw(self, world: World, event: Event) -> None:
        pass

    def deciding(self) -> None:
        pass

    def decided(self, world: World, plan: Plan) -> None:
        pass

    def postponed(self, world: World) -> None:
        pass
