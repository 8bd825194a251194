"""What local mode knows of its nodes that the World does not: where they are, how busy their GPUs are."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.backends.local.hosts import node_address
from batuta.core.cluster import NodeName
from batuta.core.world import World
from batuta.engine.usage_watch import UsageWatch


class Loopback:
    """The nodes of local mode have addresses on this machine, and GPUs that are looked at."""

    def __init__(self, world: World, usage: UsageWatch | None) -> None:
        self._world = world
        self._usage = usage

    def address(self, node: NodeName) -> str:
        return node_address(self._world.nodes.index[node])

    def utilisation(self, node: NodeName) -> Mapping[int, float]:
        return {} if self._usage is None else self._usage.latest(node)
