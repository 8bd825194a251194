"""What the side that talks to the API server tells the engine's side."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.known import Change


@dataclass(frozen=True, slots=True)
class Changed:
    """Objects of one kind came, changed or went."""

    kind: Kind[Any]
    changes: Sequence[Change[Any]]


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a write; `error` is None when it was done."""

    key: str
    error: ApiError | None


Message: TypeAlias = Changed | Written | None
"""None: wake up, there is something else to do."""

GATHER_S = 0.005
"""News rarely comes alone: hundreds of pods get their nodes each second. Taken together it costs far less."""


class Inbox:
    """Messages in the order in which they were put in. Any thread may put, one takes."""

    def __init__(self, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        self._queue.put(message)

    def take(self, timeout_s: float) -> list[Message]:
        """Everything that is there. If nothing is, waits for the first and a moment for what follows it."""
        taken: list[Message] = []
        if timeout_s > 0 and self._queue.empty():
            try:
                taken.append(self._queue.get(timeout=timeout_s))
            except queue.Empty:
                return taken
            time.sleep(self._gather_s)
        try:
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            return taken
