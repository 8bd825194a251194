"""How often jobs of each queue were given GPUs, and lost them, since the server started."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from batuta.api.event_text import Told


class QueueCounts:
    """By queue; told of events in their order."""

    def __init__(self, queue_of: Callable[[str], str]) -> None:
        self._queue_of = queue_of
        """By a job's id; empty when it is not known any more."""
        self.admitted: Counter[str] = Counter()
        self.preempted: Counter[tuple[str, str]] = Counter()
        """By queue and reason."""

    def count(self, told: Told) -> None:
        if told.type != "Planned":
            return
        for command in json.loads(told.data)["commands"]:
            if command["type"] == "Start":
                self.admitted[self._queue_of(command["job"])] += 1
            elif command["type"] == "Preempt":
                self.preempted[self._queue_of(command["job"]), command["reason"]] += 1
