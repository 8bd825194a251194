"""Is a change worth its cost? Restart time and lost work against speed gained over a horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """How changes are charged."""

    enabled: bool = True
    """False carries out whatever the policy says: for parity with schedulers that do not weigh."""
    charge: float = 2.0
    """Restarts charged per change: one to make it, one because it will be undone some day."""
    horizon_restarts: float = 20.0
    """A change has this many restart times to pay for itself, …"""
    least_horizon_s: float = 600.0
    """… but at least this long."""
    growth: bool = True
    """False where the policy itself charges growth its restart; then the sizes that it chose stand."""
    freeze_transitions: bool = True
    """A job that is just starting or resizing is left alone, so that it is not restarted for ever."""


class Worth(tuple[float, float]):
    """What a change gains and what it costs, in seconds of work on one GPU."""

    __slots__ = ()

    @property
    def gain_s(self) -> float:
        return self[0]

    @property
    def cost_s(self) -> float:
        return self[1]

    @property
    def pays(self) -> bool:
        return self[0] > self[1]


def worth_of_change(
    speed_before: float,
    speed_after: float,
    remaining_s: float,
    restart_s: float,
    lost_work_s: float,
    costs: Costs,
) -> Worth:
    """Gain and cost of changing a running job's speed now."""
    horizon_s = max(costs.least_horizon_s, costs.horizon_restarts * restart_s)
    if speed_after > 0:
        horizon_s = min(horizon_s, remaining_s / speed_after + restart_s)
    gain_s = (speed_after - speed_before) * horizon_s
    cost_s = costs.charge * restart_s * max(speed_before, speed_after) + lost_work_s
    return Worth((gain_s if math.isfinite(gain_s) else 0.0, cost_s))
