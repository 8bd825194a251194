"""How often what has happened since the server started, for metrics."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter

from batuta.api.event_text import Told
from batuta.store.codec import EVENT_TYPES

STEPS = ("checkpoint", "stop", "start")
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class EventCounts:
    """Events by type, and the times of the steps of transitions."""

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter(dict.fromkeys(EVENT_TYPES, 0))
        self.buckets = {step: [0] * (len(BUCKETS_S) + 1) for step in STEPS}
        self.total_s = dict.fromkeys(STEPS, 0.0)

    def count(self, told: Told) -> None:
        if told.type in self.by_type:
            self.by_type[told.type] += 1
        if told.type == "TransitionTimed":
            event = json.loads(told.data)
            for step in STEPS:
                seconds = event.get(f"{step}_s")
                if isinstance(seconds, int | float):
                    self.buckets[step][bisect_left(BUCKETS_S, seconds)] += 1
                    self.total_s[step] += seconds
