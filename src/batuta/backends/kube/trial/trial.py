"""One TrialRun: has its sizes run, writes down what they showed, and says what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, NotFound
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.unified_status import is_finished
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.operator.writes import Writes
from batuta.backends.kube.trial import status
from batuta.backends.kube.trial.course import End, Move, RunSeen, Standing, next_moves
from batuta.backends.kube.trial.model import TRIAL_RUN, TrialRun
from batuta.backends.kube.trial.plan import Planned, Unplannable, plan, tried_job
from batuta.backends.kube.trial.run_manifest import run_manifest, run_name
from batuta.backends.kube.trial.sight import RunSight
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.job import Job, JobState
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.core.world import World
from batuta.engine.trials.course import Begin, Conclude, Measure
from batuta.engine.trials.lesson import Lesson, learn
from batuta.engine.trials.reading import Seen, read_run

KEY: Final = "trial-run/"
"""What the keys of its writes begin with."""
APPEARS_WITHIN_S: Final = 10.0
"""A job that is named may come so much later than the trial that names it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What trials need of the operator. For the engine's thread only."""

    observed: Observed
    world: World
    writes: Writes
    say: Callable[[ev.Event], None]
    most_that_fit: Callable[[Job], int]
    is_known: Callable[[Job], bool] = lambda job: True
    """Whether earlier runs of a job's application are remembered."""


class Trial:
    """Level-triggered: whatever is there when it is driven, it does the next step."""

    def __init__(self, bench: Bench, run: TrialRun) -> None:
        self.run = run
        self.due_s = math.inf
        """When it wants to be driven even if nothing happens."""
        self.verdict: status.Verdict | None = None
        self.planned: Planned | None = None
        self.last_words: dict[str, str] = {}
        """By name of a UnifiedJob: the end of what its pods printed that failed."""
        self._bench = bench
        self._measured: dict[int, TrialMeasurement] | None = None
        self._sights: dict[int, RunSight] = {}
        self._is_waiting = False

    # --------------------------------------------------------------------------------- what others are told

    @property
    def measured(self) -> tuple[TrialMeasurement, ...]:
        return tuple((self._measured or {}).values())

    @property
    def sizes(self) -> tuple[int, ...]:
        return () if self.planned is None else self.planned.plan.sizes

    @property
    def lesson(self) -> Lesson | None:
        """What it teaches; None while it goes on, and when it could not be made."""
        return None if self.verdict is None else self.verdict.lesson

    # ------------------------------------------------------------------------------------------- its turn

    def drive(self, now_s: float) -> bool:
        """Does what can be done now; whether it has to wait for a write before it can do more."""
        self.due_s, self._is_waiting = math.inf, False
        if self.run.metadata.deletion_timestamp:
            return False
        if self.run.is_over:
            self._recall(now_s)
            self._end_all(now_s)
            return self._is_waiting
        if self.verdict is None:
            self._go_on(now_s)
        if self.verdict is None and self.planned is None:
            return False
        plan_ = None if self.planned is None else self.planned.plan
        wanted = status.status_of(self.run, plan_, self._measured or {}, self._living(), self.verdict, now_s)
        is_shown = status.shows(self.run, wanted)
        if not is_shown:
            self._ask("status", partial(_write_status, self.run, wanted), now_s)
        if self.verdict is not None:
            self._end_all(now_s)
        return self._is_waiting or not is_shown

    def _recall(self, now_s: float) -> None:
        """Takes up what another operator has found out: it is over, and nothing of it is written again."""
        if self.verdict is not None:
            return
        said = self.run.status
        is_complete = any(one.type == "Complete" and one.status == "True" for one in said.conditions)
        state = JobState.SUCCEEDED if is_complete else JobState.FAILED
        self.verdict = status.Verdict(state, said.reason, said.message)
        uj = tried_job(self.run, self._bench.observed.unified_jobs)
        found = None if uj is None else self._planned(uj)
        if isinstance(found, Planned):
            self.planned = found
            self._measured = status.read_measured(self.run, found.job.application)
            if said.runs and said.reason in status.FROM_LESSONS:
                self.verdict = self._learn(found)
            if not self._bench.is_known(found.job):
                # The journal is lost: what stands in the cluster is told again.
                for one in self.measured:
                    self._tell(found, one, now_s)

    def _go_on(self, now_s: float) -> None:
        planned = self._plan(now_s)
        if planned is None:
            return
        self.planned = planned
        if self._measured is None:
            self._measured = status.read_measured(self.run, planned.job.application)
        if self._is_given_up(planned.uj):
            self.verdict = status.Verdict(JobState.CANCELLED, "Cancelled", "the job that it is for has ended")
            return
        self._look(now_s)
        began_s = seconds(self.run.metadata.creation_timestamp)
        found = next_moves(planned.plan, self.run.spec.parallelism, began_s, self._standing(), now_s)
        self.due_s = found.due_s
        for move in found.moves:
            self._make(planned, move, now_s)

    def _plan(self, now_s: float) -> Planned | None:
        if self.planned is not None:
            return self.planned
        uj = tried_job(self.run, self._bench.observed.unified_jobs)
        if uj is None:
            appears_s = seconds(self.run.metadata.creation_timestamp) + APPEARS_WITHIN_S
            if now_s < appears_s:
                self.due_s = appears_s
            else:
                self._refuse(f"spec.jobName: there is no UnifiedJob {self.run.spec.job_name!r} here")
            return None
        found = self._planned(uj)
        if isinstance(found, Unplannable):
            self._refuse("; ".join(found.faults))
            return None
        return found

    def _planned(self, uj: UnifiedJob) -> Planned | Unplannable:
        return plan(self.run, uj, self._bench.observed.priorities, self._bench.most_that_fit)

    def _refuse(self, why: str) -> None:
        self.verdict = status.Verdict(JobState.FAILED, "Invalid", why)

    def _is_given_up(self, uj: UnifiedJob) -> bool:
        """Whether the job that waits for it waits no more."""
        owners = {one.uid for one in self.run.metadata.owner_references}
        if not owners or uj.metadata.uid not in owners:
            return False
        now = self._bench.observed.unified_jobs.get(uj.id)
        if now is None or now.metadata.uid != uj.metadata.uid or is_finished(now):
            return True
        return now.metadata.annotations.get(names.CANCEL, "") not in ("", "false")

    def _make(self, planned: Planned, move: Move, now_s: float) -> None:
        match move:
            case Begin(gpus):
                body = run_manifest(self.run, planned.uj, planned.job, gpus)
                self._ask(f"begin/{gpus}", partial(_create, body), now_s)
            case Measure(gpus):
                self._measure(planned, gpus, now_s)
            case End(gpus):
                self._end(gpus, now_s)
            case Conclude():
                self.verdict = self._learn(planned)

    def _learn(self, planned: Planned) -> status.Verdict:
        return status.verdict_of(learn(planned.job, self.measured))

    # ------------------------------------------------------------------------------------------- its runs

    def _runs(self) -> dict[int, UnifiedJob]:
        """By size: the UnifiedJobs that are there."""
        meta, jobs = self.run.metadata, self._bench.observed.unified_jobs
        keys = {gpus: f"{meta.namespace}/{run_name(meta.name, gpus)}" for gpus in self.sizes}
        return {gpus: jobs[key] for gpus, key in keys.items() if key in jobs}

    def _is_ours(self, uj: UnifiedJob) -> bool:
        return any(one.uid == self.run.metadata.uid for one in uj.metadata.owner_references)

    def _standing(self) -> Standing:
        shown = {one.gpus: one.state for one in self.run.status.runs}
        measured = self._measured or {}
        written = {gpus for gpus, one in measured.items() if shown.get(gpus) == one.outcome.value}
        return Standing(measured, written, {gpus: self._seen(uj) for gpus, uj in self._runs().items()})

    def _seen(self, uj: UnifiedJob) -> RunSeen:
        started, meta = uj.status.start_time, self.run.metadata
        if not self._is_ours(uj) and any(
            (one.kind, one.name) == (names.TRIAL_KIND, meta.name) for one in uj.metadata.owner_references
        ):
            return RunSeen(is_left_over=True)
        return RunSeen(
            # What stands in the way is nothing that could be waited for.
            is_over=is_finished(uj) or not self._is_ours(uj),
            started_s=seconds(started) if started else None,
            is_leaving=bool(uj.metadata.deletion_timestamp),
        )

    def _living(self) -> dict[int, str]:
        return {
            gpus: status.RUNS if uj.status.start_time else status.WAITS for gpus, uj in self._runs().items()
        }

    def _look(self, now_s: float) -> None:
        """Notes how the GPUs of the runs are used that have reported: before that they load."""
        world = self._bench.world
        for gpus, uj in self._runs().items():
            if gpus in (self._measured or {}) or uj.id not in world.jobs or uj.id not in world.progress:
                continue
            placement = world.jobs.placements[world.jobs.row(uj.id)]
            if placement is not None:
                sight = self._sights.setdefault(gpus, RunSight(now_s))
                sight.look(placement, self._bench.observed.nodes)

    def _measure(self, planned: Planned, gpus: int, now_s: float) -> None:
        assert self._measured is not None
        uj = self._runs()[gpus]
        found = self._reading(uj, gpus)
        self._measured[gpus] = found
        self._tell(planned, found, now_s)

    def _tell(self, planned: Planned, found: TrialMeasurement, now_s: float) -> None:
        self._bench.say(ev.TrialMeasured(now_s, planned.uj.id, found, cause="kubernetes"))

    def _reading(self, uj: UnifiedJob, gpus: int) -> TrialMeasurement:
        world = self._bench.world
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
        if uj is None or not self._is_ours(uj) or is_finished(uj):
            return
        if not uj.metadata.deletion_timestamp:
            self._ask(f"end/{gpus}", partial(_delete, uj), now_s)

    def _end_all(self, now_s: float) -> None:
        for gpus in self.sizes:
            self._end(gpus, now_s)

    def _ask(self, what: str, do: Callable[[Api], Any], now_s: float) -> None:
        if not self._bench.writes.ask(f"{KEY}{self.run.key}//{what}", do, now_s):
            self._is_waiting = True


async def _create(body: Mapping[str, Any], api: Api) -> None:
    try:
        await api.create(UNIFIED_JOB, body, body["metadata"]["namespace"])
    except AlreadyExists:
        return  # by an operator before this one, or it stands in the way: whoever looks next sees it


async def _delete(uj: UnifiedJob, api: Api) -> None:
    try:
        await api.delete(UNIFIED_JOB, uj.metadata.name, uj.metadata.namespace, uid=uj.metadata.uid)
    except NotFound:
        return


async def _write_status(run: TrialRun, wanted: Mapping[str, Any], api: Api) -> None:
    try:
        await api.patch_status(TRIAL_RUN, run.metadata.name, dict(wanted), run.metadata.namespace)
    except NotFound:
        return
