"""Seats wherever the binder finds them, for the pods of a gang that the World does not plan for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.run import Party, Seat, Site
from batuta.core.job import JobId

BEFORE_ALL: Final = 2**31
"""A priority that no pod can have."""


class OpenSeats:
    """One gang's. While a part of it is bound it goes before all others, and keeps what becomes free.

    When an operator is killed, there is room for all that it was binding; so one of the gangs that are partly
    bound can always be made whole, and they never wait for each other in a circle.
    """

    __slots__ = ("_backoff_s", "_job", "_partly_s", "_site", "not_before_s")

    def __init__(self, site: Site, job: JobId) -> None:
        self._site = site
        self._job = job
        self._backoff_s = 0.0
        self._partly_s: float | None = None
        """Since when only a part of it has seats."""
        self.not_before_s = 0.0
        """After a refusal: until then it is no use to ask again."""

    @property
    def is_partly_bound(self) -> bool:
        """Whether a part of it holds GPUs and waits for the others."""
        return self._partly_s is not None

    def note_partly_bound(self, is_partly: bool, now_s: float) -> None:
        if not is_partly:
            self._partly_s = None
        elif self._partly_s is None:
            self._partly_s = now_s

    def back_off(self, now_s: float) -> None:
        """It was refused: each time it waits longer."""
        timing = self._site.timing
        self._backoff_s = min(max(self._backoff_s * 2, timing.backoff_s), timing.longest_backoff_s)
        self.not_before_s = now_s + self._backoff_s

    def forget_refusals(self) -> None:
        """All have their seats."""
        self._backoff_s = self.not_before_s = 0.0

    def ask(self, key: str, pods: Iterable[objects.Pod], now_s: float) -> float:
        """Asks for seats for those that have no node, together; if it is too soon, when to ask again."""
        waiting = tuple(Seat(pod, None) for pod in pods if not pod.spec.node_name)
        if not waiting:
            return math.inf
        if now_s < self.not_before_s:
            return self.not_before_s
        first = waiting[0].pod
        priority, keeps_until_s = first.spec.priority, 0.0
        if self._partly_s is not None:
            priority, keeps_until_s = BEFORE_ALL, self._partly_s + self._site.timing.gang_timeout_s
        since_s = seconds(first.metadata.creation_timestamp)
        self._site.seat(Party(key, self._job, waiting, priority, since_s, keeps_until_s))
        return math.inf
