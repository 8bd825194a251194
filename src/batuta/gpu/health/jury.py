"""Judges findings for local mode: what goes into the book, whose job begins again, and who has an excuse."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from batuta.core.health_record import RestartJob
from batuta.core.health_rules import Action, Finding
from batuta.core.job import JobId
from batuta.gpu.health.memory import HealthMemory

_MOST_HITS: Final = 1_000
"""Jobs of which is remembered what hit them last."""
_log = logging.getLogger(__name__)


class Hit(NamedTuple):
    """What happened to a job."""

    time_s: float
    reason: str
    is_excused: bool
    """It was the hardware, or the job may be restarted for it once more."""


class Jury:
    """With the lock of whoever owns the memory."""

    def __init__(self) -> None:
        self._hits: dict[JobId, Hit] = {}

    def judge(self, memory: HealthMemory, finding: Finding) -> None:
        """Tells the book. Of its orders only restarts are noted: all else is done from the book."""
        verdict, orders = memory.book.verdict_on(finding), memory.book.found(finding)
        memory.found[finding.source, verdict.action] += 1
        is_hardware = verdict.action.takes_out
        if is_hardware or verdict.action is Action.RESTART_JOB:
            for job in finding.jobs:
                may = is_hardware or memory.may_restart(job, finding.time_s)
                self._hits[job] = Hit(finding.time_s, verdict.reason, may)
        for order in orders:
            if isinstance(order, RestartJob):
                if self._hits[order.job].is_excused:
                    memory.ordered.append((order, finding.time_s))
                else:
                    _log.warning("job %s is not restarted any more: %s", order.job, order.reason)
        for job in list(self._hits)[:-_MOST_HITS]:
            del self._hits[job]

    def excuse(self, job: JobId, since_s: float) -> str:
        """Why a job that has failed in a run since then is not to blame; empty: it is."""
        hit = self._hits.pop(job, None)
        return hit.reason if hit is not None and hit.is_excused and hit.time_s >= since_s else ""
