"""Optimus as the authors of Pollux ran it, to reproduce their published averages to the digit.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys '18,
section 4.1; run with true step times by Qiao et al., OSDI '21, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.optimus import grow_by_time_saved


@dataclass(frozen=True, slots=True)
class OptimusReplay:
    """As `optimus`, with true step times and the placement of the published runs."""

    name: str = "optimus-replay"
    placement: ClassVar[str] = "most-free-by-size"
    knowledge: ClassVar[str] = "optimus"

    def allocate(self, view: PoolView) -> IntArray:
        return grow_by_time_saved(view)
