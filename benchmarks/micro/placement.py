"""How long placing takes: many starts at once, one change on a full cluster, small steps of a simulation.

Every case prints its time and the ratio to its budget; a ratio above 1 is too slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, Share
from batuta.core.placer import Placer, Target
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement import MostFreePlacer, TopologyPlacer

SIZES = (*[1] * 52, *[2] * 4, 4, 4, 8, 16)
"""About 1.5 GPUs on average, so that 10,000 jobs nearly fill 2,000 nodes of 8."""


def make_world(
    nodes: int, jobs: int, run: int, *, per_rack: int = 0, beside: bool = False, across: float = 1.0
) -> World:
    """A cluster of nodes with 8 GPUs and jobs of the usual sizes, the first `run` of them running."""
    rng, world = Random(7), World()
    for k in range(nodes):
        rack = f"r{k // per_rack}" if per_rack else ""
        cpus = 96_000 if beside else 0
        apply(world, ev.NodeAdded(0.0, Node(f"n{k:04d}", 8, rack=rack, cpus_milli=cpus, memory_mib=cpus // 100)))
    for k in range(jobs):
        size = rng.choice(SIZES)
        high = min(2 * size, 16)
        curve = SpeedCurve(tuple(float(n) for n in range(high + 1)), across, across)
        apply(
            world,
            ev.JobSubmitted(
                float(k),
                Job(
                    f"j{k:05d}",
                    float(k),
                    size=size,
                    min=size,
                    max=high,
                    curve=curve,
                    cpus_milli_per_gpu=8000 if beside else 0,
                    memory_mib_per_gpu=80 if beside else 0,
                ),
            ),
        )
    targets = [Target(row, world.jobs.jobs[row].size, 0) for row in range(run)]
    placed = TopologyPlacer().place(world, float(jobs), targets, Costs())
    starts = tuple(
        Start(world.jobs.ids[row], placement, Reason.ADMITTED) for row, placement in placed.placements.items()
    )
    apply(world, ev.Planned(float(jobs), Plan(world.version, float(jobs), "", starts, (), no_decisions())))
    for start in starts:
        apply(world, ev.JobStarted(float(jobs), start.job))
    return world


def measure(name: str, world: World, targets: list[Target], budget_s: float, placer: Placer | None = None) -> None:
    placer, costs = placer or TopologyPlacer(), Costs()
    repeat = max(3, min(2000, int(0.3 / budget_s)))
    best = min(_timed(lambda: placer.place(world, 1e5, targets, costs)) for _ in range(repeat))
    placed = placer.place(world, 1e5, targets, costs)
    print(
        f"{name:58s} {best * 1e3:9.3f} ms  {best / budget_s:5.2f} × budget"
        f"   {len(placed.placements):5d} placed {len(placed.failures):4d} failed {len(placed.moves):3d} moved"
    )


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    starts = make_world(2000, 10_000, 0)
    asked = [Target(row, starts.jobs.jobs[row].size, 0) for row in range(starts.jobs.n)]
    measure("10,000 starts on 2,000 × 8", starts, asked, 0.2)
    measure("the same, most free first", starts, asked, 0.2, MostFreePlacer(by_size=True))
    measure("10,000 starts on 1,000 × 8: half do not fit", make_world(1000, 10_000, 0), asked, 0.2)
    measure("10,000 starts in racks of 32", make_world(2000, 10_000, 0, per_rack=32), asked, 0.2)
    measure("10,000 starts with CPU and memory", make_world(2000, 10_000, 0, beside=True), asked, 0.2)

    for across in (1.0, 0.7):
        note = " (spread costs speed)" if across < 1 else ""
        full = make_world(2000, 10_000, 9990, per_rack=32, across=across)
        waiting = [row for row in range(full.jobs.n) if full.jobs.placements[row] is None]
        one = waiting[0]
        measure(f"1 start among 10,000 running{note}", full, [Target(one, full.jobs.jobs[one].size, 0)], 1e-3)
        grows = [
            Target(row, full.jobs.jobs[row].max, 0)
            for row in range(full.jobs.n)
            if full.jobs.placements[row] is not None and full.jobs.jobs[row].size < full.jobs.jobs[row].max
        ]
        measure(f"1 growth among 10,000 running{note}", full, grows[:1], 1e-3)

    for across in (1.0, 0.7):
        note = " (spread costs speed)" if across < 1 else ""
        small = make_world(300, 1600, 1400, across=across)
        rows = [row for row in range(small.jobs.n) if small.jobs.placements[row] is None]
        held = [row for row in range(small.jobs.n) if small.jobs.placements[row] is not None]
        measure(f"simulation: no target{note}", small, [], 15e-6)
        starts5 = [Target(row, small.jobs.jobs[row].size, 0) for row in rows[:5]]
        for n in (1, 5):
            measure(f"simulation: {n} starts{note}", small, starts5[:n], 15e-6 * (n + 1))
        shrunk = next(row for row in held if small.jobs.jobs[row].size == 4)
        grown = next(row for row in held[1:] if small.jobs.jobs[row].size == 2)
        stop, shrink, grow = Target(held[0], 0, 0), Target(shrunk, 2, 0), Target(grown, 4, 0)
        for name, target in (("stop", stop), ("shrink", shrink), ("grow", grow)):
            measure(f"simulation: 1 {name}{note}", small, [target], 30e-6)
        mixed = sorted([stop, shrink, grow, *starts5[:2]])
        measure(f"simulation: stop, shrink, grow, 2 starts{note}", small, mixed, 15e-6 * 6)
    shares = World()
    for k in range(2000):
        apply(shares, ev.NodeAdded(0.0, Node(f"n{k:04d}", 8)))
    rng = Random(3)
    for k in range(10_000):
        share = Share(rng.choice((1000, 2000, 4000)), rng.choice((10, 20, 25, 50)))
        apply(shares, ev.JobSubmitted(float(k), Job(f"s{k:05d}", float(k), share=share)))
    measure("10,000 shares on 2,000 × 8", shares, [Target(row, 1, 0) for row in range(10_000)], 0.2)


if __name__ == "__main__":
    main()
