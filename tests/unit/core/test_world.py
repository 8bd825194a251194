"""What each event does to the World: given a small one, when it happens, then exactly this is so."""

import math
from dataclasses import replace
from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.apply import StalePlanError, apply
from batuta.core.cluster import Node
from batuta.core.curve import linear_curve
from batuta.core.job import Job, JobState, Share
from batuta.core.job_table import Phase
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World, speed_at
from tests.support.invariants import check_invariants, fingerprint
from tests.support.quotas import short
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world, scaling, shown


def seen(world: World, job: str) -> tuple[str, str, float]:
    """Phase, place and rate of a job."""
    row = world.jobs.row(job)
    placement = world.jobs.placements[row]
    phase = Phase(int(world.jobs.phase[row])).name
    return phase, shown(placement) if placement else "", float(world.jobs.rate[row])


def fact(world: World, job: str, name: str) -> float:
    row = world.jobs.row(job)
    found: float = getattr(world.jobs, name)[row].item()
    return found


def two_nodes() -> World:
    """Job `a` runs on three GPUs of two nodes, `b` on one, `c` waits."""
    return make_world(
        make_nodes(2, 2),
        {"a": "n0:01 n1:0", "b": "n1:1"},
        [make_job("a", 3, min=1, max=4, work_s=3000.0), make_job("b", work_s=500.0), make_job("c")],
    )


# --------------------------------------------------------------------------------------------- a table of all

EVENTS: dict[str, tuple[list[ev.Event], dict[str, tuple[str, str, float]], list[int]]] = {
    # what happens: (events, (phase, place, rate) of jobs that change, capacity)
    "a job comes": ([ev.JobSubmitted(NOW_S, make_job("d"))], {"d": ("WAITING", "", 0.0)}, [4]),
    "a job is interrupted": ([ev.JobInterrupted(NOW_S, "a")], {"a": ("WAITING", "", 0.0)}, [4]),
    "a waiting job is interrupted": ([ev.JobInterrupted(NOW_S, "c")], {}, [4]),
    "a job that nobody knows is interrupted": ([ev.JobInterrupted(NOW_S, "x")], {}, [4]),
    "a running job says again that it runs": ([ev.JobStarted(NOW_S, "a")], {}, [4]),
    "a waiting job says that it runs": ([ev.JobStarted(NOW_S, "c")], {}, [4]),
    "a job that nobody knows says that it runs": ([ev.JobStarted(NOW_S, "x")], {}, [4]),
    "a job that nobody knows reports": ([ev.JobProgressed(NOW_S, "x", 5.0)], {}, [4]),
    "a job that nobody knows ends": ([ev.JobEnded(NOW_S, "x", JobState.FAILED)], {}, [4]),
    "a job that nobody knows is changed": ([ev.JobChanged(NOW_S, make_job("x"))], {}, [4]),
    "a node joins": ([ev.NodeAdded(NOW_S, Node("n2", 8))], {}, [12]),
    "a node of another type joins": ([ev.NodeAdded(NOW_S, Node("n2", 8, gpu_type="b"))], {}, [4, 8]),
    "a node is lost": (
        [ev.NodeLost(NOW_S, "n1")],
        {"a": ("BROKEN", "n0:01", 0.0), "b": ("WAITING", "", 0.0)},
        [2],
    ),
    "a node is lost twice": (
        [ev.NodeLost(NOW_S, "n0"), ev.NodeLost(NOW_S, "n0")],
        {"a": ("BROKEN", "n1:0", 0.0)},
        [2],
    ),
    "all nodes are lost": (
        [ev.NodeLost(NOW_S, "n0"), ev.NodeLost(NOW_S, "n1")],
        {"a": ("WAITING", "", 0.0), "b": ("WAITING", "", 0.0)},
        [0],
    ),
    "a lost node returns empty": (
        [ev.NodeLost(NOW_S, "n0"), ev.NodeReturned(NOW_S, "n0")],
        {"a": ("BROKEN", "n1:0", 0.0)},
        [4],
    ),
    "a node that was not lost returns": ([ev.NodeReturned(NOW_S, "n0")], {}, [4]),
    "a node is cordoned, who runs there stays": ([ev.NodeCordoned(NOW_S, "n0")], {}, [4]),
    "a cordoned node is lost and returns cordoned": (
        [ev.NodeCordoned(NOW_S, "n0"), ev.NodeLost(NOW_S, "n0"), ev.NodeReturned(NOW_S, "n0")],
        {"a": ("BROKEN", "n1:0", 0.0)},
        [2],
    ),
    "a node is opened again": ([ev.NodeCordoned(NOW_S, "n0"), ev.NodeUncordoned(NOW_S, "n0")], {}, [4]),
    "a GPU fails": ([ev.GpuFailed(NOW_S, "n0", 1)], {"a": ("BROKEN", "n0:0 n1:0", 0.0)}, [3]),
    "a job's only GPU fails": ([ev.GpuFailed(NOW_S, "n1", 1)], {"b": ("WAITING", "", 0.0)}, [3]),
    "a GPU is repaired": (
        [ev.GpuFailed(NOW_S, "n0", 1), ev.GpuRepaired(NOW_S, "n0", 1)],
        {"a": ("BROKEN", "n0:0 n1:0", 0.0)},
        [4],
    ),
    "a GPU fails on a lost node, which returns without it": (
        [ev.NodeLost(NOW_S, "n1"), ev.GpuFailed(NOW_S, "n1", 1), ev.NodeReturned(NOW_S, "n1")],
        {"a": ("BROKEN", "n0:01", 0.0), "b": ("WAITING", "", 0.0)},
        [3],
    ),
    "a GPU is repaired on a lost node, which stays lost": (
        [ev.GpuFailed(NOW_S, "n1", 1), ev.NodeLost(NOW_S, "n1"), ev.GpuRepaired(NOW_S, "n1", 1)],
        {"a": ("BROKEN", "n0:01", 0.0), "b": ("WAITING", "", 0.0)},
        [2],
    ),
    "a broken job says that it runs": (
        [ev.GpuFailed(NOW_S, "n0", 1), ev.JobStarted(NOW_S, "a")],
        {"a": ("BROKEN", "n0:0 n1:0", 0.0)},
        [3],
    ),
    "time passes": ([ev.TimePassed(NOW_S)], {}, [4]),
    "a queue appears": ([ev.QuotaSet(NOW_S, short(("q", {})))], {}, [4]),
}
BEFORE = {"a": ("RUNNING", "n0:01 n1:0", 3.0), "b": ("RUNNING", "n1:1", 1.0), "c": ("WAITING", "", 0.0)}


@pytest.mark.parametrize("what", EVENTS)
def test_given_two_nodes_when(what: str) -> None:
    events, changed, capacity = EVENTS[what]
    world = two_nodes()
    version = world.version
    for event in events:
        apply(world, event)
        check_invariants(world)
    assert {job: seen(world, job) for job in world.jobs.ids} == BEFORE | changed
    assert world.capacity() == capacity
    assert (world.version, world.now_s) == (version + len(events), NOW_S)


def test_time_never_goes_back() -> None:
    world = two_nodes()
    apply(world, ev.TimePassed(50.0))
    apply(world, ev.TimePassed(20.0))
    assert world.now_s == 50.0


# ---------------------------------------------------------------------------------------------- life of a job


def test_a_job_that_ends_leaves_its_gpus_and_its_story() -> None:
    world = two_nodes()
    apply(world, ev.JobEnded(100.0, "a", JobState.SUCCEEDED))
    check_invariants(world, ["a", "b", "c"])
    past = world.past["a"]
    assert (past.state, past.first_start_s, past.end_s, past.attained_gpu_s, past.restarts) == (
        *(JobState.SUCCEEDED, 0.0, 100.0),
        *(300.0, 0),
    )


def test_the_same_job_cannot_be_submitted_twice_not_even_after_its_end() -> None:
    world = two_nodes()
    apply(world, ev.JobEnded(100.0, "b", JobState.SUCCEEDED))
    before = fingerprint(world)
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=f"job {name} exists already"):
            apply(world, ev.JobSubmitted(100.0, make_job(name)))
    with pytest.raises(ValueError, match="node n0 exists already"):
        apply(world, ev.NodeAdded(100.0, Node("n0", 1)))
    assert fingerprint(world) == before


def test_progress_and_service_are_booked_as_the_rate_changes() -> None:
    world = two_nodes()
    carry_out(world, [Resize("a", at("n0:0 n1:0"), Reason.SHRANK)], 100.0)
    assert fact(world, "a", "remaining_s") == 3000.0 - 3 * 100
    assert fact(world, "a", "attained_gpu_s") == 300.0
    apply(world, ev.JobStarted(130.0, "a"))
    assert fact(world, "a", "remaining_s") == 2700.0, "no progress in a restart"
    assert fact(world, "a", "attained_gpu_s") == 300.0 + 2 * 30, "but it holds GPUs"
    carry_out(world, [Preempt("a", Reason.PREEMPTED)], 230.0)
    assert fact(world, "a", "remaining_s") == 2700.0 - 2 * 100
    carry_out(world, [Start("a", at("n0:0"), Reason.ADMITTED)], 1000.0)
    assert fact(world, "a", "service_gpu_s") == 0.0, "service counts from the last start"
    assert fact(world, "a", "attained_gpu_s") == 300.0 + 60 + 200
    assert fact(world, "a", "restarts") == 2
    assert [fact(world, "a", f"{name}_s") for name in ("first_start", "last_start", "last_resize", "last_stop")] == [
        *(0.0, 1000.0, 100.0, 230.0),
    ]


def test_a_report_replaces_what_was_predicted() -> None:
    world = two_nodes()
    apply(world, ev.JobProgressed(100.0, "a", 50.0, curve=linear_curve(2), restart_s=7.0))
    assert seen(world, "a")[2] == 2.0
    assert (fact(world, "a", "remaining_s"), fact(world, "a", "restart_s")) == (50.0, 7.0)
    apply(world, ev.JobProgressed(110.0, "a", 40.0))
    assert seen(world, "a")[2] == 2.0
    check_invariants(world)


def test_what_people_see_of_a_job() -> None:
    world = make_world(make_nodes(2, 2), {}, [make_job("a", 2, min=1)])

    def state() -> JobState:
        return world.state_of(0)

    assert state() is JobState.PENDING
    carry_out(world, [Start("a", at("n0:0 n1:0"), Reason.ADMITTED)], 1.0)
    assert state() is JobState.SETTING_UP
    apply(world, ev.JobStarted(2.0, "a"))
    assert state() is JobState.RUNNING
    carry_out(world, [Resize("a", at("n0:0"), Reason.SHRANK)], 3.0)
    assert state() is JobState.RESIZING
    carry_out(world, [Migrate("a", at("n1:0"), Reason.CONSOLIDATED)], 4.0)
    assert state() is JobState.RESIZING
    carry_out(world, [Preempt("a", Reason.PREEMPTED)], 5.0)
    assert state() is JobState.PREEMPTED


# ---------------------------------------------------------------------------------------------------- changes

OTHER: dict[str, Any] = {
    "submit_s": 77.0,
    "sequence": 5,
    "gpus_per_replica": 2,
    "cpus_milli_per_gpu": 900,
    "memory_mib_per_gpu": 9,
    "share": Share(compute_percent=5),
    "gpu_types": (("zz", 1.0),),
    "node_labels": (("zone", "x"),),
    "work_s": 1.0,
}


@pytest.mark.parametrize("field", OTHER)
def test_a_change_takes_over_the_request_and_nothing_else(field: str) -> None:
    """What a job holds was booked by the rest; a message that says otherwise must not upset the books."""
    world = two_nodes()
    known = world.jobs.jobs[world.jobs.row("a")]
    wanted = replace(known, size=2, min=2, max=2, priority=9, queue="other")
    apply(world, ev.JobChanged(NOW_S, replace(wanted, **{field: OTHER[field]})))
    assert world.jobs.jobs[world.jobs.row("a")] == wanted
    check_invariants(world, changed={"a"})
    apply(world, ev.JobInterrupted(NOW_S, "a"))
    check_invariants(world)


def test_a_job_without_gpus_may_also_want_others() -> None:
    world = two_nodes()
    known = world.jobs.jobs[world.jobs.row("c")]
    wanted = replace(known, gpu_types=(("b", 2.0),), node_labels=(("disk", "fast"),), tolerations=("spot",))
    apply(world, ev.JobChanged(NOW_S, replace(wanted, share=Share(memory_mib=1))))
    assert world.jobs.jobs[world.jobs.row("c")] == wanted
    check_invariants(world)


def test_a_change_keeps_what_was_learned_unless_it_ends_below_the_new_range() -> None:
    world = two_nodes()
    learned = scaling(4, across_nodes=0.5)
    apply(world, ev.JobProgressed(10.0, "a", 500.0, curve=learned))
    known = world.jobs.jobs[world.jobs.row("a")]
    apply(world, ev.JobChanged(10.0, replace(known, max=3, curve=linear_curve(3))))
    assert world.jobs.jobs[world.jobs.row("a")].curve == learned
    apply(world, ev.JobChanged(10.0, replace(known, max=16, curve=linear_curve(16))))
    assert world.jobs.jobs[world.jobs.row("a")].curve == linear_curve(16)
    check_invariants(world)


# ------------------------------------------------------------------------------------------------------ plans


def test_a_plan_for_another_version_is_refused_and_nothing_happens() -> None:
    world = two_nodes()
    plan = Plan(world.version, 0.0, "test", (Preempt("a", Reason.PREEMPTED),), (), no_decisions())
    apply(world, ev.TimePassed(1.0))
    before = fingerprint(world)
    with pytest.raises(StalePlanError, match=r"plan is for version \d+, the World has \d+"):
        apply(world, ev.Planned(1.0, plan))
    assert fingerprint(world) == before


def test_two_jobs_may_swap_places_in_one_plan() -> None:
    world = make_world(make_nodes(1, 1), {"a": "n0:0", "b": "n1:0"}, [make_job("a"), make_job("b")])
    carry_out(world, [Migrate("a", at("n1:0"), Reason.MADE_ROOM), Migrate("b", at("n0:0"), Reason.MADE_ROOM)], 1.0)
    check_invariants(world)
    assert (seen(world, "a")[1], seen(world, "b")[1]) == ("n1:0", "n0:0")


def test_a_plan_moves_jobs_between_tiers() -> None:
    world = two_nodes()
    plan = Plan(world.version, 5.0, "test", (), (("a", 1),), no_decisions())
    assert not plan.empty
    apply(world, ev.Planned(5.0, plan))
    assert (fact(world, "a", "tier"), fact(world, "a", "tier_since_s")) == (1, 5.0)


# ------------------------------------------------------------------------------------------------------ speed


@pytest.mark.parametrize(
    ("place", "speed"),
    [("n0:0", 1.0), ("n0:01", 2.0), ("n0:0 n1:0", 1.0), ("n0:0 n2:0", 0.5), ("n0:0 n1:0 n0:1", 1.5)],
)
def test_speed_falls_across_nodes_and_racks(place: str, speed: float) -> None:
    nodes = [Node("n0", 4, rack="r0"), Node("n1", 4, rack="r0"), Node("n2", 4, rack="r1")]
    world = make_world(nodes)
    job = make_job("a", 4, curve=scaling(4, across_nodes=0.5, across_racks=0.5))
    assert speed_at(world, job, at(place)) == pytest.approx(speed)


def test_speed_depends_on_the_gpu_type() -> None:
    world = make_world([Node("n0", 4, gpu_type="old"), Node("n1", 4, gpu_type="new")])
    job = Job("a", 0.0, gpu_types=(("old", 1.0), ("new", 3.0)))
    assert (speed_at(world, job, at("n0:0")), speed_at(world, job, at("n1:0"))) == (1.0, 3.0)


# ------------------------------------------------------------------------------------------------------ forks


def test_a_fork_is_equal_and_independent_whatever_happens_to_either() -> None:
    world = two_nodes()
    before, twin = fingerprint(world), world.fork()
    assert fingerprint(twin) == before
    for events, _, _ in EVENTS.values():
        other = twin.fork()
        for event in events:
            apply(other, event)
    assert fingerprint(twin) == fingerprint(world) == before


def test_gpu_seconds_are_never_lost_between_stops() -> None:
    world = two_nodes()
    apply(world, ev.JobInterrupted(10.0, "b"))
    carry_out(world, [Start("b", at("n1:1"), Reason.ADMITTED)], 50.0)
    apply(world, ev.JobEnded(60.0, "b", JobState.SUCCEEDED))
    assert math.isclose(world.past["b"].attained_gpu_s, 10.0 + 10.0)
