"""Optimus as the authors of Pollux ran it, to reproduce their published averages to the digit.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys '18,
section 4.1; run with true step times by Qiao et al., OSDI '21, section 5.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.ladder import Steps


@dataclass(frozen=True, slots=True)
class OptimusReplay:
    """`min` to each in submit order, then one step at a time to whoever saves most time by it."""

    name: str = "optimus-replay"
    placement: ClassVar[str] = "most-free-by-size"
    knowledge: ClassVar[str] = "optimus"

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.min, view.capacity)
        left = view.capacity - int(gpus.sum())
        have: list[int] = gpus.tolist()
        remaining_s: list[float] = view.remaining_s.tolist()
        steps = Steps(view)

        def offer(row: int) -> tuple[float, int] | None:
            """What the next step saves, per GPU, as (−seconds, row): of equal ones the earlier job wins."""
            up = steps.after(row, have[row])
            if not up:
                return None
            now, more = steps.speed(row, have[row]), steps.speed(row, up)
            saved = (1 / now if now > 0 else math.inf) - (1 / more if more > 0 else math.inf)
            gain = saved * remaining_s[row] / (up - have[row])
            return (-gain, row) if gain > 0 else None

        offers = [found for row, n in enumerate(have) if n and (found := offer(row))] if left else []
        heapq.heapify(offers)
        while left and offers:
            row = offers[0][1]
            up = steps.after(row, have[row])
            if up - have[row] > left:
                heapq.heappop(offers)
                continue
            left -= up - have[row]
            have[row] = up
            again = offer(row)
            if again:
                heapq.heapreplace(offers, again)
            else:
                heapq.heappop(offers)
        return np.array(have, dtype=np.int64)
