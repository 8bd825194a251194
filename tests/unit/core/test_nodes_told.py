"""Nodes that change, and nodes of which others use a part: what our jobs keep, and what they can have."""

from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.decide import decide
from batuta.core.job import Share
from batuta.core.job_table import Phase
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.placement.cluster_state import ClusterState
from tests.support.invariants import check_invariants, check_plan
from tests.support.worlds import NOW_S, at, make_job, make_nodes, make_world, shown


def tell(world: World, *events: ev.Event) -> World:
    for event in events:
        apply(world, event)
        check_invariants(world, as_planned=False)
    return world


def where(world: World, job: str = "j") -> str:
    placement = world.jobs.placements[world.jobs.row(job)]
    return "" if placement is None else shown(placement)


def started(world: World, now_s: float = NOW_S) -> dict[str, str]:
    plan = decide(world, now_s, profile_for("fifo"))
    check_plan(world, plan)
    return {c.job: shown(c.placement) for c in plan.commands if isinstance(c, Start)}


def others(*gpus: int, cpus: int = 0, memory: int = 0, node: str = "n0") -> ev.OthersUse:
    return ev.OthersUse(NOW_S, node, gpus, cpus, memory)


# --------------------------------------------------------------------------------------- others use a node


def test_what_others_use_no_job_gets() -> None:
    world = tell(make_world(make_nodes(4), {}, [make_job("j", 2)]), others(0, 2))
    assert world.capacity() == [2]
    assert ClusterState.of(world).total(world.nodes.all) == ClusterState.of(world).widest(world.nodes.all) == 2
    assert started(world) == {"j": "n0:13"}


def test_a_job_that_is_too_large_beside_others_is_told_so() -> None:
    world = tell(make_world(make_nodes(4), {}, [make_job("j", 3)]), others(0, 2))
    (decision,) = decide(world, NOW_S, profile_for("fifo")).decisions
    assert (decision.reason, dict(decision.evidence)["capacity"]) == (Reason.EXCEEDS_CLUSTER, 2)


def test_what_others_give_back_is_free() -> None:
    world = tell(make_world(make_nodes(4), {}, [make_job("j", 4)]), others(0, 2), others())
    assert started(world) == {"j": "n0:0123"}


def test_a_job_keeps_the_gpus_that_others_are_said_to_use() -> None:
    """Until the backend tells who has them; nobody is stopped for it."""
    world = tell(make_world(make_nodes(4), {"j": "n0:0123"}, [make_job("j", 4)]), others(3))
    assert (where(world), world.capacity()) == ("n0:0123", [4])
    assert not decide(world, NOW_S, profile_for("fifo")).commands
    tell(world, ev.JobInterrupted(NOW_S, "j"))
    assert (world.layout.free, world.capacity()) == ([0b0111], [3])


@pytest.mark.parametrize(
    ("then", "left"),
    [
        (ev.GpuFailed(NOW_S, "n0", 3), "n0:012"),
        (ev.NodeChanged(NOW_S, Node("n0", 3)), "n0:012"),
        (ev.NodeLost(NOW_S, "n0"), ""),
        (others(), "n0:0123"),
        (ev.NodeCordoned(NOW_S, "n0"), "n0:0123"),
    ],
)
def test_such_a_gpu_can_be_lost_like_any_other(then: ev.Event, left: str) -> None:
    world = make_world(make_nodes(4), {"j": "n0:0123"}, [make_job("j", 4)])
    tell(world, others(3), then)
    assert where(world) == left


def test_a_node_that_returns_is_still_used_by_others() -> None:
    world = make_world(make_nodes(4), {"j": "n0:0123"}, [make_job("j", 4)])
    tell(world, others(3), ev.NodeLost(NOW_S, "n0"), others(3, 2), ev.NodeReturned(NOW_S, "n0"))
    assert world.layout.free == [0b0011]


def test_nobody_joins_on_a_card_that_others_are_said_to_use() -> None:
    half = Share(compute_percent=50)
    world = make_world(make_nodes(2), {"a": "n0:0"}, [make_job("a", share=half), make_job("b", share=half)])
    tell(world, others(0))
    assert started(world) == {"b": "n0:1"}


def test_others_may_use_gpus_before_the_node_tells_that_it_has_them() -> None:
    world = tell(make_world(make_nodes(2)), others(1, 3), ev.NodeChanged(NOW_S, Node("n0", 4)))
    assert (world.layout.free, world.missing()) == ([0b0101], {0: 0b1010})


@pytest.mark.parametrize(("cpus", "memory", "fits"), [(3000, 0, 1), (0, 30, 1), (9000, 0, 0), (1000, 10, 3)])
def test_cpu_and_memory_of_others_are_not_to_be_had(cpus: int, memory: int, fits: int) -> None:
    node = Node("n0", 4, cpus_milli=4000, memory_mib=40)
    wishes = {"cpus_milli_per_gpu": 1000, "memory_mib_per_gpu": 10}
    jobs = [make_job("wide", 4, **wishes), make_job("small", **wishes), make_job("zero", 4)]
    world = tell(make_world([node], {}, jobs), others(cpus=cpus, memory=memory))
    assert world.most_for(world.jobs.row("small")) == [fits]
    assert world.most_for(world.jobs.row("zero")) == [4]
    assert ("small" in started(world)) == (fits > 0), "it does not wait behind one that cannot run"
    tell(world, others())
    assert world.most_for(world.jobs.row("wide")) == [4]


def test_more_cpu_may_be_used_than_there_is() -> None:
    node, job = Node("n0", 4, cpus_milli=4000), make_job("j", 4, cpus_milli_per_gpu=1000)
    world = tell(make_world([node], {"j": "n0:0123"}, [job]), others(cpus=500))
    assert world.layout.cpus_milli == [-500]
    assert not decide(world, NOW_S, profile_for("fifo")).commands
    tell(world, ev.JobInterrupted(NOW_S, "j"))
    assert (world.layout.cpus_milli, started(world)) == ([3500], {})


# --------------------------------------------------------------------------------------------- nodes change


def test_gpus_that_a_node_no_longer_has_are_lost() -> None:
    jobs = [make_job("j", 2), make_job("k")]
    world = make_world(make_nodes(4), {"j": "n0:13", "k": "n0:0"}, jobs)
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 2)))
    assert (where(world, "j"), where(world, "k")) == ("n0:1", "n0:0")
    assert world.jobs.phase_of(world.jobs.row("j")) is Phase.BROKEN
    assert (world.capacity(), world.nodes.largest) == ([2], 2)


def test_gpus_that_a_node_has_in_addition_are_free() -> None:
    world = make_world(make_nodes(2), {"j": "n0:01"}, [make_job("j", 2), make_job("k", 6)])
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 8)))
    assert started(world) == {"k": "n0:234567"}


def test_a_gpu_that_was_ill_is_ill_when_it_comes_back() -> None:
    world = make_world(make_nodes(4))
    tell(world, ev.GpuFailed(NOW_S, "n0", 3))
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 2)), ev.NodeChanged(NOW_S, Node("n0", 4)))
    assert world.layout.free == [0b0111]


@pytest.mark.parametrize("changes", [{"labels": (("zone", "y"),)}, {"taints": ("spot",)}, {"cpus_milli": 100}], ids=str)
def test_a_job_stays_on_a_node_that_no_longer_suits_it_and_no_other_comes(changes: dict[str, Any]) -> None:
    wishes: dict[str, Any] = {"node_labels": (("zone", "x"),), "cpus_milli_per_gpu": 1000}
    node: dict[str, Any] = {"labels": (("zone", "x"),), "cpus_milli": 4000}
    jobs = [make_job("j", 2, **wishes), make_job("k", **wishes)]
    world = make_world([Node("n0", 4, **node)], {"j": "n0:01"}, jobs)
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 4, **{**node, **changes})))
    assert (where(world), started(world)) == ("n0:01", {})


def test_a_node_that_suits_from_now_on_is_used() -> None:
    world = make_world(make_nodes(4), {}, [make_job("j", node_labels=(("zone", "x"),))])
    assert started(world) == {}
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 4, labels=(("zone", "x"),))))
    assert started(world) == {"j": "n0:0"}


def test_a_job_on_a_node_of_another_type_than_was_thought_runs_at_its_speed() -> None:
    job = make_job("j", 2, gpu_types=(("gpu", 1.0), ("a100", 2.0)))
    world = make_world(make_nodes(4), {"j": "n0:01"}, [job])
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 4, gpu_type="a100")))
    row = world.jobs.row("j")
    assert world.nodes.types[world.jobs.gpu_type[row]] == "a100"
    assert world.jobs.rate[row] == 4.0
    assert world.jobs.remaining_s[row] == 1e6 - 2 * NOW_S, "until now it ran as was thought"
    assert world.capacity() == [0, 4]
    assert not decide(world, NOW_S, profile_for("fifo")).commands


def test_a_job_whose_nodes_change_their_type_one_after_the_other_is_left_in_peace() -> None:
    world = make_world(make_nodes(4, 4), {"j": "n0:0123 n1:0123"}, [make_job("j", 8)])
    for name in ("n1", "n0"):
        tell(world, ev.NodeChanged(NOW_S, Node(name, 4, gpu_type="a100")))
        assert not decide(world, NOW_S, profile_for("fifo")).commands


def test_a_lost_node_may_change() -> None:
    world = make_world(make_nodes(4), lost=["n0"])
    tell(world, ev.NodeChanged(NOW_S, Node("n0", 8)), ev.NodeReturned(NOW_S, "n0"))
    assert world.layout.free == [0xFF]


def test_what_is_told_of_a_node_that_nobody_knows_does_not_matter() -> None:
    world = make_world(make_nodes(4))
    tell(world, ev.NodeChanged(NOW_S, Node("ghost", 4)), others(0, node="ghost"))
    assert (world.capacity(), len(world.nodes.nodes)) == ([4], 1)


def test_a_copy_of_the_world_is_told_nothing() -> None:
    world = tell(make_world(make_nodes(4), {}, [make_job("j")]), others(0))
    twin = world.fork()
    tell(world, others(1, 2), ev.JobInterrupted(NOW_S, "j", avoid=("n0",)))
    assert (twin.others[0].gpus, twin.avoided) == (0b0001, {})
    assert at("n0:1") == at(started(twin)["j"])
