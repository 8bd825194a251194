"""Reconcile one TrialRun: run its sizes, measure them, and write table and conclusion into its status."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_decimal, read_time
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.crd import time_text
from batuta.backends.kube.objects import read_usage
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.unified_job_status import build_conditions
from batuta.backends.kube.operator.workqueue import WriteQueue, create_unless_there, delete_object, patch_status
from batuta.backends.kube.trial.model import TRIAL_RUN, TrialRun
from batuta.backends.kube.trial.plan import Planned, Unplannable, plan, run_manifest, run_name, tried_job
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job, JobState
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.core.world import World
from batuta.engine.fence import sentence
from batuta.engine.trials import lifecycle
from batuta.engine.trials.measurement import Lesson, Look, Seen, learn, read_run

KEY: Final = "trial-run/"  # what the keys of its writes begin with
TRY_AGAIN_S: Final = 1.0  # after a fault, its status is written so much later
APPEARS_WITHIN_S: Final = 10.0  # a job that is named may come so much later than the trial that names it
_OUTCOMES: Final = {one.value: one for one in TrialOutcome}
_LONGEST_DETAIL: Final = 1024
PLANNED, WAITS, RUNS, NOT_TRIED = "planned", "waits", "runs", "not tried"
OUT_OF_MEMORY, MEASURED, TOO_LITTLE = "OutOfMemory", "Measured", "TooLittleMeasured"
FROM_LESSONS: Final = (OUT_OF_MEMORY, MEASURED, TOO_LITTLE)  # reasons of trials that came to their end


@dataclass(frozen=True, slots=True)
class TrialConclusion:
    """How a trial has ended."""

    state: JobState
    reason: str
    message: str
    lesson: Lesson | None = None


@dataclass(slots=True)
class TrialContext:
    """What trials need of the operator. For the engine's thread only."""

    observed: ObjectCache
    world: World
    writes: WriteQueue
    say: Callable[[ev.Event], None]
    most_that_fit: Callable[[Job], int]
    is_known: Callable[[Job], bool] = lambda job: True  # whether earlier runs of a job's application are remembered
    watched_s: float = math.inf  # since when this operator watches runs; set when it first looks at all of them


@dataclass(slots=True)
class RunUsage:
    """All that was seen of one run. An operator that comes later sees what comes later."""

    since_s: float  # reports of a time before that are about an earlier job on the GPUs, or about its loading
    seen: Seen = field(default_factory=Seen)
    _last_s: dict[NodeName, float] = field(default_factory=dict)
    """Of the last report of each node that was taken in: agents report when they like."""

    def look(self, placement: Placement, nodes: Mapping[str, objects.Node]) -> None:
        """Takes in what the agents of its nodes have reported since the last look."""
        reports = {name: read_usage(nodes[name]) for name in placement.nodes if name in nodes}
        new = {
            node: report
            for node, report in reports.items()
            if report is not None and report.time > self._last_s.get(node, self.since_s)
        }
        if not new:
            return
        self._last_s |= {node: report.time for node, report in new.items()}
        spans = [span for span in placement.spans if span.node in new]
        figures = [gpu for span in spans for gpu in new[span.node].gpus if gpu.index in span.gpus]
        memory = [one.memory_used_mib for one in figures if one.memory_used_mib is not None]
        busy = [one.utilisation for one in figures if one.utilisation is not None]
        self.seen.add(Look(round(max(memory)) if memory else None, fmean(busy) if busy else None))


class TrialReconciler:
    """Level-triggered: whatever is there when it is driven, it does the next step."""

    def __init__(self, context: TrialContext, run: TrialRun) -> None:
        self.run = run
        self.due_s = math.inf  # when it wants to be driven even if nothing happens
        self.conclusion: TrialConclusion | None = None
        self.planned: Planned | None = None
        self.last_words: dict[str, str] = {}  # by name of a UnifiedJob: the end of what its pods printed that failed
        self._context = context
        self._measured: dict[int, TrialMeasurement] | None = None
        self._sights: dict[int, RunUsage] = {}
        self._is_waiting = False

    @property
    def measured(self) -> tuple[TrialMeasurement, ...]:
        return tuple((self._measured or {}).values())

    @property
    def sizes(self) -> tuple[int, ...]:
        return () if self.planned is None else self.planned.plan.sizes

    def drive(self, now_s: float) -> bool:
        """Does what can be done now; whether it has to wait for a write before it can do more."""
        self.due_s, self._is_waiting = math.inf, False
        if self.run.metadata.deletion_timestamp:
            return False
        if self.run.is_over:
            self._recall(now_s)
            self._end_all(now_s)
            return self._is_waiting
        if self.conclusion is None:
            self._go_on(now_s)
        if self.conclusion is None and self.planned is None:
            return False
        plan_ = None if self.planned is None else self.planned.plan
        wanted = status_of(self.run, plan_, self._measured or {}, self._living(), self.conclusion, now_s)
        is_shown = shows(self.run, wanted)
        if not is_shown:
            self._ask("status", partial(patch_status, TRIAL_RUN, self.run.metadata, wanted), now_s)
        if self.conclusion is not None:
            self._end_all(now_s)
        return self._is_waiting or not is_shown

    def give_up(self, error: Exception, now_s: float) -> None:
        """Ends it for a fault of ours: a trial is a favour, and its job shall not wait for ever."""
        why = f"a fault of the operator, not of the job: {sentence(error)} (its log has the details)"
        self.conclusion = self.conclusion or TrialConclusion(JobState.FAILED, "OperatorFault", why)
        self.due_s = now_s + TRY_AGAIN_S

    def _recall(self, now_s: float) -> None:
        """Takes up what another operator has found out: it is over, and nothing of it is written again."""
        if self.conclusion is not None:
            return
        said = self.run.status
        is_complete = objects.has_condition(self.run.raw_status, "Complete")
        state = JobState.SUCCEEDED if is_complete else JobState.FAILED
        self.conclusion = TrialConclusion(state, said.reason, said.message)
        uj = tried_job(self.run, self._context.observed.unified_jobs)
        found = None if uj is None else self._planned(uj)
        if isinstance(found, Planned):
            self.planned = found
            self._measured = read_measured(self.run, found.job.application)
            if said.runs and said.reason in FROM_LESSONS:
                self.conclusion = conclude(learn(found.job, self.measured))
            if not self._context.is_known(found.job):
                # The journal is lost: what stands in the cluster is told again.
                for one in self.measured:
                    self._tell(found, one, now_s)

    def _go_on(self, now_s: float) -> None:
        planned = self._plan(now_s)
        if planned is None:
            return
        self.planned = planned
        if self._measured is None:
            self._measured = read_measured(self.run, planned.job.application)
        if self._is_given_up(planned.uj):
            self.conclusion = TrialConclusion(JobState.CANCELLED, "Cancelled", "the job that it is for has ended")
            return
        self._look(now_s)
        began_s = read_time(self.run.metadata.creation_timestamp) or 0.0
        found = lifecycle.next_actions(planned.plan, self.run.spec.parallelism, began_s, self._standing(), now_s)
        self.due_s = found.due_s
        for action in found.actions:
            self._carry_out(planned, action, now_s)

    def _plan(self, now_s: float) -> Planned | None:
        if self.planned is not None:
            return self.planned
        uj = tried_job(self.run, self._context.observed.unified_jobs)
        if uj is None:
            appears_s = (read_time(self.run.metadata.creation_timestamp) or 0.0) + APPEARS_WITHIN_S
            if now_s < appears_s:
                self.due_s = appears_s
            else:
                why = f"spec.jobName: there is no UnifiedJob {self.run.spec.job_name!r} here"
                self.conclusion = TrialConclusion(JobState.FAILED, "Invalid", why)
            return None
        found = self._planned(uj)
        if isinstance(found, Unplannable):
            self.conclusion = TrialConclusion(JobState.FAILED, "Invalid", "; ".join(found.faults))
            return None
        return found

    def _planned(self, uj: UnifiedJob) -> Planned | Unplannable:
        return plan(self.run, uj, self._context.observed.priorities, self._context.most_that_fit)

    def _is_given_up(self, uj: UnifiedJob) -> bool:
        """Whether the job that waits for it waits no more."""
        owners = {one.uid for one in self.run.metadata.owner_references}
        if not owners or uj.metadata.uid not in owners:
            return False
        now = self._context.observed.unified_jobs.get(uj.id)
        if now is None or now.metadata.uid != uj.metadata.uid or now.is_over:
            return True
        return now.metadata.annotations.get(names.CANCEL, "") not in ("", "false")

    def _carry_out(self, planned: Planned, action: lifecycle.Action, now_s: float) -> None:
        match action:
            case lifecycle.Begin(gpus):
                body = run_manifest(self.run, planned.uj, planned.job, gpus)
                self._ask(f"begin/{gpus}", partial(create_unless_there, UNIFIED_JOB, body), now_s)
            case lifecycle.Measure(gpus):
                self._measure(planned, gpus, now_s)
            case lifecycle.End(gpus):
                self._end(gpus, now_s)
            case lifecycle.Conclude():
                self.conclusion = conclude(learn(planned.job, self.measured))

    def _runs(self) -> dict[int, UnifiedJob]:
        meta, jobs = self.run.metadata, self._context.observed.unified_jobs
        keys = {gpus: f"{meta.namespace}/{run_name(meta.name, gpus)}" for gpus in self.sizes}
        return {gpus: jobs[key] for gpus, key in keys.items() if key in jobs}

    def _is_ours(self, uj: UnifiedJob) -> bool:
        return any(one.uid == self.run.metadata.uid for one in uj.metadata.owner_references)

    def _standing(self) -> lifecycle.TrialProgress:
        shown = {one.gpus: one.state for one in self.run.status.runs}
        measured = self._measured or {}
        written = {gpus for gpus, one in measured.items() if shown.get(gpus) == one.outcome.value}
        runs = {gpus: self._seen(uj) for gpus, uj in self._runs().items()}
        return lifecycle.TrialProgress(measured, written, runs, self._context.watched_s)

    def _seen(self, uj: UnifiedJob) -> lifecycle.ObservedRun:
        started, meta = uj.status.start_time, self.run.metadata
        if not self._is_ours(uj) and any(
            (one.kind, one.name) == (names.TRIAL_KIND, meta.name) for one in uj.metadata.owner_references
        ):
            return lifecycle.ObservedRun(is_left_over=True)
        return lifecycle.ObservedRun(
            # What stands in the way is nothing that could be waited for.
            is_over=uj.is_over or not self._is_ours(uj),
            started_s=read_time(started),
            is_leaving=bool(uj.metadata.deletion_timestamp),
        )

    def _living(self) -> dict[int, str]:
        return {gpus: RUNS if uj.status.start_time else WAITS for gpus, uj in self._runs().items()}

    def _look(self, now_s: float) -> None:
        """Notes how the GPUs of the runs are used that have reported: before that they load."""
        world = self._context.world
        for gpus, uj in self._runs().items():
            if gpus in (self._measured or {}) or uj.id not in world.jobs or uj.id not in world.progress:
                continue
            placement = world.jobs.placements[world.jobs.row(uj.id)]
            if placement is not None:
                sight = self._sights.setdefault(gpus, RunUsage(now_s))
                sight.look(placement, self._context.observed.nodes)

    def _measure(self, planned: Planned, gpus: int, now_s: float) -> None:
        assert self._measured is not None
        found = self._measured[gpus] = self._reading(self._runs()[gpus], gpus)
        self._tell(planned, found, now_s)

    def _tell(self, planned: Planned, found: TrialMeasurement, now_s: float) -> None:
        self._context.say(ev.TrialMeasured(now_s, planned.uj.id, found, cause="kubernetes"))

    def _reading(self, uj: UnifiedJob, gpus: int) -> TrialMeasurement:
        world = self._context.world
        if not self._is_ours(uj):
            why = f"a UnifiedJob {uj.metadata.name} stands in its way"
            return TrialMeasurement(uj.id, gpus, TrialOutcome.FAILED, detail=why)
        if uj.id not in world.jobs and uj.id not in world.past:
            # It was never understood, or has ended under an operator whose journal is lost.
            outcome = TrialOutcome.NOT_RUN if not uj.status.start_time else TrialOutcome.FAILED
            return TrialMeasurement(uj.id, gpus, outcome, detail=uj.status.message)
        sight = self._sights.pop(gpus, None)
        said = f"{self.last_words.pop(uj.metadata.name, '')}\n{uj.status.message}"
        return read_run(world, uj.id, Seen() if sight is None else sight.seen, said)

    def _end(self, gpus: int, now_s: float) -> None:
        uj = self._runs().get(gpus)
        if uj is not None and self._is_ours(uj) and not uj.is_over and not uj.metadata.deletion_timestamp:
            self._ask(f"end/{gpus}", partial(delete_object, UNIFIED_JOB, uj.metadata), now_s)

    def _end_all(self, now_s: float) -> None:
        for gpus in self.sizes:
            self._end(gpus, now_s)

    def _ask(self, what: str, do: Callable[[Api], Any], now_s: float) -> None:
        if not self._context.writes.ask(f"{KEY}{self.run.id}//{what}", do, now_s):
            self._is_waiting = True


def conclude(lesson: Lesson) -> TrialConclusion:
    """What follows from all that was measured."""
    if not lesson.fits:
        return TrialConclusion(JobState.FAILED, OUT_OF_MEMORY, lesson.sentence, lesson)
    reason = TOO_LITTLE if lesson.choice is None else MEASURED
    return TrialConclusion(JobState.SUCCEEDED, reason, lesson.sentence, lesson)


def status_of(
    trial: TrialRun,
    plan: TrialPlan | None,
    measured: Mapping[int, TrialMeasurement],
    living: Mapping[int, str],
    conclusion: TrialConclusion | None,
    now_s: float,
) -> dict[str, Any]:
    """The whole status, as it shall be. `living`: by size, what a run does that is not measured yet."""
    sizes = () if plan is None else plan.sizes
    state = JobState.RUNNING if conclusion is None else conclusion.state
    # Speed for each GPU, relative to that at the smallest size that was measured.
    speeds = {gpus: one.units_per_s / gpus for gpus, one in measured.items() if one.units_per_s}
    shares = {gpus: speed / speeds[min(speeds)] for gpus, speed in speeds.items()}
    rows = {gpus: _row(one, shares.get(gpus)) for gpus, one in measured.items()}
    untried = {gpus: {"state": NOT_TRIED if conclusion is not None else living.get(gpus, PLANNED)} for gpus in sizes}
    found: dict[str, Any] = {
        "observedGeneration": trial.metadata.generation,
        "state": state.value,
        "reason": "InTrial" if conclusion is None else conclusion.reason,
        "message": f"{len(measured)} of {len(sizes)} sizes are done" if conclusion is None else conclusion.message,
        "progress": f"{len(measured)}/{len(sizes)}",
        "runs": [
            {"gpus": gpus, "job": run_name(trial.metadata.name, gpus), **rows.get(gpus, untried[gpus])}
            for gpus in sizes
        ],
    }
    if plan is not None:
        found["eachSeconds"] = max(1, round(plan.each_s))
    if conclusion is not None:
        found["completionTime"] = trial.status.completion_time or time_text(now_s)
        choice = None if conclusion.lesson is None else conclusion.lesson.choice
        if choice is not None:
            found["chosenGpus"], found["fastestGpus"] = choice.gpus, choice.best_gpus
            found["chosenPercentage"] = round(100 * choice.speed_share)
    is_complete = conclusion is not None and conclusion.state is JobState.SUCCEEDED
    truths = {"Complete": is_complete, "Failed": conclusion is not None and not is_complete}
    reasons = dict.fromkeys(truths, found["reason"])
    found["conditions"] = build_conditions(
        trial.metadata.generation, trial.status.conditions, truths, reasons, found["message"], now_s
    )
    return found


def shows(trial: TrialRun, status: Mapping[str, Any]) -> bool:
    shown = trial.raw_status if isinstance(trial.raw_status, dict) else {}
    return all(shown.get(key) == value for key, value in status.items())


def read_measured(trial: TrialRun, application: str) -> dict[int, TrialMeasurement]:
    """What an operator before this one has written down."""
    namespace = trial.metadata.namespace
    return {
        one.gpus: TrialMeasurement(
            run=f"{namespace}/{one.job}",
            gpus=one.gpus,
            outcome=_OUTCOMES[one.state],
            application=application,
            gpu_type=one.gpu_type,
            nodes=one.nodes,
            racks=one.racks,
            unit=one.unit,
            batch=one.batch,
            units_per_s=_number(one.units_per_second),
            step_s=None if not (per_s := _number(one.steps_per_second)) else 1.0 / per_s,
            memory_mib=one.memory_mib,
            utilisation=None if one.utilisation_percentage is None else one.utilisation_percentage / 100,
            detail=one.message,
        )
        for one in trial.status.runs
        if one.state in _OUTCOMES
    }


def _row(one: TrialMeasurement, share: float | None) -> dict[str, Any]:
    said = {
        "gpuType": one.gpu_type,
        "unit": one.unit,
        "batch": one.batch,
        "unitsPerSecond": "" if one.units_per_s is None else f"{one.units_per_s:.6g}",
        "stepsPerSecond": "" if not one.step_s else f"{1.0 / one.step_s:.6g}",
        "message": one.detail[:_LONGEST_DETAIL],
    }
    known = {
        "efficiencyPercentage": None if share is None else round(100 * share),
        "memoryMib": one.memory_mib,
        "utilisationPercentage": None if one.utilisation is None else round(100 * one.utilisation),
    }
    return {
        "state": one.outcome.value,
        "nodes": one.nodes,
        "racks": one.racks,
        **{key: value for key, value in said.items() if value},
        **{key: value for key, value in known.items() if value is not None},
    }


def _number(text: str) -> float | None:
    return read_decimal(text, least=0.0) or None
