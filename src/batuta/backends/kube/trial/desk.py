"""All TrialRuns of a cluster, and the jobs that wait for one. For the engine's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, NotFound
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.backends.kube.client.known import Did
from batuta.backends.kube.jobtypes.pod_status import last_words
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.trial.model import TRIAL_RUN, TrialRun
from batuta.backends.kube.trial.run_manifest import owner_reference
from batuta.backends.kube.trial.trial import KEY, Bench, Trial
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import JobId

_NUMBERS: Final = ((names.TRIAL_BUDGET, "budgetSeconds"), (names.TRIAL_EACH, "eachSeconds"))


class TrialDesk:
    """Has trials carried out, and makes those that jobs wait for."""

    def __init__(self, bench: Bench, touch: Callable[[JobId], None]) -> None:
        """`touch`: has the floor look at a job again."""
        self.is_served = False
        """Whether the cluster knows TrialRuns."""
        self._bench = bench
        self._touch = touch
        self._trials: dict[str, Trial] = {}
        self._dirty: dict[str, None] = {}
        self._wanted: dict[JobId, UnifiedJob] = {}
        """Jobs that wait for a trial that is not there yet, …"""
        self._unwanted: dict[str, TrialRun] = {}
        """… and trials for which nobody waits any more."""

    # -------------------------------------------------------------------------------- for jobs that wait

    def trial_of(self, uj: UnifiedJob) -> Trial | None:
        """The trial that has been made for a job, or that somebody else has made of it under its name."""
        found = self._trials.get(uj.id)
        if found is None or found.run.metadata.deletion_timestamp:
            return None
        owners = {one.uid for one in found.run.metadata.owner_references}
        is_its_own = uj.metadata.uid in owners or (not owners and found.run.spec.job_name == uj.metadata.name)
        return found if is_its_own else None

    def is_in_the_way(self, uj: UnifiedJob) -> bool:
        """Whether there can be no trial of a job, for another one has its name and stays."""
        return uj.id in self._trials and self.trial_of(uj) is None and not self._is_left_over(uj)

    def _is_left_over(self, uj: UnifiedJob) -> bool:
        """Whether the trial of this name is that of a job before this one, which is gone, and goes too."""
        found = self._trials.get(uj.id)
        owners = () if found is None else found.run.metadata.owner_references
        return any(
            (one.kind, one.name) == (names.KIND, uj.metadata.name) and one.uid != uj.metadata.uid
            for one in owners
        )

    def want(self, uj: UnifiedJob) -> None:
        """A job waits for its trial."""
        self._wanted[uj.id] = uj
        if self._is_left_over(uj):
            self._unwanted[uj.id] = self._trials[uj.id].run

    def drop(self, uj: UnifiedJob) -> None:
        """A job does not wait for its trial any more: one that goes on has no use."""
        self._wanted.pop(uj.id, None)
        found = self.trial_of(uj)
        if found is not None and found.verdict is None and found.run.metadata.owner_references:
            self._unwanted[uj.id] = found.run

    # --------------------------------------------------------------------------------------- what comes in

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is TRIAL_RUN:
            self.is_served = True
            for change in changed.changes:
                self._note(change.object, is_gone=change.did is Did.DELETED)
        elif changed.kind is UNIFIED_JOB:
            for change in changed.changes:
                self._job(change.object)
        elif changed.kind is POD:
            for change in changed.changes:
                self._pod(change.object)
        elif changed.kind is NODE and self._trials:
            # Agents write on nodes how busy GPUs are.
            self._dirty.update(dict.fromkeys(key for key, one in self._trials.items() if one.verdict is None))

    def _note(self, run: TrialRun, *, is_gone: bool) -> None:
        known = self._trials.get(run.key)
        if is_gone:
            self._trials.pop(run.key, None)
            self._dirty.pop(run.key, None)
        else:
            if known is None or known.run.metadata.uid != run.metadata.uid:
                self._trials[run.key] = Trial(self._bench, run)
            else:
                known.run = run
            self._dirty[run.key] = None
        self._touch(run.key)

    def _job(self, uj: UnifiedJob) -> None:
        namespace, of = uj.metadata.namespace, uj.metadata.labels.get(names.TRIAL_RUN)
        for key in (uj.id, f"{namespace}/{of}" if of else ""):
            if key in self._trials:
                self._dirty[key] = None

    def _pod(self, pod: objects.Pod) -> None:
        if pod.status.phase != "Failed":
            return
        run = f"{pod.metadata.namespace}/{pod.metadata.labels.get(names.JOB_NAME, '')}"
        uj = self._bench.observed.unified_jobs.get(run)
        of = None if uj is None else uj.metadata.labels.get(names.TRIAL_RUN)
        trial = self._trials.get(f"{pod.metadata.namespace}/{of}")
        said = last_words(pod)
        if trial is not None and uj is not None and said:
            before = trial.last_words.get(uj.metadata.name, "")
            trial.last_words[uj.metadata.name] = said if said in before else f"{before}\n{said}"

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(KEY):
            self._dirty[written.key.removeprefix(KEY).partition("//")[0]] = None

    # -------------------------------------------------------------------------------------------- its turn

    def drive(self, now_s: float) -> None:
        due = (key for key, one in self._trials.items() if one.due_s <= now_s)
        turn, self._dirty = self._dirty | dict.fromkeys(due), {}
        for key in turn:
            trial = self._trials.get(key)
            if trial is not None:
                before = trial.verdict, len(trial.measured)
                if trial.drive(now_s):
                    self._dirty[key] = None
                if (trial.verdict, len(trial.measured)) != before:
                    self._touch(key)
        for job, uj in tuple(self._wanted.items()):
            self._bring(job, uj, now_s)
        for key, run in tuple(self._unwanted.items()):
            self._take_away(key, run, now_s)

    def next_s(self) -> float:
        return min((one.due_s for one in self._trials.values()), default=math.inf)

    def _bring(self, job: JobId, uj: UnifiedJob, now_s: float) -> None:
        now = self._bench.observed.unified_jobs.get(job)
        if job in self._trials or now is None or now.metadata.uid != uj.metadata.uid:
            del self._wanted[job]
        else:
            do = partial(_create, trial_manifest(now))
            self._bench.writes.ask(f"{KEY}{job}//make", do, now_s)

    def _take_away(self, key: str, run: TrialRun, now_s: float) -> None:
        known = self._trials.get(key)
        meta = None if known is None else known.run.metadata
        if meta is None or meta.uid != run.metadata.uid or meta.deletion_timestamp:
            del self._unwanted[key]
        else:
            self._bench.writes.ask(f"{KEY}{key}//unmake", partial(_delete, run), now_s)


def trial_manifest(uj: UnifiedJob) -> dict[str, Any]:
    """The TrialRun that a job waits for, which goes when the job does."""
    meta = uj.metadata
    spec: dict[str, Any] = {"jobName": meta.name}
    sizes = meta.annotations.get(names.TRIAL_SIZES, "").split(",")
    if all(one.strip().isascii() and one.strip().isdigit() for one in sizes):
        spec["sizes"] = sorted({int(one) for one in sizes})
    for key, field in _NUMBERS:
        text = meta.annotations.get(key, "")
        if text.isascii() and text.isdigit() and len(text) < 7:
            spec[field] = int(text)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRIAL_KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "ownerReferences": [owner_reference(names.KIND, meta.name, meta.uid)],
        },
        "spec": spec,
    }


async def _create(body: Mapping[str, Any], api: Api) -> None:
    try:
        await api.create(TRIAL_RUN, body, body["metadata"]["namespace"])
    except AlreadyExists:
        return


async def _delete(run: TrialRun, api: Api) -> None:
    try:
        await api.delete(TRIAL_RUN, run.metadata.name, run.metadata.namespace, uid=run.metadata.uid)
    except NotFound:
        return
