"""What the side that talks to the API server tells the engine's side."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.known import Change
from batuta.backends.kube.progress.heard import Heard


@dataclass(frozen=True, slots=True)
class Changed:
    """Objects of one kind came, changed or went."""

    kind: Kind[Any]
    changes: Sequence[Change[Any]]
    """Empty once: the cluster has this kind, and all that there was has been told."""
    version: str = ""
    """With it: the version in which the cluster has it."""


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a write; `error` is None when it was done."""

    key: str
    error: ApiError | None


Message: TypeAlias = Changed | Written | Heard | None
"""None: wake up, there is something else to do."""

GATHER_S = 0.005
"""News rarely comes alone: hundreds of pods get their nodes each second. Taken together it costs far less."""
REST_S = 0.2
"""News that can wait is taken no sooner than this after the last: thousands of pods begin one by one."""


class Inbox:
    """Messages in the order in which they were put in. Any thread may put, one takes."""

    def __init__(self, gather_s: float = GATHER_S, rest_s: float = REST_S) -> None:
        self._gather_s = gather_s
        self._rest_s = rest_s
        self._messages: list[Message] = []
        self._is_urgent = self._is_patient = False
        """Whether there are messages that cannot wait, and such that can."""
        self._rested_s = 0.0
        """From then on, messages that can wait are taken as well."""
        self._changed = threading.Condition(threading.Lock())

    def put(self, message: Message, *, urgent: bool = True) -> None:
        """Adds a message; one that is not urgent may lie for a moment, if others like it were just taken."""
        with self._changed:
            self._messages.append(message)
            is_first = not (self._is_urgent if urgent else self._is_patient)
            self._is_urgent |= urgent
            self._is_patient |= not urgent
            if is_first:
                self._changed.notify()

    def take(self, timeout_s: float) -> list[Message]:
        """Everything that is there. If nothing is, waits for the first and a moment for what follows it."""
        if self._waits(time.monotonic() + timeout_s):
            time.sleep(self._gather_s)
        with self._changed:
            taken, self._messages = self._messages, []
            if self._is_patient:
                self._rested_s = time.monotonic() + self._rest_s
            self._is_urgent = self._is_patient = False
        return taken

    def _waits(self, until_s: float) -> bool:
        """Waits until something is to be taken; whether it was not there yet and came."""
        has_waited = False
        with self._changed:
            while not self._is_urgent:
                left_s = min(until_s, self._rested_s if self._is_patient else until_s) - time.monotonic()
                if left_s <= 0:
                    break
                has_waited = True
                self._changed.wait(left_s)
            return has_waited and bool(self._messages)
