"""Safety: whatever happens, in whatever order, the World stays sound and every plan can be carried out.

Hypothesis plays the users, the machines and the clock, and finds the shortest story that breaks something. A
plain random walk over the same rules goes further in the same time. Liveness has a file of its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batuta.core import event as ev
from batuta.core.apply import StalePlanError, apply
from batuta.core.arrays import bits
from batuta.core.cluster import Placement, Span, placement_of
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import DesiredState, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Plan, Preempt, Resize
from batuta.core.quota import IdleAction
from batuta.core.reason import Reason
from batuta.core.utilisation import IdleRules
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_names
from tests.support.arbitrary import (
    JOB_COUNT,
    NODE_COUNT,
    QUEUE_COUNT,
    make_curve,
    make_job,
    make_node,
    with_queue,
)
from tests.support.examples import examples
from tests.support.invariants import check_beside, check_invariants, check_plan, check_quota, fingerprint

T = TypeVar("T")

EXAMPLES, STEPS = examples(40), 50
AT_LEAST = 25 * EXAMPLES
"""Steps that Hypothesis takes under each policy: 1,000, so that ten policies take 10,000."""
WALK = 2000
"""Steps of the random walk under each policy."""

which = st.integers(0, 1000)
"""One of those that there are, counted round."""
any_job = st.integers(0, JOB_COUNT - 1)
any_node = st.integers(0, NODE_COUNT - 1)
any_queue = st.integers(0, QUEUE_COUNT - 1)


class Cluster:
    """A cluster, its users and its failures, under one policy: what can happen to it, as methods."""

    def __init__(self, rules: SchedulerProfile) -> None:
        self.rules = rules
        self.world = World()
        self.now_s = 0.0
        self.submitted: set[JobId] = set()
        self.changed: set[JobId] = set()
        """Jobs whose users asked for other sizes since they last got GPUs, or that were found at another."""
        self.as_planned = True
        """Nobody has told yet that the cluster is otherwise than it was planned."""
        self.count = 0
        self.idled_s: dict[JobId, float] = {}
        """By job: when it was last made small or parked because it was idle."""

    # ------------------------------------------------------------------------------------ nodes and time

    def node_joins(self, number: int) -> None:
        nodes = self.world.nodes.nodes
        if len(nodes) < 8:
            self.happens(ev.NodeAdded(self.now_s, make_node(number, f"n{len(nodes)}")))

    def node_is_lost(self, which: int) -> None:
        for node in nth(self.world.nodes.nodes, which):
            self.happens(ev.NodeLost(self.now_s, node.name))

    def node_is_cordoned(self, which: int) -> None:
        for node in nth(self.world.nodes.nodes, which):
            self.happens(ev.NodeCordoned(self.now_s, node.name))

    def gpu_fails(self, which: int, gpu: int) -> None:
        for node in nth([node for node in self.world.nodes.nodes if node.gpus], which):
            self.happens(ev.GpuFailed(self.now_s, node.name, gpu % node.gpus))

    def node_is_well_again(self, which: int) -> None:
        """Also one that never was ill."""
        for node in nth(self.world.nodes.nodes, which):
            for gpu in range(node.gpus):
                self.happens(ev.GpuRepaired(self.now_s, node.name, gpu))
            self.happens(ev.NodeReturned(self.now_s, node.name))
            self.happens(ev.NodeUncordoned(self.now_s, node.name))

    def lost_nodes_return(self) -> None:
        for node in self.world.nodes.nodes:
            self.happens(ev.NodeReturned(self.now_s, node.name))

    def node_changes(self, which: int, number: int) -> None:
        """Its labels, taints, rack, CPUs, even the number and type of its GPUs, with jobs on it."""
        self.as_planned = False
        for node in nth(self.world.nodes.nodes, which):
            self.happens(ev.NodeChanged(self.now_s, make_node(number, node.name)))

    def others_use(self, which: int, gpus: int, much: int) -> None:
        """Of GPUs that are free, that our jobs have, or that the node does not even have."""
        self.as_planned = False
        for node in nth(self.world.nodes.nodes, which):
            used = tuple(bits(gpus))
            self.happens(ev.OthersUse(self.now_s, node.name, used, 1500 * much, 15 * much))

    def gpus_are_used(self, which: int, used: float | None, gpus: int) -> None:
        """Also more or fewer GPUs than the node has: the report may be older than the node."""
        for node in nth(self.world.nodes.nodes, which):
            mixed = tuple(used if gpus >> gpu & 1 else 0.0 for gpu in range(gpus % 10))
            self.happens(ev.GpusUsed(self.now_s, node.name, mixed))

    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.happens(ev.TimePassed(self.now_s))

    # -------------------------------------------------------------------------------------- users and jobs

    def user_submits(self, number: int, submit_s: float | None = None) -> None:
        name, self.count = f"j{self.count}", self.count + 1
        job = make_job(number, name, self.now_s if submit_s is None else submit_s)
        self.happens(ev.JobSubmitted(self.now_s, job))
        self.submitted.add(name)

    def user_changes_a_job(self, which: int, number: int) -> None:
        """To sizes that its replicas allow; everything else in the message must not be taken over."""
        for job in nth(self.world.jobs.jobs, which):
            other = make_job(number, job.id, self.now_s)
            if job.share is None and job.gpus_per_replica == other.gpus_per_replica:
                self.changed.add(job.id)
                self.happens(ev.JobChanged(self.now_s, other))

    def user_cancels(self, which: int) -> None:
        for job in self.anyone(which):
            self.happens(ev.JobEnded(self.now_s, job, JobState.CANCELLED, cause="user"))

    def user_wishes(self, which: int, wish: DesiredState) -> None:
        for job in self.anyone(which):
            self.happens(ev.JobWished(self.now_s, job, wish))

    def job_fails(self, which: int, wait_s: float) -> None:
        for job in self.anyone(which):
            self.happens(ev.JobInterrupted(self.now_s, job, not_before_s=self.now_s + wait_s))

    def queue_changes(self, number: int) -> None:
        self.happens(ev.QuotaSet(self.now_s, with_queue(self.world.quota, number)))

    def job_is_interrupted(self, which: int) -> None:
        for job in self.anyone(which):
            self.happens(ev.JobInterrupted(self.now_s, job))

    def job_ends(self, which: int, state: JobState) -> None:
        for job in nth(self.in_phase(Phase.RUNNING), which):
            self.happens(ev.JobEnded(self.now_s, job, state))

    def backend_says_started(self, which: int) -> None:
        """Of anyone: also of jobs that were stopped, broken or over before the message came."""
        for job in self.anyone(which):
            self.happens(ev.JobStarted(self.now_s, job))

    def job_reports(self, which: int, left_s: float, curve: int) -> None:
        """Every fifth report brings no new curve."""
        for job in self.anyone(which):
            self.happens(ev.JobProgressed(self.now_s, job, left_s, make_curve(curve, 6) if curve < 4 else None))

    def job_is_refused(self, which: int, node: int, wait_s: float) -> None:
        for job in self.anyone(which):
            avoid = tuple(node.name for node in nth(self.world.nodes.nodes, node))
            self.happens(ev.JobInterrupted(self.now_s, job, not_before_s=self.now_s + wait_s, avoid=(*avoid, "ghost")))

    def job_is_found(self, which: int, where: int, wait_s: float) -> None:
        """With a part of what it has, with more, or anywhere: beside others, on what is lost or unknown."""
        for job in self.anyone(which):
            chance = Random(where)
            placement = self.somewhere(job, chance)
            self.as_planned = False
            self.changed.add(job)
            self.happens(
                ev.JobFound(
                    self.now_s,
                    job,
                    placement,
                    running=chance.random() < 0.7,
                    not_before_s=self.now_s + wait_s,
                    avoid=tuple(node.name for node in nth(self.world.nodes.nodes, where)) if wait_s else (),
                )
            )

    def somewhere(self, job: JobId, chance: Random) -> Placement:
        jobs, nodes = self.world.jobs, self.world.nodes.nodes
        held = jobs.placements[jobs.row(job)] if job in jobs else None
        if job in jobs and jobs.jobs[jobs.row(job)].cpu_only:
            names = [*(node.name for node in nodes), "ghost"]
            return Placement(tuple(Span(chance.choice(names), ()) for _ in range(chance.randrange(4))))
        own = [(span.node, gpu) for span in held.spans for gpu in span.gpus] if held is not None else []
        if own and chance.random() < 0.6:
            return placement_of(own[: chance.randrange(len(own) + 1)])
        anywhere = [(node.name, gpu) for node in nodes for gpu in range(node.gpus)] + [("ghost", 0)]
        step = jobs.jobs[jobs.row(job)].gpus_per_replica if job in jobs else 1
        start = chance.randrange(len(anywhere))
        more = anywhere[start : start + step * chance.randrange(1, 4)]
        return placement_of(own + more)

    def job_is_forgotten(self, which: int) -> None:
        """Also one that is not over, which must not matter."""
        for job in nth(sorted(self.submitted), which):
            if job in self.world.past:
                self.submitted.remove(job)
            self.happens(ev.JobForgotten(self.now_s, job))

    # ------------------------------------------------------------------------------------ what is decided

    def cycle(self, confirmed: float = 1.0) -> None:
        """Makes a plan and carries it out; so many of the starts are confirmed at once."""
        world, frozen = self.world, self.rules.costs.freeze_transitions
        moving = {*self.in_phase(Phase.STARTING), *self.in_phase(Phase.RESIZING), *self.left_alone()}
        before, layout, held = fingerprint(world), world.layout.fork(), self.held()
        plan = decide(world, self.now_s, self.rules)
        assert fingerprint(world) == before, "deciding changed the World"
        check_plan(world, plan, frozen)
        self.check_idle(plan)
        assert decide(world.fork(), self.now_s, self.rules) == plan, "the same World, another plan"
        self.happens(ev.Planned(self.now_s, plan))
        if not self.as_planned:
            # Who was found with more than the quota may keep it until there is room of another type.
            moving |= {job for job, gpus in self.held().items() if gpus <= held.get(job, 0)}
        check_quota(world, moving)
        check_beside(world, layout)
        self.changed -= {command.job for command in plan.commands}
        for command in plan.commands[: int(confirmed * len(plan.commands))]:
            self.happens(ev.JobStarted(self.now_s, command.job))

    def a_late_plan_is_refused(self) -> None:
        plan = decide(self.world, self.now_s, self.rules)
        self.happens(ev.TimePassed(self.now_s))
        before = fingerprint(self.world)
        with pytest.raises(StalePlanError):
            apply(self.world, ev.Planned(self.now_s, plan))
        assert fingerprint(self.world) == before

    def the_world_goes_on_in_a_copy(self) -> None:
        before, twin = fingerprint(self.world), self.world.fork()
        assert fingerprint(twin) == before
        for node in twin.nodes.nodes:
            apply(twin, ev.NodeLost(self.now_s, node.name))
        for job in list(twin.jobs.ids):
            apply(twin, ev.JobEnded(self.now_s, job, JobState.CANCELLED))
        assert fingerprint(self.world) == before, "the copy was not independent"
        check_invariants(twin, self.submitted, as_planned=self.as_planned)

    def check_idle(self, plan: Plan) -> None:
        """Who is idle loses nothing but GPUs, and is not changed for it again and again."""
        jobs = self.world.jobs
        for command in plan.commands:
            if command.reason in (Reason.SHRUNK_IDLE, Reason.PARKED_IDLE):
                row, held = jobs.row(command.job), self.held()[command.job]
                assert jobs.jobs[row].checkpoint_interval_s is None
                assert jobs.phase_of(row) is Phase.RUNNING
                assert isinstance(command, Preempt | Resize)
                assert isinstance(command, Preempt) or command.placement.size < held
                last_s = self.idled_s.get(command.job, -math.inf)
                assert self.now_s >= last_s + self.rules.idle.after_s, f"{command.job} goes to and fro"
                self.idled_s[command.job] = self.now_s

    # ------------------------------------------------------------------------------------------- helpers

    def check(self) -> None:
        check_invariants(self.world, self.submitted, self.changed, self.as_planned)

    def happens(self, event: ev.Event) -> None:
        version = self.world.version
        apply(self.world, event)
        assert self.world.version == version + 1
        assert self.world.now_s == self.now_s

    def in_phase(self, phase: Phase) -> list[JobId]:
        jobs = self.world.jobs
        return [job for job, own in zip(jobs.ids, jobs.phase.tolist(), strict=True) if own == phase]

    def held(self) -> dict[JobId, int]:
        """By job: how many GPUs it has."""
        return dict(zip(self.world.jobs.ids, self.world.jobs.held.tolist(), strict=True))

    def left_alone(self) -> list[JobId]:
        """Jobs that were found without all their GPUs and are not made whole at once."""
        jobs = self.world.jobs
        return [job for job in self.in_phase(Phase.BROKEN) if jobs.not_before_s[jobs.row(job)] > self.now_s]

    def anyone(self, which: int) -> Sequence[JobId]:
        """A living job most of the time, else any that ever was."""
        return nth(self.world.jobs.ids if which % 4 else sorted(self.submitted), which)


def nth(things: Sequence[T], which: int) -> Sequence[T]:
    """One of these, counted round; nothing when there are none."""
    return (things[which % len(things)],) if things else ()


# ------------------------------------------------------------------------------------ driven by Hypothesis


class Story(RuleBasedStateMachine):
    """Hypothesis chooses what happens next."""

    rules_: SchedulerProfile
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(self.rules_)

    @initialize(
        nodes=st.lists(any_node, max_size=4),
        queues=st.lists(any_queue, max_size=2),
        jobs=st.lists(any_job, max_size=6),
    )
    def begin(self, nodes: list[int], queues: list[int], jobs: list[int]) -> None:
        for number in nodes:
            self.cluster.node_joins(number)
        for number in queues:
            self.cluster.queue_changes(number)
        for number in jobs:
            self.cluster.user_submits(number, 0.0)

    @rule(confirmed=st.sampled_from((1.0, 0.5, 0.0)))
    def cycle(self, confirmed: float) -> None:
        self.cluster.cycle(confirmed)

    @rule(jobs=st.lists(any_job, min_size=1, max_size=4), late=st.booleans(), at_once=st.booleans())
    def users_submit(self, jobs: list[int], late: bool, at_once: bool) -> None:
        for number in jobs:
            self.cluster.user_submits(number, 0.0 if late else None)
        if at_once:
            self.cluster.cycle()

    @rule(which=which, number=any_job, at_once=st.booleans())
    def user_changes_a_job(self, which: int, number: int, at_once: bool) -> None:
        self.cluster.user_changes_a_job(which, number)
        if at_once:
            self.cluster.cycle()

    @rule(which=which)
    def user_cancels(self, which: int) -> None:
        self.cluster.user_cancels(which)

    @rule(which=which, wish=st.sampled_from(DesiredState), at_once=st.booleans())
    def user_wishes(self, which: int, wish: DesiredState, at_once: bool) -> None:
        self.cluster.user_wishes(which, wish)
        if at_once:
            self.cluster.cycle()

    @rule(which=which, wait_s=st.sampled_from((0.0, 1.0, 50.0)))
    def job_fails(self, which: int, wait_s: float) -> None:
        self.cluster.job_fails(which, wait_s)

    @rule(number=any_queue, at_once=st.booleans())
    def queue_changes(self, number: int, at_once: bool) -> None:
        self.cluster.queue_changes(number)
        if at_once:
            self.cluster.cycle()

    @rule(number=any_node)
    def node_joins(self, number: int) -> None:
        self.cluster.node_joins(number)

    @rule(which=which, at_once=st.booleans())
    def node_is_lost(self, which: int, at_once: bool) -> None:
        self.cluster.node_is_lost(which)
        if at_once:
            self.cluster.cycle()

    @rule(which=which)
    def node_is_cordoned(self, which: int) -> None:
        self.cluster.node_is_cordoned(which)

    @rule(which=which, gpu=st.integers(0, 7), at_once=st.booleans())
    def gpu_fails(self, which: int, gpu: int, at_once: bool) -> None:
        self.cluster.gpu_fails(which, gpu)
        if at_once:
            self.cluster.cycle()

    @rule(which=which)
    def node_is_well_again(self, which: int) -> None:
        self.cluster.node_is_well_again(which)

    @precondition(lambda self: self.cluster.world.lost)
    @rule()
    def lost_nodes_return(self) -> None:
        self.cluster.lost_nodes_return()

    @rule(which=which, number=any_node, at_once=st.booleans())
    def node_changes(self, which: int, number: int, at_once: bool) -> None:
        self.cluster.node_changes(which, number)
        if at_once:
            self.cluster.cycle()

    @rule(which=which, gpus=st.integers(0, 511), much=st.integers(0, 4), at_once=st.booleans())
    def others_use(self, which: int, gpus: int, much: int, at_once: bool) -> None:
        self.cluster.others_use(which, gpus, much)
        if at_once:
            self.cluster.cycle()

    @rule(which=which, where=which, wait_s=st.sampled_from((0.0, 5.0)), at_once=st.booleans())
    def job_is_found(self, which: int, where: int, wait_s: float, at_once: bool) -> None:
        self.cluster.job_is_found(which, where, wait_s)
        if at_once:
            self.cluster.cycle()

    @rule(which=which, node=which, wait_s=st.sampled_from((0.0, 5.0)), at_once=st.booleans())
    def job_is_refused(self, which: int, node: int, wait_s: float, at_once: bool) -> None:
        self.cluster.job_is_refused(which, node, wait_s)
        if at_once:
            self.cluster.cycle()

    @rule(which=which)
    def job_is_forgotten(self, which: int) -> None:
        self.cluster.job_is_forgotten(which)

    @rule(which=which, used=st.sampled_from((None, 0.01, 0.5)), gpus=st.integers(0, 511), at_once=st.booleans())
    def gpus_are_used(self, which: int, used: float | None, gpus: int, at_once: bool) -> None:
        self.cluster.gpus_are_used(which, used, gpus)
        if at_once:
            self.cluster.cycle()

    @rule(seconds=st.sampled_from((0.0, 1.0, 100.0, 10_000.0)))
    def time_passes(self, seconds: float) -> None:
        self.cluster.time_passes(seconds)

    @rule(which=which)
    def job_is_interrupted(self, which: int) -> None:
        self.cluster.job_is_interrupted(which)

    @rule(which=which, state=st.sampled_from((JobState.SUCCEEDED, JobState.FAILED)), at_once=st.booleans())
    def job_ends(self, which: int, state: JobState, at_once: bool) -> None:
        self.cluster.job_ends(which, state)
        if at_once:
            self.cluster.cycle()

    @rule(which=which)
    def backend_says_started(self, which: int) -> None:
        self.cluster.backend_says_started(which)

    @rule(which=which, left_s=st.sampled_from((0.0, 50.0, 5e5)), curve=st.integers(0, 4))
    def job_reports(self, which: int, left_s: float, curve: int) -> None:
        self.cluster.job_reports(which, left_s, curve)

    @rule()
    def a_late_plan_is_refused(self) -> None:
        self.cluster.a_late_plan_is_refused()

    @rule()
    def the_world_goes_on_in_a_copy(self) -> None:
        self.cluster.the_world_goes_on_in_a_copy()

    @invariant()
    def the_world_is_sound(self) -> None:
        type(self).steps += 1
        self.cluster.check()


@pytest.mark.parametrize("policy", policy_names())
def test_the_world_stays_sound_whatever_happens(policy: str) -> None:
    @seed(policy)  # other stories for every policy
    class StoryOf(Story):
        rules_ = replace(profile_for(policy), idle=IdleRules(50.0, IdleAction.SHRINK))

    run_state_machine_as_test(StoryOf, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))
    assert StoryOf.steps >= AT_LEAST, f"only {StoryOf.steps} steps"


# ----------------------------------------------------------------------------------------- driven by chance

SUBMIT_S = (None, 0.0)
WALKS: tuple[tuple[int, Callable[[Cluster, Random], None]], ...] = (
    (12, lambda cluster, chance: cluster.user_submits(chance.randrange(JOB_COUNT), chance.choice(SUBMIT_S))),
    (10, lambda cluster, chance: cluster.cycle(chance.choice((1.0, 1.0, 0.5)))),
    (
        2,
        lambda cluster, chance: cluster.user_changes_a_job(chance.randrange(9), chance.randrange(JOB_COUNT)),
    ),
    (
        2,
        lambda cluster, chance: cluster.user_wishes(chance.randrange(1000), chance.choice(list(DesiredState))),
    ),
    (1, lambda cluster, chance: cluster.job_fails(chance.randrange(1000), chance.choice((1.0, 50.0)))),
    (2, lambda cluster, chance: cluster.queue_changes(chance.randrange(QUEUE_COUNT))),
    (1, lambda cluster, chance: cluster.node_joins(chance.randrange(NODE_COUNT))),
    (1, lambda cluster, chance: cluster.node_is_lost(chance.randrange(1000))),
    (1, lambda cluster, chance: cluster.node_is_cordoned(chance.randrange(1000))),
    (2, lambda cluster, chance: cluster.gpu_fails(chance.randrange(1000), chance.randrange(8))),
    (2, lambda cluster, chance: cluster.node_is_well_again(chance.randrange(1000))),
    (1, lambda cluster, chance: cluster.lost_nodes_return()),
    (2, lambda cluster, chance: cluster.time_passes(chance.choice((0.0, 1.0, 100.0, 10_000.0)))),
    (1, lambda cluster, chance: cluster.user_cancels(chance.randrange(1000))),
    (1, lambda cluster, chance: cluster.job_is_interrupted(chance.randrange(1000))),
    (3, lambda cluster, chance: cluster.job_ends(chance.randrange(1000), JobState.SUCCEEDED)),
    (3, lambda cluster, chance: cluster.backend_says_started(chance.randrange(1000))),
    (1, lambda cluster, chance: cluster.node_changes(chance.randrange(1000), chance.randrange(NODE_COUNT))),
    (
        1,
        lambda cluster, chance: cluster.others_use(
            chance.randrange(1000), chance.choice((0, chance.randrange(512))), chance.randrange(5)
        ),
    ),
    (
        2,
        lambda cluster, chance: cluster.job_is_found(
            chance.randrange(1000), chance.randrange(1000), chance.choice((0.0, 5.0))
        ),
    ),
    (
        1,
        lambda cluster, chance: cluster.job_is_refused(
            chance.randrange(1000), chance.randrange(1000), chance.choice((0.0, 5.0))
        ),
    ),
    (
        4,
        lambda cluster, chance: cluster.gpus_are_used(
            chance.randrange(1000), chance.choice((None, 0.01, 0.01, 0.5)), chance.choice((9, 511, 8))
        ),
    ),
    (1, lambda cluster, chance: cluster.job_is_forgotten(chance.randrange(1000))),
    (2, lambda cluster, chance: cluster.job_reports(chance.randrange(1000), 1e5, chance.randrange(20))),
)


def walk(policy: str, steps: int, number: int) -> None:
    """Goes on for so many steps; a new cluster every hundred, so that all kinds of them are seen."""
    chance = Random(f"{policy} {number}")
    weights, moves = zip(*WALKS, strict=True)
    for step in range(steps):
        if step % 100 == 0:
            idle = IdleRules(50.0, chance.choice(list(IdleAction)))
            cluster = Cluster(replace(profile_for(policy), idle=idle))
            for _ in range(chance.randrange(1, 5)):
                cluster.node_joins(chance.randrange(NODE_COUNT))
        chance.choices(moves, weights)[0](cluster, chance)
        cluster.check()


@pytest.mark.slow
@pytest.mark.parametrize("policy", policy_names())
def test_the_world_stays_sound_on_a_long_walk(policy: str) -> None:
    walk(policy, WALK, number=1)
