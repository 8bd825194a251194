"""Liveness: when no more events come, every job that can run does run, and the scheduler comes to rest.

Safety has a file of its own. Here nobody may wait for ever, and nothing may go round in circles.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.curve import linear_curve
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Job, JobState, Spread, Topology
from batuta.core.job_table import Phase
from batuta.core.quota import StopPolicy
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_names
from tests.support.arbitrary import JOB_COUNT, QUEUE_COUNT, make_job, make_node, with_queue
from tests.support.examples import examples
from tests.support.invariants import check_invariants, check_plan, most_alone, most_replicas
from tests.support.quotas import gpus_by_type, short

some_nodes = st.lists(st.integers(0, 10), min_size=1, max_size=4)
some_queues = st.lists(st.integers(0, QUEUE_COUNT - 1), max_size=2)
some_jobs = st.lists(st.integers(0, JOB_COUNT - 1), min_size=1, max_size=12)
RESTS_WITHIN = 8
"""Cycles until nothing changes any more, if nothing happens."""


def build(nodes: list[int], queues: list[int], jobs: list[int]) -> World:
    """A cluster with jobs of which each could run if it were alone, and some that never can."""
    world = World()
    for k, number in enumerate(nodes):
        apply(world, ev.NodeAdded(0.0, make_node(number, f"n{k}")))
    for number in queues:
        apply(world, ev.QuotaSet(0.0, with_queue(world.quota, number)))
    for k, number in enumerate(jobs):
        apply(world, ev.JobSubmitted(0.0, make_job(number, f"j{k:02}")))
    return world


def feasible(world: World, job: Job) -> bool:
    """Whether the job could run with the cluster and its queue to itself."""
    holds = world.effective_quota
    queue = holds.queue_of.get(job.queue)
    if queue is not None and queue.stop is not StopPolicy.NONE:
        return False
    if queue is None and world.quota and job.queue != "default":
        return False
    quota = gpus_by_type(holds, queue) if queue is not None else {}
    if job.cpu_only:
        # Quota is in GPUs here, and it takes none.
        return job.min <= most_replicas(world, job, [-1, *range(len(world.nodes.types))])
    accepted = dict(job.gpu_types)
    return any(
        job.min <= min(most_alone(world, job, kind), quota.get(name, 10**6), quota.get("*", 10**6))
        for kind, name in enumerate(world.nodes.types)
        if not accepted or name in accepted
    )


def cycle(world: World, rules: SchedulerProfile) -> bool:
    """Decides and carries it out, and says whether anything changed."""
    plan = decide(world, world.now_s, rules)
    check_plan(world, plan, rules.costs.freeze_transitions)
    if plan.empty:
        return False
    apply(world, ev.Planned(world.now_s, plan))
    for command in plan.commands:
        apply(world, ev.JobStarted(world.now_s, command.job))
    return True


def come_to_rest(world: World, rules: SchedulerProfile) -> None:
    for _ in range(RESTS_WITHIN):
        if not cycle(world, rules):
            return
        if rules.costs.enabled:
            # A policy that weighs nothing follows every second of progress; that it may.
            apply(world, ev.TimePassed(world.now_s + 1.0))
    raise AssertionError("it does not come to rest")


def running(world: World) -> list[str]:
    phases = world.jobs.phase.tolist()
    return [job for job, phase in zip(world.jobs.ids, phases, strict=True) if phase == Phase.RUNNING]


def finish_one_at_a_time(world: World, rules: SchedulerProfile, step_s: float = 60.0) -> None:
    """One job ends after the other, the last that came first; whoever could run has to be over then."""
    for _ in range(world.jobs.n + 1):
        come_to_rest(world, rules)
        check_invariants(world)
        there = running(world)
        if not there:
            break
        apply(world, ev.JobEnded(world.now_s + step_s, there[-1], JobState.SUCCEEDED))
    stuck = [job.id for job in world.jobs.jobs if feasible(world, job)]
    assert not stuck, f"with nobody else there, these wait for ever: {stuck}"


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=examples(40))
@given(nodes=some_nodes, queues=some_queues, jobs=some_jobs)
def test_every_job_that_can_run_ends(policy: str, nodes: list[int], queues: list[int], jobs: list[int]) -> None:
    finish_one_at_a_time(build(nodes, queues, jobs), profile_for(policy))


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=examples(40))
@given(nodes=some_nodes, queues=some_queues, jobs=some_jobs, lost=st.integers(0, 3), comes_back=st.booleans())
def test_every_job_that_can_run_ends_after_a_node_was_lost(
    policy: str, nodes: list[int], queues: list[int], jobs: list[int], lost: int, comes_back: bool
) -> None:
    lose_a_node_and_finish(policy, nodes, queues, jobs, lost, comes_back)


def lose_a_node_and_finish(
    policy: str, nodes: list[int], queues: list[int], jobs: list[int], lost: int, comes_back: bool
) -> None:
    world, rules = build(nodes, queues, jobs), profile_for(policy)
    come_to_rest(world, rules)
    name = f"n{lost % len(nodes)}"
    apply(world, ev.NodeLost(10.0, name))
    come_to_rest(world, rules)
    if comes_back:
        apply(world, ev.NodeReturned(20.0, name))
    finish_one_at_a_time(world, rules)


WENT_ROUND: dict[str, tuple[str, list[int], list[int], list[int], int]] = {
    "a share that stays beside those that came for its card": (
        *("elastic-srjf", [2, 4, 10], []),
        [43672, 21157, 43587, 4080, 36035, 2934, 41083, 30791, 21580, 1674, 949],
        0,
    ),
    "the same under afs-l": (
        *("afs-l", [10, 4, 0], []),
        [37890, 8902, 37629, 19527, 41029, 15872, 18597, 42713, 42496, 17911, 21920],
        2,
    ),
    "the same under srjf": (
        *("srjf", [9, 6], []),
        [32923, 25152, 19067, 12802, 27095, 38258, 11374, 7090, 30177],
        1,
    ),
    "the same under ffdl, with two types": (
        *("ffdl", [7, 10, 4], []),
        [24148, 29855, 12714, 28600, 38093, 16832, 13098, 25180, 28846, 15197],
        1,
    ),
    "jobs of a held queue that take room of a type": (
        *("ffdl", [8, 8, 10], [108]),
        [3867, 36349, 42954, 8790, 30393, 16569, 1242, 38900, 13687, 42265, 13257],
        1,
    ),
    "jobs without quota that take room of a type": (
        *("elastic-tiresias", [7, 3, 0], [5, 8]),
        [
            *(1431, 14626, 21457, 32643, 37516, 39518, 35448, 1143),
            *(41382, 17423, 22202, 4628, 39382, 7626, 33585, 14952),
        ],
        3,
    ),
}
"""Worlds that did not come to rest once: policy, nodes, queues, jobs, and the node that is lost."""


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("what", WENT_ROUND)
def test_what_went_round_in_circles_once_comes_to_rest(what: str, comes_back: bool) -> None:
    policy, nodes, queues, jobs, lost = WENT_ROUND[what]
    lose_a_node_and_finish(policy, nodes, queues, jobs, lost, comes_back)


HOPELESS: dict[str, dict[str, Any]] = {
    "its label is nowhere": {"node_labels": (("zone", "nowhere"),)},
    "its replica is wider than any node": {"size": 5, "min": 5, "max": 5, "gpus_per_replica": 5},
    "it wants more than there is": {"size": 9, "min": 9, "max": 9},
    "it wants to stay on one node and is larger": {"topology": Topology(Spread.NODE, required=True)},
    "no node has the CPU": {"cpus_milli_per_gpu": 9000},
}


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("why", HOPELESS)
def test_a_job_that_can_never_run_keeps_nobody_waiting(policy: str, why: str) -> None:
    """Given such a job, first in every order; when others come; then they get all GPUs."""
    world = World()
    for k in range(2):
        apply(world, ev.NodeAdded(0.0, Node(f"n{k}", 4, cpus_milli=8000)))
    shape = {"size": 8, "min": 8, "max": 8} | HOPELESS[why]
    apply(world, ev.JobSubmitted(0.0, Job("first", 0.0, curve=linear_curve(9), work_s=1.0, **shape)))
    for k in range(8):
        apply(world, ev.JobSubmitted(1.0, Job(f"later-{k}", 1.0, work_s=1e5)))

    come_to_rest(world, profile_for(policy))

    assert running(world) == [f"later-{k}" for k in range(8)]


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("why", ["its label is nowhere", "no node has the CPU"])
def test_a_job_that_can_never_run_uses_no_quota(policy: str, why: str) -> None:
    world = World()
    apply(world, ev.NodeAdded(0.0, Node("n0", 4, cpus_milli=8000)))
    apply(world, ev.QuotaSet(0.0, short(("default", {"*": 1}))))
    apply(world, ev.JobSubmitted(0.0, Job("first", 0.0, work_s=1.0, **HOPELESS[why])))
    apply(world, ev.JobSubmitted(1.0, Job("later", 1.0, work_s=1e5)))

    come_to_rest(world, profile_for(policy))

    assert running(world) == ["later"]
