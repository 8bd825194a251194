"""ETA and what-if queries: values that can be sent to another process, and their answers.

What-if projects the same jobs with the same samples, once unchanged and once changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from batuta.backends.sim.forecast import sampling
from batuta.backends.sim.forecast.forecast import (
    Forecast,
    ForecastInput,
    ProfileSource,
    duration_estimates,
    projections_of,
    summarise,
    truncation_notes,
)
from batuta.backends.sim.forecast.projection import ExternalEvents, Projection, as_simulated
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.job import DesiredState, Job, JobId
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.prediction.duration import Quantiles

ProfileLookup: TypeAlias = Callable[[str], ProfileSource]
ALONE = "if nothing else arrives"
UNFAILING = "if no node fails or comes back"
AHEAD_S, _SPANS = 48 * 3600.0, 3.0
"""How long jobs keep arriving where that is assumed: at most this, and this many times as long as the present
jobs keep the cluster busy."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What changes. The policy is not part of it: a ProfileSource gives that."""

    nodes: tuple[Node, ...] = ()
    quota: Quota | None = None
    jobs: tuple[Job, ...] = ()  # submitted now
    drained: tuple[NodeName, ...] = ()

    def events(self, world: World, now_s: float) -> list[ev.Event]:
        """The events that make it true, at once."""
        found: list[ev.Event] = [ev.NodeAdded(now_s, node) for node in self.nodes]
        if self.quota is not None:
            found.append(ev.QuotaSet(now_s, self.quota))
        leaving = set(self.drained)
        found += [ev.NodeCordoned(now_s, node) for node in self.drained]
        found += [
            ev.JobWished(now_s, job, DesiredState.EVICT)
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
            if placement is not None and leaving.intersection(placement.nodes)
        ]
        return found


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job unchanged and changed; means over all runs, NaN for what does not happen in each."""

    job: JobId
    jct_s: tuple[float, float]  # from its submission
    wait_s: tuple[float, float]  # without GPUs, from now on
    fairness: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All jobs together, unchanged or changed; the means are over jobs that end in both."""

    jct_s: float
    wait_s: float
    fairness: float
    worst_fairness: float
    utilisation: float
    makespan_s: float  # from now on
    restarts: float
    preemptions: float
    unfinished: int  # jobs that do not end in every run


@dataclass(frozen=True, slots=True)
class Comparison:
    """All jobs unchanged and changed."""

    now_s: float
    runs: int
    before: Outcome
    after: Outcome
    jobs: tuple[JobOutcome, ...]  # the living jobs, then those of the hypothesis
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EtaQuery:
    """When will each job start and finish?"""

    now_s: float
    policy: str
    expects_arrivals: bool = True
    """Whether jobs keep arriving at the recent rate. Without them, ETAs on a busy cluster are too early."""
    budget_s: float = sampling.BUDGET_S

    def answer(self, world: World, lookup: ProfileLookup) -> Forecast:
        inputs, note = _forecast_input(world, self.now_s, self, worlds=1)
        found = summarise(inputs, projections_of(inputs, lookup(self.policy)))
        return replace(found, notes=(note, UNFAILING, *found.notes))


@dataclass(frozen=True, slots=True)
class WhatIfQuery:
    """What would change if?"""

    now_s: float
    policy: str
    changed_policy: str = ""  # the policy of the hypothesis; empty: the same
    hypothesis: Hypothesis = field(default_factory=Hypothesis)
    expects_arrivals: bool = False
    seed: int = 0
    budget_s: float = sampling.BUDGET_S

    def answer(self, world: World, lookup: ProfileLookup) -> Comparison:
        inputs, note = _forecast_input(world, self.now_s, self, worlds=2, seed=self.seed)
        usual = lookup(self.policy)
        changed = lookup(self.changed_policy) if self.changed_policy else usual
        found = compare(inputs, self.hypothesis, usual, changed)
        coarse = f"times are good to {inputs.effort.precision:.0%}" if inputs.effort.precision else ""
        return replace(found, notes=tuple(filter(None, (note, UNFAILING, coarse, *found.notes))))


Query: TypeAlias = EtaQuery | WhatIfQuery
QueryResult: TypeAlias = Forecast | Comparison


def _forecast_input(world: World, now_s: float, query: Query, worlds: int, seed: int = 0) -> tuple[ForecastInput, str]:
    """The input of a forecast, and the assumption about arrivals in a sentence."""
    recent = sampling.recent_arrivals(world, now_s) if query.expects_arrivals else None
    ahead_s = min(AHEAD_S, _SPANS * sampling.span_estimate_s(world))
    to_come = 0 if recent is None else min(math.ceil(recent.jobs_per_s * ahead_s), sampling.MOST_ARRIVALS)
    effort = sampling.plan_effort(world, world.jobs.n + to_come, query.budget_s, worlds=worlds)
    sampler = sampling.Sampler(effort.runs, seed)
    cpu_until_s = time.thread_time() + max(sampling.MAX_CPU_S, 3 * query.budget_s)
    known = duration_estimates(world, now_s)
    inputs = ForecastInput(world, now_s, known, sampler, effort, cpu_until_s=cpu_until_s)
    if recent is None:
        return inputs, ALONE
    note = f"if jobs keep coming as they did lately: {recent.jobs_per_s * 3600:.3g} an hour, like those"
    return replace(
        inputs, external=lambda run: ExternalEvents(sampling.draw_arrivals(recent, sampler, run, now_s, ahead_s))
    ), note


def compare(inputs: ForecastInput, hypothesis: Hypothesis, usual: ProfileSource, changed: ProfileSource) -> Comparison:
    """Projects the same World twice, with the same samples."""
    # Half of the CPU time for each: with less for the second, jobs would seem to end in the first one only.
    half_s = (inputs.cpu_until_s - time.thread_time()) / 2
    before = projections_of(replace(inputs, cpu_until_s=time.thread_time() + half_s), usual, measured=True)
    # The duration that earlier jobs predict; without any, the same guess in all runs.
    lengths = {
        job.id: sampling.certain(job.work_s) if job.expected is None else Quantiles.of(job.expected.seconds)
        for job in hypothesis.jobs
    }
    submitted = inputs.draws.left_s(lengths)

    def external(run: int) -> ExternalEvents:
        usual = inputs.external(run)
        new = [
            SimJob(as_simulated(job, job.work_s, job.restart_s), float(submitted[job.id][run]), job.curve)
            for job in hypothesis.jobs
        ]
        script = [*hypothesis.events(inputs.world, inputs.now_s), *usual.script]
        return replace(usual, arrivals=[*new, *usual.arrivals], script=script)

    awaited = frozenset((*inputs.world.jobs.ids, *(job.id for job in hypothesis.jobs)))
    changed_inputs = replace(inputs, external=external, awaited=awaited, cpu_until_s=time.thread_time() + half_s)
    after = projections_of(changed_inputs, changed, measured=True)
    return _compared(inputs, before, after, [job.id for job in hypothesis.jobs])


def _compared(
    inputs: ForecastInput, before: Sequence[Projection], after: Sequence[Projection], submitted: Sequence[JobId]
) -> Comparison:
    runs = min(len(before), len(after))
    before, after = before[:runs], after[:runs]
    submit_s = {job.id: job.submit_s for job in inputs.world.jobs.jobs}
    submit_s |= dict.fromkeys(submitted, inputs.now_s)
    both = [job for job in inputs.world.jobs.ids if all(job in one.end_s for one in (*before, *after))]
    jobs = tuple(_job_outcome(job, submit_s[job], before, after) for job in submit_s)
    notes = truncation_notes((*before, *after), inputs.now_s)
    return Comparison(
        inputs.now_s,
        runs,
        _outcome(before, both, submit_s, inputs.world.jobs.ids),
        _outcome(after, both, submit_s, [*inputs.world.jobs.ids, *submitted]),
        jobs,
        notes,
    )


def _job_outcome(job: JobId, submit_s: float, *worlds: Sequence[Projection]) -> JobOutcome:
    def pair(value: Callable[[Projection], float]) -> tuple[float, float]:
        first, second = (_mean(value(one) for one in projections) for projections in worlds)
        return first, second

    return JobOutcome(
        job,
        pair(lambda one: one.end_s.get(job, math.nan) - submit_s),
        pair(lambda one: one.wait_s.get(job, math.nan) if job in one.end_s else math.nan),
        pair(lambda one: one.fairness.get(job, math.nan)),
    )


def _outcome(
    projections: Sequence[Projection], both: Sequence[JobId], submit_s: dict[JobId, float], everyone: Sequence[JobId]
) -> Outcome:
    def over_jobs(value: Callable[[Projection, JobId], float]) -> float:
        return _mean(value(one, job) for one in projections for job in both)

    fairness = [one.fairness[job] for one in projections for job in both if job in one.fairness]
    return Outcome(
        jct_s=over_jobs(lambda one, job: one.end_s[job] - submit_s[job]),
        wait_s=over_jobs(lambda one, job: one.wait_s.get(job, 0.0)),
        fairness=_mean(fairness),
        worst_fairness=max(fairness, default=math.nan),
        utilisation=_mean(one.utilisation for one in projections),
        makespan_s=_mean(one.until_s - one.now_s for one in projections),
        restarts=_mean(float(one.restarts) for one in projections),
        preemptions=_mean(float(one.preemptions) for one in projections),
        unfinished=sum(not all(job in one.end_s for one in projections) for job in everyone),
    )


def _mean(values: Iterable[float]) -> float:
    found = np.fromiter(values, dtype=np.float64)
    return float(found.mean()) if found.size else math.nan
