"""Batuta decides, and shows its jobs as Workloads, so that tools made for Kueue see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.kueue.admission import FINISHED
from batuta.backends.kube.kueue.condition import Said, conditions, is_true, truths
from batuta.backends.kube.kueue.kinds import WORKLOAD, Setting
from batuta.backends.kube.kueue.owners import owner_of_gang
from batuta.backends.kube.kueue.standing import Standing
from batuta.backends.kube.kueue.workload import Asking, asked_by_gang, asked_by_unified_job
from batuta.backends.kube.kueue.workload_book import WorkloadBook
from batuta.backends.kube.operator.gang_run import GangRun
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Run
from batuta.backends.kube.operator.unified_run import UnifiedRun
from batuta.core.job import JobId, JobState

REWORD_S: Final = 15.0
"""A status is not written sooner than this for other numbers in its sentences alone."""


@dataclass(slots=True)
class _Shown:
    """One job and its Workload."""

    standing: Standing
    asking: Asking | None = None
    made_of: object = None
    """What `asking` was made of: it is made anew when that is another."""
    end: tuple[JobState, str] | None = None
    written_s: float = -math.inf


class ShownDesk:
    """Told how jobs stand after each decision. For the engine's thread."""

    def __init__(self, book: WorkloadBook, runs: Mapping[JobId, Run], observed: Observed) -> None:
        self._book = book
        self._runs = runs
        self._observed = observed
        self._jobs: dict[JobId, _Shown] = {}
        self._job_of: dict[str, JobId] = {}
        """By key of a Workload."""
        self._pending: dict[JobId, None] = {}
        self._later: dict[JobId, float] = {}
        """When other numbers may be written."""
        self._due_s = math.inf

    # --------------------------------------------------------------------------------------- what is told

    def note(self, standing: Standing) -> None:
        """How a job stands now."""
        job = standing.job.id
        shown = self._jobs.get(job)
        if shown is None:
            self._jobs[job] = _Shown(standing)
        elif shown.standing == standing:
            return
        else:
            shown.standing = standing
        self._pending[job] = None

    def ended(self, job: JobId, state: JobState, detail: str) -> None:
        """A job is over."""
        shown = self._jobs.get(job)
        if shown is not None:
            shown.end = state, detail
            self._pending[job] = None

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is not WORKLOAD:
            return
        for key in self._book.take(changed):
            if key in self._job_of:
                self._pending[self._job_of[key]] = None
        if not changed.changes:
            self._pending.update(dict.fromkeys(self._jobs))

    def heard(self, written: Written, now_s: float) -> None:
        self._book.heard(written)

    # ------------------------------------------------------------------------------------------- its turn

    def next_s(self) -> float:
        return min(self._due_s, min(self._later.values(), default=math.inf))

    def drive(self, now_s: float) -> None:
        for job in [job for job, due_s in self._later.items() if due_s <= now_s]:
            del self._later[job]
            self._pending[job] = None
        if not self._pending or not self._book.is_served:
            return
        self._pending = {job: None for job in self._pending if not self._tend(job, now_s)}
        self._due_s = self._book.later_s(now_s)

    def _tend(self, job: JobId, now_s: float) -> bool:
        """Does the next thing for one job; whether nothing is left to do until something changes."""
        shown = self._jobs.get(job)
        if shown is None:
            return True
        if shown.end is None:
            self._ask_anew(job, shown)
        if shown.asking is None:
            self._forget(job, shown)
            return True
        self._job_of[shown.asking.key] = job
        there = self._book.shown.get(shown.asking.key)
        if shown.end is not None:
            return there is None or self._finish(job, shown, there, now_s)
        there = self._book.bring(shown.asking, now_s)
        return there is not None and self._write(job, shown, there, now_s)

    def _ask_anew(self, job: JobId, shown: _Shown) -> None:
        run = self._runs.get(job)
        if isinstance(run, UnifiedRun):
            made_of: object = (run.uj.metadata.uid, run.uj.metadata.generation, shown.standing.job)
            if made_of != shown.made_of:
                shown.made_of, shown.asking = made_of, asked_by_unified_job(run.uj, shown.standing.job)
        elif isinstance(run, GangRun) and shown.made_of != shown.standing.job:
            shown.made_of, shown.asking = shown.standing.job, self._asked_by(run, shown)

    def _asked_by(self, run: GangRun, shown: _Shown) -> Asking | None:
        """Only of pods that name a queue: of others nobody wants to know."""
        pods = list(run.pods().values())
        first = min(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), default=None)
        if first is None or not _names_queue(first.metadata):
            return None
        owner = owner_of_gang(run.id, first, self._observed)
        return None if owner is None else asked_by_gang(owner, first, shown.standing.job)

    def _write(self, job: JobId, shown: _Shown, there: Setting, now_s: float) -> bool:
        standing = shown.standing
        sets = tuple(one["name"] for one in shown.asking.pod_sets) if shown.asking is not None else ()
        admission = standing.admission(sets)
        known = there.status.get("conditions") or []
        listed = conditions(standing.statements(there.status), known, there.metadata.generation, now_s)
        status: dict[str, Any] = {"conditions": listed, "admission": admission}
        meaning = truths(listed), admission
        if (truths(known), there.status.get("admission")) == meaning:
            if _messages(known) == _messages(listed):
                return True
            if now_s < shown.written_s + REWORD_S:
                self._later[job] = shown.written_s + REWORD_S
                return True
        shown.written_s = now_s
        self._book.patch_status(there, status, (*meaning, _messages(listed)), now_s)
        return False

    def _finish(self, job: JobId, shown: _Shown, there: Setting, now_s: float) -> bool:
        if is_true(there.status, FINISHED):
            self._forget(job, shown)
            return True
        assert shown.end is not None
        state, detail = shown.end
        reason = "Succeeded" if state is JobState.SUCCEEDED else "Failed"
        said = Said(FINISHED, True, reason, detail or f"the job has {reason.lower()}")
        listed = conditions((said,), there.status.get("conditions") or [], there.metadata.generation, now_s)
        self._book.patch_status(there, {"conditions": listed}, ("finished", reason), now_s)
        return False

    def _forget(self, job: JobId, shown: _Shown) -> None:
        if shown.end is not None:
            del self._jobs[job]
            self._later.pop(job, None)
            if shown.asking is not None:
                self._job_of.pop(shown.asking.key, None)


def _names_queue(meta: objects.Meta) -> bool:
    return names.QUEUE_NAME in meta.labels or names.KUEUE_QUEUE_NAME in meta.labels


def _messages(listed: list[dict[str, Any]]) -> list[Any]:
    return sorted((str(one.get("type")), str(one.get("message") or "")) for one in listed)
