"""Which GPUs: topology, packing, sharing, migration."""

from batuta.placement.attempt import PlacerOptions
from batuta.placement.most_free import MostFreePlacer
from batuta.placement.placer import TopologyPlacer
from batuta.placement.whole_nodes import WholeNodePlacer

__all__ = ["MostFreePlacer", "PlacerOptions", "TopologyPlacer", "WholeNodePlacer"]
