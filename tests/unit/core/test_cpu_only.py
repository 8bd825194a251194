"""CPU-only jobs: they take CPU and memory of any nodes, never a GPU, by priority and then by arrival."""

from typing import Any

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement, Span
from batuta.core.cpu_only import PATIENCE_S
from batuta.core.decide import decide
from batuta.core.job import DesiredState, Job, JobState, Spread, Topology
from batuta.core.job_table import Phase
from batuta.core.plan import Plan, Preempt, Resize, Start
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_names
from tests.support.invariants import check_invariants, check_plan
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world


def cpu_job(name: str, replicas: int = 1, cpus: float = 1, **changes: Any) -> Job:
    return make_job(name, replicas, gpus_per_replica=0, cpus_milli_per_gpu=int(cpus * 1000), **changes)


def cycle(world: World, now_s: float = NOW_S, policy: str = "fifo") -> Plan:
    """One cycle; whatever starts runs at once."""
    plan = decide(world, now_s, profile_for(policy))
    check_plan(world, plan)
    apply(world, ev.Planned(now_s, plan))
    check_invariants(world)
    for command in plan.commands:
        apply(world, ev.JobStarted(now_s, command.job))
    return plan


def nodes_of(world: World, job: str) -> list[str]:
    placement = world.jobs.placements[world.jobs.row(job)]
    return [] if placement is None else [span.node for span in placement.spans]


def why(plan: Plan, job: str) -> str:
    decision = plan.decisions.of(job)
    assert decision is not None
    return str(decision)


@pytest.mark.parametrize("policy", policy_names())
def test_under_every_policy_it_starts_at_once_though_all_gpus_are_taken(policy: str) -> None:
    waiting = make_job("next", 8, min=1)
    jobs = [make_job("all", 8, min=1), waiting, cpu_job("prepare", 2)]
    world = make_world(make_nodes(8, cpus_milli=16_000), {"all": "n0:01234567"}, jobs)
    before = world.capacity()
    cycle(world, policy=policy)
    assert nodes_of(world, "prepare") == ["n0", "n0"]
    assert world.capacity() == before == [8]
    assert world.layout.cpus_milli == [14_000]


@pytest.mark.parametrize("policy", policy_names())
def test_under_every_policy_jobs_with_gpus_get_what_they_would_without_it(policy: str) -> None:
    def plan_with(*more: Job) -> list[tuple[str, int]]:
        jobs = [make_job("a", 4, min=1), make_job("b", 2), make_job("c", 8, min=2)]
        world = make_world(make_nodes(4, 4, cpus_milli=8000), {}, [*jobs, *more])
        plan = decide(world, NOW_S, profile_for(policy))
        found = [(command.job, command.placement.size) for command in plan.commands if isinstance(command, Start)]
        return [(job, gpus) for job, gpus in found if gpus]

    assert plan_with() == plan_with(*(cpu_job(f"cpu{k}", submit_s=0.0) for k in range(5)))


def test_it_waits_when_cpus_are_out_and_starts_when_they_are_free() -> None:
    jobs = [cpu_job("first", 1, 3), cpu_job("second", 1, 2)]
    world = make_world(make_nodes(8, cpus_milli=4000), {}, jobs)
    plan = cycle(world)
    assert nodes_of(world, "first") == ["n0"]
    assert why(plan, "second") == "needs 1 replica with 2 CPUs each, the jobs that go first leave room for 0"
    apply(world, ev.JobEnded(NOW_S + 1, "first", JobState.SUCCEEDED))
    cycle(world, NOW_S + 1)
    assert nodes_of(world, "second") == ["n0"]


def test_a_gang_starts_as_a_whole_over_several_nodes_or_not_at_all() -> None:
    world = make_world(make_nodes(1, 1, cpus_milli=4000), {}, [cpu_job("four", 4, 2), cpu_job("one", 1, 2)])
    plan = cycle(world)
    assert sorted(nodes_of(world, "four")) == ["n0", "n0", "n1", "n1"]
    assert nodes_of(world, "one") == []
    assert why(plan, "one").startswith("needs 1 replica with 2 CPUs")


def test_the_more_important_goes_first_then_the_older() -> None:
    jobs = [cpu_job("old"), cpu_job("young", submit_s=1.0), cpu_job("urgent", priority=5, submit_s=2.0)]
    world = make_world(make_nodes(1, cpus_milli=2000), {}, jobs)
    cycle(world)
    assert [job for job in ("old", "young", "urgent") if nodes_of(world, job)] == ["old", "urgent"]


def test_it_goes_to_nodes_without_gpus_first_then_where_fewest_gpus_are_free() -> None:
    nodes = [
        Node("idle", 8, cpus_milli=2000),
        Node("busy", 8, cpus_milli=2000),
        Node("cpu", 0, cpus_milli=2000),
    ]
    jobs = [make_job("train", 8), *(cpu_job(f"j{k}", 1, 2) for k in range(3))]
    world = make_world(nodes, {"train": "busy:01234567"}, jobs)
    cycle(world)
    assert [nodes_of(world, f"j{k}") for k in range(3)] == [["cpu"], ["busy"], ["idle"]]


def test_who_has_waited_for_long_is_not_overtaken_where_it_could_run() -> None:
    jobs = [cpu_job("small", 1, 1), cpu_job("large", 1, 4, submit_s=1.0)]
    world = make_world(make_nodes(1, cpus_milli=4000), {}, jobs)
    cycle(world, 2.0)
    apply(world, ev.JobSubmitted(3.0, cpu_job("next", 1, 1, submit_s=3.0)))
    cycle(world, 3.0)
    assert nodes_of(world, "next"), "it may overtake at first"
    late_s = 1.0 + PATIENCE_S
    apply(world, ev.JobSubmitted(late_s, cpu_job("later", 1, 1, submit_s=late_s)))
    plan = cycle(world, late_s)
    assert not nodes_of(world, "later")
    assert "room for 0" in why(plan, "later")


def test_labels_taints_and_topology_hold_for_it_too() -> None:
    nodes = [
        Node("plain", 1, cpus_milli=8000),
        Node("big", 1, cpus_milli=8000, labels=(("disk", "ssd"),)),
        Node("spot", 1, cpus_milli=8000, taints=("spot",)),
    ]
    together = Topology(Spread.NODE, required=True)
    jobs = [
        cpu_job("labelled", node_labels=(("disk", "ssd"),)),
        cpu_job("close", 6, topology=together),
        cpu_job("wide", 9, topology=together),
    ]
    world = make_world(nodes, {}, jobs)
    plan = cycle(world)
    assert nodes_of(world, "labelled") == ["big"]
    assert len(set(nodes_of(world, "close"))) == 1
    assert why(plan, "wide") == (
        "needs 9 replicas with 1 CPUs and 0 GiB of memory each, "
        "the nodes that it may use have room for 8 when no job is on them"
    ).replace("1 CPUs", "1 CPU")


def test_a_node_that_is_lost_matches_no_job() -> None:
    nodes = [Node("gone", 1, cpus_milli=8000), Node("spot", 1, cpus_milli=8000, taints=("spot",))]
    world = make_world(nodes, {}, [cpu_job("j")])
    apply(world, ev.NodeLost(NOW_S, "gone"))
    assert "no node has the labels it wants" in why(cycle(world), "j")


def test_a_job_that_loses_a_node_gets_all_its_replicas_elsewhere() -> None:
    world = make_world(make_nodes(1, 1, 1, cpus_milli=2000), {}, [cpu_job("j", 4)])
    cycle(world)
    lost = nodes_of(world, "j")[0]
    apply(world, ev.NodeLost(NOW_S + 1, lost))
    check_invariants(world)
    assert world.jobs.phase_of(0) is Phase.BROKEN
    plan = cycle(world, NOW_S + 1)
    assert [type(command) for command in plan.commands] == [Resize]
    assert str(plan.commands[0].reason.sentence(plan.commands[0].evidence)) == "lost 2 replicas and gets others"
    assert len(nodes_of(world, "j")) == 4
    assert lost not in nodes_of(world, "j")


def test_a_job_that_loses_a_node_waits_when_there_is_no_other() -> None:
    world = make_world([Node("a", 0, cpus_milli=1000)], {}, [cpu_job("j")])
    cycle(world)
    apply(world, ev.NodeLost(NOW_S + 1, "a"))
    assert nodes_of(world, "j") == []
    plan = cycle(world, NOW_S + 1)
    assert plan.commands == ()
    apply(world, ev.NodeReturned(NOW_S + 2, "a"))
    cycle(world, NOW_S + 2)
    assert nodes_of(world, "j") == ["a"]


def test_who_is_parked_gives_its_cpus_back() -> None:
    world = make_world(make_nodes(1, cpus_milli=1000), {}, [cpu_job("j"), cpu_job("next")])
    cycle(world)
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.PARK))
    plan = cycle(world)
    assert isinstance(plan.commands[0], Preempt)
    assert nodes_of(world, "next") == ["n0"]


def test_it_uses_no_gpu_time_and_its_work_is_its_run_time() -> None:
    world = make_world(make_nodes(1), {}, [cpu_job("j", 3, work_s=500.0)])
    cycle(world)
    apply(world, ev.JobProgressed(NOW_S + 100, "j", 400.0))
    assert world.jobs.rate.tolist() == [1.0]
    apply(world, ev.JobEnded(NOW_S + 500, "j", JobState.SUCCEEDED))
    assert world.past["j"].attained_gpu_s == 0.0


def test_idle_gpus_are_nothing_to_it() -> None:
    world = make_world(make_nodes(4), {}, [cpu_job("j")])
    cycle(world)
    for time_s in (NOW_S + 100, NOW_S + 5000):
        apply(world, ev.GpusUsed(time_s, "n0", (0.0,) * 4))
    assert world.idle == {}


def test_a_found_job_is_taken_over_where_it_is() -> None:
    world = make_world(make_nodes(1, 1, cpus_milli=4000), {}, [cpu_job("j", 2)])
    found = Placement((Span("n0", ()), Span("n1", ())))
    apply(world, ev.JobFound(NOW_S, "j", found, running=True))
    check_invariants(world)
    assert nodes_of(world, "j") == ["n0", "n1"]
    assert world.layout.cpus_milli == [3000, 3000]
    assert cycle(world).commands == ()


def test_sizes_and_gpus_are_refused_for_it() -> None:
    assert cpu_job("j", 2, max=4).faults() == ["a CPU-only job has one size, found 2..4 replicas"]
    assert "accepts no GPU type" in cpu_job("j", gpu_types=(("H100", 1.0),)).faults()[0]


def test_ten_thousand_of_them_are_decided_in_little_more_time_than_one_thousand() -> None:
    """Those that find no room are of few shapes, and each shape is tried once."""
    jobs = [cpu_job(f"j{k:05}", 1 + k % 3, 1 + k % 2) for k in range(10_000)]
    world = make_world([Node(f"n{k}", 0, cpus_milli=4000) for k in range(200)], {}, jobs)
    plan = decide(world, NOW_S, profile_for("fifo"))
    taken = sum(
        len(command.placement.spans) * world.jobs.jobs[world.jobs.row(command.job)].cpus_milli_per_gpu
        for command in plan.commands
        if isinstance(command, Start)
    )
    assert taken == 200 * 4000
    waiting = [decision for decision in plan.decisions if decision.reason is Reason.WAITING_FOR_CPU]
    assert len(waiting) == 10_000 - len(plan.commands)
    assert np.all(np.array([decision.gpus for decision in plan.decisions]) == 0)
