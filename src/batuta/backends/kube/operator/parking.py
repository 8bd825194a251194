"""Jobs that the World has parked because they left their GPUs idle: their objects say so too.

A UnifiedJob that waits without `suspend` would be started again by the next operator, and its user had
nothing to change to let it go on.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.operator.writes import Writes
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import JobId
from batuta.core.reason import Evidence
from batuta.core.world import World

KEY: Final = "park/"


class ParkingDesk:
    """Suspends each job once when it is parked; whoever resumes it is heeded. For the engine's thread."""

    def __init__(self, world: World, observed: Observed, writes: Writes) -> None:
        self._world = world
        self._observed = observed
        self._writes = writes
        self._done: dict[JobId, Evidence] = self._parked()
        """What was parked under an operator before this one is not parked again: somebody may want it."""

    def take(self, changed: Changed, now_s: float) -> None:
        """What is parked is known from the World."""

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(KEY) and written.error is not None:
            self._done.pop(written.key.removeprefix(KEY), None)

    def drive(self, now_s: float) -> None:
        parked = self._parked()
        for job in [job for job in self._done if job not in parked]:
            del self._done[job]
        for job, why in parked.items():
            uj = self._observed.unified_jobs.get(job)
            if self._done.get(job) == why or uj is None:
                continue
            if uj.spec.suspend or self._writes.ask(f"{KEY}{job}", partial(_suspend, uj), now_s):
                self._done[job] = why

    def next_s(self) -> float:
        return math.inf

    def _parked(self) -> dict[JobId, Evidence]:
        return {job: idle.parked for job, idle in self._world.idle.items() if idle.parked}


async def _suspend(uj: UnifiedJob, api: Api) -> None:
    """With its uid, because another job may have the name by now."""
    meta = uj.metadata
    body = {"metadata": {"uid": meta.uid}, "spec": {"suspend": True}}
    try:
        await api.patch(UNIFIED_JOB, meta.name, body, meta.namespace)
    except NotFound:
        return
