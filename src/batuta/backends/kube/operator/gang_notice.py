"""Why a gang waits, as its pods say it: at once, and then not too often."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.operator.waiting_pods import shows, tell
from batuta.core.job import JobId

TELL_EVERY_S: Final = 30.0
PATIENCE_S: Final = 5.0
"""For so long nobody is told that members are missing: they are just being made."""


class GangNotice:
    """What one gang has to say. Methods that return a time may be called again then, to say the rest."""

    __slots__ = ("_job", "_missing_s", "_site", "_told_s", "_why", "refusal")

    def __init__(self, site: Site, job: JobId) -> None:
        self._site = site
        self._job = job
        self._why = ""
        self._told_s = -math.inf
        self._missing_s = math.inf
        """Since when members were missing first."""
        self.refusal = ""
        """Why it did not get its seats when it was tried last; empty since it did."""

    def set(self, why: str) -> bool:
        """Notes why it waits; whether that is news."""
        if self.refusal:
            why = f"{why}; when it was tried: {self.refusal}"
        is_news, self._why = why != self._why, why
        return is_news

    def drop(self) -> None:
        """There is nothing to be said; what comes next is said at once."""
        self._why, self._told_s = "", -math.inf

    def tell(self, pods: Iterable[objects.Pod], now_s: float) -> float:
        """Writes it on those of the pods that have no node."""
        told = [pod for pod in pods if not pod.spec.node_name and not shows(pod, self._why)]
        if not self._why or not told:
            return math.inf
        if now_s < self._told_s + TELL_EVERY_S:
            return self._told_s + TELL_EVERY_S
        self._told_s = now_s
        for pod in told:
            do = partial(tell, pod, self._why, now_s)
            self._site.writes.ask(f"{self._job}//waits/{pod.metadata.uid}", do, now_s)
        return math.inf

    def tell_missing(self, size: int | None, pods: Sequence[objects.Pod], now_s: float) -> float:
        """Says that members are missing, when they do not come soon."""
        self._missing_s = min(self._missing_s, now_s)
        if now_s < self._missing_s + PATIENCE_S:
            return self._missing_s + PATIENCE_S
        whole = f"of {size} pods" if size is not None else "pods of an unknown number"
        self._why = f"{len(pods)} {whole} of its gang are there; they start together"
        return self.tell(pods, now_s)
