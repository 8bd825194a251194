"""A World whose books do not agree with its jobs is told so, and a gang that does not get on is named."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import placement_of
from batuta.core.plan import Plan, Start, Stop, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.soundness import (
    STUCK_AFTER_S,
    Severity,
    check_gangs,
    check_quota,
    check_reservations,
    check_world,
)
from tests.support.worlds import make_job, make_nodes


@pytest.fixture
def world() -> World:
    """Two nodes of four GPUs; job a runs on two of them, job b waits."""
    found = World()
    for node in make_nodes(4, 4):
        apply(found, ev.NodeAdded(0.0, node))
    for name in "ab":
        apply(found, ev.JobSubmitted(1.0, make_job(name, 2)))
    start(found, "a", (0, 1), 2.0)
    apply(found, ev.JobStarted(3.0, "a"))
    return found


def plan(world: World, command, now_s: float) -> None:
    apply(world, ev.Planned(now_s, Plan(world.version, now_s, "fifo", (command,), (), no_decisions())))


def start(world: World, job: str, gpus: tuple[int, ...], now_s: float) -> None:
    node = world.nodes.nodes[0].name
    plan(world, Start(job, placement_of((node, gpu) for gpu in gpus), Reason.FULL_SIZE), now_s)


def test_a_sound_world(world):
    assert {one.severity for one in check_world(world, 10_000.0)} == {Severity.OK}


def test_a_gang_that_does_not_start_is_named_once_it_takes_too_long(world):
    start(world, "b", (2, 3), 100.0)
    assert [one.severity for one in check_gangs(world, 100.0 + STUCK_AFTER_S)] == [Severity.OK]
    (finding,) = check_gangs(world, 101.0 + STUCK_AFTER_S)
    assert finding.severity is Severity.WARNING
    assert finding.found == "job b has been starting for 15 min and holds 2 GPUs"
    assert "batuta logs b" in finding.fix


def test_a_job_that_does_not_end_is_named(world):
    plan(world, Stop("a", Reason.FULL_SIZE), 100.0)
    (finding,) = check_gangs(world, 100.0 + 3 * 3600)
    assert finding.found == "job a has been being stopped for 3 h and holds no GPUs"


def test_many_stuck_gangs_are_counted(world):
    apply(world, ev.NodeAdded(100.0, make_nodes(4, 4, 40)[2]))
    node = world.nodes.nodes[2].name
    for k in range(12):
        apply(world, ev.JobSubmitted(100.0, make_job(f"c{k}", 1)))
        plan(world, Start(f"c{k}", placement_of([(node, k)]), Reason.FULL_SIZE), 100.0)
    findings = list(check_gangs(world, 10_000.0))
    assert len(findings) == 11
    assert findings[-1].found == "2 more"


@pytest.mark.parametrize("ghost", ["gone", "b"])
def test_quota_of_a_job_that_has_no_gpus_is_leaked(world, ghost):
    world.flavors[ghost] = (("nvidia.com/gpu", "default"),)
    finding = check_quota(world)
    assert (finding.severity, ghost in finding.found) == (Severity.ERROR, True)


def test_a_gpu_that_is_taken_by_nobody_is_an_orphan(world):
    world.layout.take(1, 0b110, make_job("gone", 2))
    finding = check_reservations(world)
    node = world.nodes.nodes[1].name
    assert finding.severity is Severity.ERROR
    assert finding.found == f"2 GPUs are taken by no job: {node}:1, {node}:2"


def test_a_gpu_that_two_jobs_have(world):
    start(world, "b", (2, 3), 100.0)
    jobs = world.jobs
    jobs.placements[jobs.row("b")] = jobs.placements[jobs.row("a")]
    found = check_reservations(world).found
    assert "are taken twice" in found
    assert "2 GPUs are taken by no job" in found
