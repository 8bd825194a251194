"""A policy that does as it is told: for tests of everything around policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from batuta.core.admission import Admission, AdmitAll
from batuta.core.arrays import IntArray
from batuta.core.decide import SchedulerProfile
from batuta.core.job import JobId
from batuta.core.policy import PLAIN, PolicyTraits
from batuta.core.view import PoolView
from batuta.core.weigh import Costs
from batuta.placement.placer import TopologyPlacer


@dataclass(frozen=True)
class Fixed:
    """Gives each job the count that is written down for it, and nothing to others; keeps what it saw."""

    gpus: Mapping[JobId, int]
    name: str = "fixed"
    traits: PolicyTraits = PLAIN
    seen: list[PoolView] = field(default_factory=list)

    def allocate(self, view: PoolView) -> IntArray:
        self.seen.append(view)
        return np.array([self.gpus.get(job, 0) for job in view.ids], dtype=np.int64)


def rules_that_give(costs: Costs | None = None, admission: Admission | None = None, /, **gpus: int) -> SchedulerProfile:
    """The rules of a scheduler that wants exactly this, and weighs as usual."""
    return SchedulerProfile(Fixed(gpus), TopologyPlacer(), admission or AdmitAll(), costs or Costs())
