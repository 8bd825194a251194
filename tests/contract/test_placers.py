"""What every placer has to keep, whatever the cluster, the jobs and the targets look like."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement, placement_of
from batuta.core.job import Job, Share, Spread, Topology
from batuta.core.job_table import Phase
from batuta.core.layout import Layout
from batuta.core.placer import Placed, Placer, Target
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement import MostFreePlacer, PlacerOptions, TopologyPlacer, WholeNodePlacer
from tests.support.examples import examples
from tests.support.worlds import NOW_S, carry_out, commands_of, make_job, scaling

PLACERS = {
    "topology": TopologyPlacer(),
    "topology-assumes-scatter": TopologyPlacer(PlacerOptions(scattered=0.7, rescues=16)),
    "topology-no-repack": TopologyPlacer(PlacerOptions(repack="never", moves=0)),
    "most-free": MostFreePlacer(),
    "most-free-by-size": MostFreePlacer(by_size=True),
    "whole-nodes": WholeNodePlacer(),
}

# ----------------------------------------------------------------------------------- any world


def any_node(rng: Random, name: str, picky: bool) -> Node:
    gpus = rng.choice((1, 2, 3, 4, 4, 8))
    halves = tuple(gpu * 2 // gpus for gpu in range(gpus))
    return Node(
        name,
        gpus,
        gpu_type=rng.choice("aaab"),
        gpu_memory_mib=rng.choice((1000, 2000)),
        cpus_milli=rng.choice((0, 0, 1000 * gpus)),
        memory_mib=rng.choice((0, 0, 8 * gpus)),
        rack=rng.choice(("", "r1", "r2")),
        nvlink=rng.choice(((), halves, tuple(gpu % 2 for gpu in range(gpus)))),
        numa=rng.choice(((), halves)),
        labels=(("zone", "x"),) if not picky or rng.random() < 0.7 else (),
        taints=("spot",) if picky and rng.random() < 0.2 else (),
    )


def any_job(rng: Random, name: str) -> Job:
    common = {
        "cpus_milli_per_gpu": rng.choice((0, 0, 700, 1700)),
        "memory_mib_per_gpu": rng.choice((0, 0, 10)),
        "node_labels": rng.choice(((), (), (("zone", "x"),))),
        "tolerations": rng.choice(((), ("spot",))),
        "submit_s": float(rng.randrange(4)),
    }
    if rng.random() < 0.15:
        share = Share(rng.choice((0, 400, 900)), rng.choice((10, 30, 60)))
        return make_job(name, 1, share=share, **common)
    step = rng.choice((1, 1, 1, 1, 2, 3))
    low = rng.choice((1, 1, 1, 2, 3, 4))
    high = low + rng.choice((0, 0, 1, 3))
    sizes = rng.choice((None, tuple(sorted({low, (low + high) // 2, high}))))
    topology = Topology(rng.choice(list(Spread)), rng.random() < 0.4, rng.random() < 0.2)
    return make_job(
        name,
        low * step,
        min=low * step,
        max=high * step,
        sizes=sizes and tuple(size * step for size in sizes),
        gpus_per_replica=step,
        topology=topology,
        curve=scaling(high * step, *rng.choice(((1.0, 1.0), (0.5, 0.8), (1.0, 0.6)))),
        checkpoint_interval_s=rng.choice((None, 600.0)),
        work_s=rng.choice((100.0, 1e6, 1e6)),
        **common,
    )


def build_world(rng: Random, nodes: int, jobs: int) -> tuple[World, list[Target]]:
    """Some jobs run, some start, some wait; nodes and GPUs may be lost or cordoned; and the targets."""
    world, picky = World(), rng.random() < 0.3
    for k in range(nodes):
        apply(world, ev.NodeAdded(0.0, any_node(rng, f"n{k}", picky)))
    for k in range(jobs):
        apply(world, ev.JobSubmitted(3.0, any_job(rng, f"j{k}")))
    for row in rng.sample(range(jobs), jobs):
        placement = _start(rng, world, row) if rng.random() < 0.7 else None
        if placement is not None:
            job = world.jobs.jobs[row].id
            carry_out(world, [Start(job, placement, Reason.ADMITTED)], 10.0)
            if rng.random() < 0.9:
                apply(world, ev.JobStarted(20.0, job))
    trouble = rng.choice((0.0, 0.0, 0.3))
    for node in world.nodes.nodes:
        if rng.random() < trouble:
            gpu = rng.randrange(node.gpus)
            kinds = (
                ev.NodeLost(30.0, node.name),
                ev.NodeCordoned(30.0, node.name),
                ev.GpuFailed(30.0, node.name, gpu),
            )
            apply(world, rng.choice(kinds))
    return world, _any_targets(rng, world)


# The counts are Hypothesis' to shrink, the details come from a seed: that finds far more than drawing them.
any_world = st.builds(
    build_world, st.integers(0, 2**32 - 1).map(Random), nodes=st.integers(1, 8), jobs=st.integers(1, 16)
)


def _start(rng: Random, world: World, row: int) -> Placement | None:
    """A legal place for a waiting job: a good one, or one that a long history may have left it with."""
    job, kind = world.jobs.jobs[row], rng.randrange(len(world.nodes.types))
    size = rng.choice(_legal_sizes(job))
    loose = job.share is None and job.gpus_per_replica == 1 and not job.topology.required
    if loose and not job.topology.single_numa and rng.random() < 0.6:
        suited = world.nodes.matching(job) & world.nodes.by_type[kind]
        free = [
            (node.name, gpu)
            for i, node in enumerate(world.nodes.nodes)
            for gpu in range(node.gpus)
            if suited >> i & 1 and world.layout.free[i] >> gpu & 1
        ]
        if len(free) >= size:
            found = placement_of(rng.sample(free, size))
            return found if world.layout.holds(found, job) else None
    placed = TopologyPlacer().place(world, 10.0, [Target(row, size, kind)], Costs(enabled=False))
    return placed.placements.get(row)


def _any_targets(rng: Random, world: World) -> list[Target]:
    jobs, found = world.jobs, []
    change = rng.choice((0.2, 0.6))
    for row in range(jobs.n):
        held, kind = int(jobs.held[row]), int(jobs.gpu_type[row])
        broken = jobs.phase[row] == Phase.BROKEN
        if kind < 0 or rng.random() < 0.1:
            kind = rng.randrange(len(world.nodes.types))
        gpus = rng.choice((0, *_legal_sizes(jobs.jobs[row]) * 2))
        same = gpus == held and kind == jobs.gpu_type[row]
        if broken or (rng.random() < change and not same and (gpus or held)):
            found.append(Target(row, gpus, kind))
    return found


def _legal_sizes(job: Job) -> tuple[int, ...]:
    return job.sizes or tuple(range(job.min, job.max + 1, job.gpus_per_replica))


# ----------------------------------------------------------------------------------- the contract


@pytest.mark.parametrize("placer", PLACERS.values(), ids=PLACERS.keys())
@given(given=any_world, weighs=st.booleans())
def test_contract(placer: Placer, given: tuple[World, list[Target]], weighs: bool):
    (world, targets), costs = given, Costs(enabled=weighs)
    before = fingerprint(world)

    placed = placer.place(world, NOW_S, targets, costs)

    assert fingerprint(world) == before, "the World was changed"
    assert same_answer(placer.place(world, NOW_S, targets, costs), placed), "the same question, another answer"
    check_answer(world, targets, placed, costs)
    after = world.fork()
    carry_out(after, commands_of(world, targets, placed), NOW_S)
    assert layout_of(placed.layout) == layout_of(after.layout), "the layout is not what the changes make of it"
    check_books(after)
    for row, placement in [
        *placed.placements.items(),
        *((row, m.placement) for row, m in placed.moves.items()),
    ]:
        check_place(world, row, placement)
        if isinstance(placer, TopologyPlacer):
            check_topology(world, row, placement)
            check_workers(world, row, placement)


def check_answer(world: World, targets: list[Target], placed: Placed, costs: Costs) -> None:
    """Every target is answered once, at a legal size; who is moved runs, keeps its size and gains by it."""
    asked = {target.row: target for target in targets}
    jobs = world.jobs
    assert not placed.placements.keys() & placed.failures.keys()
    assert {row for row, target in asked.items() if target.gpus} == placed.placements.keys() | placed.failures.keys()
    for row, placement in placed.placements.items():
        assert placement.size in _legal_sizes(jobs.jobs[row])
        assert placement.size <= asked[row].gpus
        kinds = {world.nodes.type_of[world.nodes.index[span.node]] for span in placement.spans}
        assert kinds == {asked[row].gpu_type}
    for row, failure in placed.failures.items():
        assert failure.reason.sentence(failure.evidence), jobs.ids[row]
    for row, move in placed.moves.items():
        held = jobs.placements[row]
        assert costs.enabled
        assert row not in asked
        assert jobs.phase[row] == Phase.RUNNING
        assert held is not None
        assert held.size == move.placement.size
        assert held != move.placement
        numbers = dict(move.evidence)
        assert numbers["gain_s"] > numbers["cost_s"] > 0


def check_place(world: World, row: int, placement: Placement) -> None:
    """GPUs that a job did not have lie on usable nodes that suit it; no replica is split."""
    job, held = world.jobs.jobs[row], _gpus(world.jobs.placements[row])
    suited = world.layout.usable & world.nodes.matching(job)
    for node, gpu in _gpus(placement):
        i = world.nodes.index[node]
        assert world.layout.healthy[i] >> gpu & 1
        assert (node, gpu) in held or suited >> i & 1
    assert all(len(worker.gpus) == job.gpus_per_replica for worker in placement.workers(job.gpus_per_replica))
    assert placement.spans


def check_workers(world: World, row: int, placement: Placement) -> None:
    """Workers whose GPUs stay keep their order, and their index unless one before them is gone."""
    step, held = world.jobs.jobs[row].gpus_per_replica, world.jobs.placements[row]
    if held is None:
        return
    old, new = held.workers(step), placement.workers(step)
    stay = [worker for worker in old if worker in new]
    assert [worker for worker in new if worker in old] == stay
    if len(new) >= len(old):
        assert all(new[k] == worker for k, worker in enumerate(old) if worker in new and len(worker.gpus) == step)


def check_topology(world: World, row: int, placement: Placement) -> None:
    """What a job requires holds wherever it got new GPUs."""
    job, held = world.jobs.jobs[row], _gpus(world.jobs.placements[row])
    if set(_gpus(placement)) <= set(held):
        return
    if job.topology.required and job.topology.within is Spread.NODE:
        assert len(placement.nodes) == 1
    if job.topology.required and job.topology.within is Spread.RACK:
        assert world.nodes.racks(placement) == 1
    assert _numa_holds(world, job, placement)


def _numa_holds(world: World, job: Job, placement: Placement) -> bool:
    if not job.topology.single_numa:
        return True
    numa = {node.name: node.numa for node in world.nodes.nodes}
    domains = {(node, numa[node][gpu] if numa[node] else 0) for node, gpu in _gpus(placement)}
    return len(domains) == len(placement.nodes)


def check_books(world: World) -> None:
    """Counted anew from the placements: no GPU, no CPU and no memory is given out twice."""
    whole: Counter = Counter()
    compute: Counter = Counter()
    memory: Counter = Counter()
    cpus: Counter = Counter()
    host_memory: Counter = Counter()
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        for node, gpu in _gpus(placement):
            cpus[node] += job.cpus_milli_per_gpu
            host_memory[node] += job.memory_mib_per_gpu
            if job.share is None:
                whole[node, gpu] += 1
            else:
                compute[node, gpu] += job.share.compute_percent
                memory[node, gpu] += job.share.memory_mib
    nodes = {node.name: node for node in world.nodes.nodes}
    assert max(whole.values(), default=0) <= 1
    assert not whole.keys() & memory.keys()
    assert max(compute.values(), default=0) <= 100
    assert all(total <= nodes[node].gpu_memory_mib for (node, _), total in memory.items())
    assert all(total <= nodes[node].cpus_milli for node, total in cpus.items() if nodes[node].cpus_milli)
    assert all(total <= nodes[node].memory_mib for node, total in host_memory.items() if nodes[node].memory_mib)


# ----------------------------------------------------------------------------------- comparing


def _gpus(placement: Placement | None) -> list[tuple[str, int]]:
    return [(span.node, gpu) for span in placement.spans for gpu in span.gpus] if placement else []


def layout_of(layout: Layout) -> tuple:
    return (
        layout.free,
        layout.healthy,
        layout.cpus_milli,
        layout.memory_mib,
        layout.buckets,
        layout.cards,
        layout.usable,
    )


def fingerprint(world: World) -> str:
    jobs = world.jobs
    return repr(
        (
            world.version,
            jobs.placements,
            layout_of(world.layout),
            [str(column.tolist()) for column in jobs.stored_columns().values()],
        )
    )


def same_answer(one: Placed, other: Placed) -> bool:
    return (one.placements, one.failures, one.moves, layout_of(one.layout)) == (
        *(other.placements, other.failures, other.moves),
        layout_of(other.layout),
    )


@given(given=any_world)
def test_nobody_is_refused_who_fits(given: tuple[World, list[Target]]):
    """A job that starts is refused only if it could not be placed even alone in the room that is left."""
    world, targets = given
    placer, costs = TopologyPlacer(PlacerOptions(moves=0, rescues=0)), Costs()
    waiting = {row for row, placement in enumerate(world.jobs.placements) if placement is None}
    placed = placer.place(world, NOW_S, targets, costs)
    carry_out(world, commands_of(world, targets, placed), NOW_S)
    kinds = {target.row: target.gpu_type for target in targets}
    for row in placed.failures:
        if row in waiting:
            alone = Target(row, world.jobs.jobs[row].min, kinds[row])
            assert row in placer.place(world, NOW_S, [alone], costs).failures


@settings(max_examples=examples(20))
@given(given=any_world)
def test_placing_again_changes_nothing(given: tuple[World, list[Target]]):
    """A plan that was carried out leaves little to move: otherwise jobs would go to and fro for ever."""
    world, targets = given
    placer = TopologyPlacer()
    placed = placer.place(world, NOW_S, targets, Costs())
    carry_out(world, commands_of(world, targets, placed), NOW_S)
    for job in list(world.jobs.ids):
        apply(world, ev.JobStarted(NOW_S, job))
    for _ in range(4):
        placed = placer.place(world, NOW_S, [], Costs())
        if not placed.moves:
            return
        carry_out(world, commands_of(world, [], placed), NOW_S)
        for job in list(world.jobs.ids):
            apply(world, ev.JobStarted(NOW_S, job))
    raise AssertionError("still moving after four cycles")
