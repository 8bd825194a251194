"""Running jobs stay, unless moving them pays: then both sides of the sum are in the evidence."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Share, Spread, Topology
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.placement import PlacerOptions, TopologyPlacer
from tests.support.worlds import (
    NOW_S,
    carry_out,
    commands_of,
    make_job,
    make_nodes,
    make_world,
    outcome,
    place,
    scaling,
)

ONE_NODE = Topology(Spread.NODE, required=True)
HALF = scaling(8, across_nodes=0.5)
RACKS = [Node("n0", 4, rack="x"), Node("n1", 4, rack="y"), Node("n2", 4, rack="y")]


# ----------------------------------------------------------------------------------- closer together


@pytest.mark.parametrize(
    ("why", "nodes", "held", "job", "expected"),
    [
        ("two halves become one", make_nodes(4, 4), "n0:0 n1:0", {}, "CONSOLIDATED n0:01"),
        (
            "the worker that stays keeps its index",
            make_nodes(2, 4),
            "n0:0 n1:3 n1:2",
            {},
            "CONSOLIDATED n1:032",
        ),
        (
            "on one of its nodes rather than another",
            make_nodes(2, 4, 4),
            "n0:0 n2:1 n2:0",
            {},
            "CONSOLIDATED n2:210",
        ),
        ("spread costs it nothing", make_nodes(4, 4), "n0:0 n1:0", {"curve": scaling(8)}, ""),
        ("it needs two nodes", make_nodes(4, 4), "n0:0123 n1:0123", {}, ""),
        ("it is nearly done", make_nodes(4, 4), "n0:0 n1:0", {"work_s": 1010.0}, ""),
        (
            "restarting takes too long",
            make_nodes(4, 4),
            "n0:0 n1:0",
            {"restart_s": 200.0, "work_s": 1900.0},
            "",
        ),
        ("too much would be lost", make_nodes(4, 4), "n0:0 n1:0", {"checkpoint_interval_s": 2000.0}, ""),
        (
            "into one rack",
            RACKS,
            "n0:0123 n1:0123",
            {"curve": scaling(8, 1.0, 0.5)},
            "CONSOLIDATED n2:0123 n1:0123",
        ),
        ("racks cost it nothing", RACKS, "n0:0123 n1:0123", {}, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_consolidation(why, nodes, held, job, expected):
    size = sum(len(part.split(":")[1]) for part in held.split())
    world = make_world(nodes, {"a": held}, [make_job("a", size, **{"curve": HALF, **job})])
    assert outcome(world, place(TopologyPlacer(), world, {})).get("a", "") == expected, why


def test_evidence_names_gain_and_cost():
    world = make_world(make_nodes(4, 4), {"a": "n0:0 n1:0"}, [make_job("a", 2, curve=HALF, restart_s=30.0)])
    move = place(TopologyPlacer(), world, {}).moves[0]
    # From speed 1 to 2 for 600 s; two restarts of 30 s at the higher speed.
    assert move.evidence == (("gain_s", 600.0), ("cost_s", 120.0))
    assert str(move.reason.sentence(move.evidence)) == "moves closer together: gains 600 s, costs 120 s"


def test_nobody_moves_when_changes_are_not_weighed():
    world = make_world(make_nodes(4, 4), {"a": "n0:0 n1:0"}, [make_job("a", 2, curve=HALF)])
    assert not place(TopologyPlacer(), world, {}, Costs(enabled=False)).moves


def test_a_job_that_is_just_starting_is_not_moved():
    world = make_world(make_nodes(4, 4), {"a": "n0:0 n1:0"}, [make_job("a", 2, curve=HALF)])
    apply(world, ev.JobInterrupted(1.0, "a"))
    assert not place(TopologyPlacer(), world, {}).moves


def test_moves_are_bounded():
    jobs = [make_job(f"j{k}", 2, submit_s=float(k), curve=HALF) for k in range(4)]
    running = {f"j{k}": f"n{2 * k}:0 n{2 * k + 1}:0" for k in range(4)}
    world = make_world(make_nodes(*[2] * 8), running, jobs)
    placed = place(TopologyPlacer(PlacerOptions(moves=3)), world, {})
    assert list(placed.moves) == [0, 1, 2]


def test_needless_nodes_count_when_told_so():
    world = make_world(make_nodes(4, 4, 4), {"a": "n0:01 n1:01 n2:0123"}, [make_job("a", 8)])
    assert not place(TopologyPlacer(), world, {}).moves
    placed = place(TopologyPlacer(PlacerOptions(scattered=0.7)), world, {})
    assert outcome(world, placed) == {"a": "CONSOLIDATED n0:0123 n2:0123"}


# ----------------------------------------------------------------------------------- making room


@pytest.mark.parametrize(
    ("why", "running", "costly", "wanted", "expected"),
    [
        (
            "the node with less to move is cleared",
            {"a": "n0:0", "b": "n1:01"},
            {},
            4,
            {"a": "MADE_ROOM n1:2", "new": "n0:0123"},
        ),
        (
            "or the cheaper one",
            {"a": "n0:0", "b": "n1:0"},
            {"a": 300.0},
            4,
            {"b": "MADE_ROOM n0:1", "new": "n1:0123"},
        ),
        (
            "only as much as is in the way",
            {"a": "n0:0", "b": "n0:1", "c": "n1:01"},
            {"a": 300.0},
            3,
            {"b": "MADE_ROOM n1:2", "new": "n0:123"},
        ),
        (
            "one who suffices rather than two",
            {"a": "n0:0", "b": "n0:12", "c": "n1:01"},
            {},
            3,
            {"b": "MADE_ROOM n1:23", "new": "n0:123"},
        ),
        (
            "it costs more than it gains",
            {"a": "n0:0", "b": "n1:0"},
            {"a": 9000.0, "b": 9000.0},
            4,
            {"new": "TOPOLOGY_UNMET"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_making_room(why, running, costly, wanted, expected):
    jobs = [
        make_job(name, sum(len(part.split(":")[1]) for part in text.split()), restart_s=costly.get(name, 30.0))
        for name, text in running.items()
    ]
    jobs.append(make_job("new", wanted, submit_s=1.0, topology=ONE_NODE))
    world = make_world(make_nodes(4, 4), running, jobs)
    found = outcome(world, place(TopologyPlacer(PlacerOptions(repack="never")), world, {"new": wanted}))
    assert found == expected, why


def test_room_for_whole_nodes():
    jobs = [*(make_job(name) for name in "abc"), make_job("new", 8, submit_s=1.0)]
    world = make_world(make_nodes(4, 4, 4), {"a": "n0:0", "b": "n1:0", "c": "n2:0"}, jobs)
    placed = place(TopologyPlacer(PlacerOptions(scattered=0.5)), world, {"new": 8})
    found = outcome(world, placed)
    assert found == {"a": "MADE_ROOM n2:1", "b": "MADE_ROOM n2:2", "new": "n0:0123 n1:0123"}


def test_evidence_of_all_moves_is_the_whole_sum():
    jobs = [make_job("a"), make_job("b", 2), make_job("new", 4, submit_s=1.0, topology=ONE_NODE)]
    world = make_world(make_nodes(4, 4), {"a": "n0:0", "b": "n1:01"}, jobs)
    (move,) = place(TopologyPlacer(), world, {"new": 4}).moves.values()
    assert move.reason is Reason.MADE_ROOM
    assert move.evidence == (("gain_s", 2400.0), ("cost_s", 60.0))


def test_shares_and_jobs_in_transition_are_not_moved():
    jobs = [make_job("a", share=Share(0, 50)), make_job("new", 4, submit_s=1.0, topology=ONE_NODE)]
    world = make_world(make_nodes(4, 1), {"a": "n0:0"}, jobs)
    assert outcome(world, place(TopologyPlacer(), world, {"new": 4})) == {"new": "TOPOLOGY_UNMET"}


# ----------------------------------------------------------------------------------- old traps


def test_six_three_and_three_on_three_nodes_of_four():
    jobs = [make_job("a", 6), make_job("b", 3), make_job("c", 3)]
    world = make_world(make_nodes(4, 4, 4), {}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 6, "b": 3, "c": 3})
    assert outcome(world, placed) == {"a": "n0:0123 n1:01", "b": "n2:012", "c": "n1:23 n2:3"}


@pytest.mark.parametrize("weighs", [True, False])
def test_six_three_and_three_where_the_threes_need_a_node_each(weighs):
    jobs = [make_job("a", 6), make_job("b", 3, topology=ONE_NODE), make_job("c", 3, topology=ONE_NODE)]
    world = make_world(make_nodes(4, 4, 4), {}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 6, "b": 3, "c": 3}, Costs(enabled=weighs))
    assert not placed.failures
    assert not placed.moves, "nobody runs yet"
    assert [len(placed.placements[row].nodes) for row in range(3)] == [3, 1, 1]


def test_six_three_and_three_that_cannot_be():
    jobs = [make_job(name, size, gpus_per_replica=3) for name, size in (("a", 6), ("b", 3), ("c", 3))]
    world = make_world(make_nodes(4, 4, 4), {}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 6, "b": 3, "c": 3})
    assert outcome(world, placed)["c"] == "FRAGMENTED"
    assert placed.failures[2].evidence == (("needs", 3), ("free", 3))


def test_three_moves_in_when_six_and_three_run():
    jobs = [
        make_job("a", 6),
        make_job("b", 3, topology=ONE_NODE),
        make_job("c", 3, submit_s=1.0, topology=ONE_NODE),
    ]
    world = make_world(make_nodes(4, 4, 4), {"a": "n0:0123 n1:01", "b": "n2:012"}, jobs)
    placed = place(TopologyPlacer(), world, {"c": 3})
    assert outcome(world, placed) == {"a": "MADE_ROOM n0:0123 n1:0 n2:3", "c": "n1:123"}


def test_nodes_of_unequal_size():
    jobs = [make_job("a"), make_job("b"), make_job("d"), make_job("c", 8, submit_s=1.0, topology=ONE_NODE)]
    world = make_world(make_nodes(8, 4, 4), {"a": "n0:0", "b": "n1:0", "d": "n2:0"}, jobs)
    placed = place(TopologyPlacer(), world, {"c": 8})
    assert outcome(world, placed) == {"a": "MADE_ROOM n1:1", "c": "n0:01234567"}


def test_a_plan_leaves_nothing_to_move():
    jobs = [make_job(name, 2, curve=HALF) for name in "abc"]
    world = make_world(make_nodes(2, 2, 2, 2), {"a": "n0:0 n1:0", "b": "n1:1 n2:0", "c": "n2:1 n3:0"}, jobs)
    for _ in range(3):
        placed = place(TopologyPlacer(), world, {})
        carry_out(world, commands_of(world, [], placed), NOW_S)
        for job in "abc":
            apply(world, ev.JobStarted(NOW_S, job))
    assert all(placement is not None and len(placement.nodes) == 1 for placement in world.jobs.placements)
    assert not placed.moves
