"""Keeps jobs out of the World until they have been tried out, and lets them in with what that showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.operator.gate import Gate, Passed, Waiting
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.request import Asked
from batuta.backends.kube.trial.desk import TrialDesk
from batuta.backends.kube.trial.trial import Trial
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import queue_of
from batuta.core.expected import SizeChoice
from batuta.core.job import Job
from batuta.core.reason import Reason
from batuta.core.trial_events import never_fits
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.trials.lesson import where_it_fits

_WORDS: Final = {"true": True, "false": False}
_SUSPENDED: Final = Waiting("Suspended", "it is suspended; it is tried out when it is resumed")


class TrialGate:
    """The gate before another one: whoever needs no trial, or has had it, goes on to that."""

    def __init__(
        self,
        desk: TrialDesk,
        inner: Gate,
        choose: Callable[[Job], SizeChoice | None],
        observed: Observed,
        world: World,
    ) -> None:
        """`choose`: the size for a job of whose trial nothing is known."""
        self._desk = desk
        self._inner = inner
        self._choose = choose
        self._observed = observed
        self._world = world

    def __call__(self, uj: UnifiedJob, asked: Asked, is_inside: bool) -> Passed:
        job = asked.job
        if job is None or asked.wish is Wish.CANCEL:
            return self._inner(uj, asked, is_inside)
        if not self._is_wanted(uj, job):
            self._desk.drop(uj)
            return self._inner(uj, asked, is_inside)
        trial = self._desk.trial_of(uj)
        if trial is not None and trial.verdict is not None:
            asked = replace(asked, job=where_it_fits(job, trial.measured))
        waiting = None if is_inside else self._why_not(uj, asked.wish, trial)
        return self._inner(uj, asked, is_inside) if waiting is None else Passed(Asked(None), waiting)

    def choose(self, job: Job) -> SizeChoice | None:
        """The size for a job whose user left it open, by its trial if it has one; None while that goes on."""
        uj = self._observed.unified_jobs.get(job.id)
        if uj is None or not self._is_wanted(uj, job):
            return self._choose(job)
        trial = self._desk.trial_of(uj)
        if trial is not None and trial.verdict is not None:
            lesson = trial.lesson
            return self._choose(job) if lesson is None or lesson.choice is None else lesson.choice
        return None if job.id not in self._world.jobs else self._choose(job)

    def _why_not(self, uj: UnifiedJob, wish: Wish, trial: Trial | None) -> Waiting | None:
        """Why a job has to wait; None when it need not."""
        if trial is None and wish is Wish.PARK:
            return _SUSPENDED
        if trial is None:
            self._desk.want(uj)
            return _said(Reason.IN_TRIAL, measured=0, sizes=0)
        done, sizes = len(trial.measured), trial.sizes
        if trial.verdict is None:
            return _said(Reason.IN_TRIAL, measured=done, sizes=len(sizes))
        if sizes and never_fits(trial.measured, sizes):
            return _said(Reason.OUT_OF_MEMORY, most=max(sizes))
        return None

    def _is_wanted(self, uj: UnifiedJob, job: Job) -> bool:
        """Whether a job is to be tried out first: as it says itself, else as its queue does."""
        if not self._desk.is_served or job.share is not None or self._desk.is_in_the_way(uj):
            return False
        if names.TRIAL_RUN in uj.metadata.labels:
            return False
        own = _WORDS.get(uj.metadata.annotations.get(names.TRIAL, ""))
        return self._world.quota.wants_trial(uj.metadata.namespace, queue_of(uj)) if own is None else own


def _said(reason: Reason, **numbers: int) -> Waiting:
    return Waiting(reason.name.title().replace("_", ""), reason.value.format(**numbers))
