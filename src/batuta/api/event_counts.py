"""How often what has happened since the server started, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from batuta.core.event import Event, TransitionTimed
from batuta.store.codec import EVENT_TYPES

STEPS = ("checkpoint", "stop", "start")
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class EventCounts:
    """Events by type, and the times of the steps of transitions."""

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter(dict.fromkeys(EVENT_TYPES, 0))
        self.buckets = {step: [0] * (len(BUCKETS_S) + 1) for step in STEPS}
        self.total_s = dict.fromkeys(STEPS, 0.0)

    def count(self, event: Event) -> None:
        self.by_type[type(event).__name__] += 1
        if isinstance(event, TransitionTimed):
            for step in STEPS:
                seconds: float | None = getattr(event, f"{step}_s")
                if seconds is not None:
                    self.buckets[step][bisect_left(BUCKETS_S, seconds)] += 1
                    self.total_s[step] += seconds
