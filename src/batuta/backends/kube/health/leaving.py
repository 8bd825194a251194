"""Jobs that leave because of health: from nodes that are out of service, and to begin again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from batuta.backends.kube.health.memory import Hit, Memory, Restart
from batuta.backends.kube.health.news import HealthNews
from batuta.backends.kube.health.tenants import Tenants, living_pods
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.health_record import BY_HEALTH, RestartJob
from batuta.core.job import JobId
from batuta.core.wish import Wish

_MOST_PODS: Final = 4
"""Remembered of a start: a restart ends them all."""
_LATEST_S: Final = 600.0
"""A restart that was not to be had for so long is none any more."""


class Leaving:
    """Says what jobs shall do; the World sees to it that they save their work and where they go."""

    def __init__(self, tenants: Tenants, say: Callable[[ev.Event], None], news: HealthNews) -> None:
        self._tenants = tenants
        self._say = say
        self._news = news
        self._sent: dict[JobId, Placement] = {}
        """Jobs that were sent away, and from where."""
        self._restarted: dict[JobId, Restart] = {}

    def note(self, memory: Memory, order: RestartJob, now_s: float) -> None:
        """A job is to begin again: stored with the book, so that it is neither forgotten nor done twice.

        One that was restarted often enough has to help itself: it would never get anywhere.
        """
        run = self._tenants.movable(order.job)
        if run is None or order.job in memory.restarts:
            return
        record = memory.book.records.get(order.target)
        if record is None or not record.held:  # else it is the hardware's fault, however often it happens
            before = memory.restarted.get(order.job, [])
            if len(before) >= memory.book.rules.limits.restarts:
                return
            memory.restarted[order.job] = [*before, now_s]
        memory.hits[order.job] = Hit(now_s, order.reason)
        if pods := living_pods(run, _MOST_PODS):
            memory.restarts[order.job] = Restart(pods, now_s, order.reason)

    def forget_done(self, memory: Memory, now_s: float) -> None:
        """Restarts are done when the pods are gone that were hit; what hit whom is no excuse for ever."""
        horizon_s = now_s - memory.book.rules.limits.within_s
        recent = {
            job: [time_s for time_s in times if time_s >= horizon_s]
            for job, times in memory.restarted.items()
        }
        memory.restarted = {job: times for job, times in recent.items() if times}
        memory.hits = {job: hit for job, hit in memory.hits.items() if now_s < hit.heard_s + _LATEST_S}
        for job, restart in list(memory.restarts.items()):
            if not self._is_due(job, restart) or now_s > restart.asked_s + _LATEST_S:
                del memory.restarts[job]
                self._restarted.pop(job, None)

    def _is_due(self, job: JobId, restart: Restart) -> bool:
        """Whether pods go on that are to be replaced."""
        run = self._tenants.movable(job)
        return run is not None and not set(restart.pods).isdisjoint(living_pods(run, len(run.pods())))

    def drive(self, memory: Memory, shut: Collection[NodeName], now_s: float) -> bool:
        """Sends jobs off; whether nobody is waited for. `shut`: nodes that nobody is sent to any more."""
        leaving = {run.id: run.wanted for run in self._tenants.on_nodes(shut)} if shut else {}
        for job, placement in leaving.items():
            if placement is not None and self._sent.get(job) != placement:
                self._sent[job] = placement
                self._say(ev.JobWished(now_s, job, Wish.EVICT, cause=BY_HEALTH))
        self._sent = {job: placement for job, placement in self._sent.items() if job in leaving}
        for job, restart in memory.restarts.items():
            if job in leaving or self._restarted.get(job) == restart:
                continue
            if self._is_due(job, restart):
                self._restarted[job] = restart
                self._restart(job, restart, now_s)
        return not leaving and not memory.restarts

    def _restart(self, job: JobId, restart: Restart, now_s: float) -> None:
        run = self._tenants.movable(job)
        if run is None:
            return
        self._say(ev.JobWished(now_s, job, Wish.EVICT, cause=BY_HEALTH))
        for pod in list(run.pods().values())[:1]:
            self._news.restarts(pod, restart.reason, now_s)
