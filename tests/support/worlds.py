"""Worlds for tests, built the only way there is: by events. Placements are written as "n0:01 n1:2"."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement, Span
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job
from batuta.core.job_table import Phase
from batuta.core.placer import Placed, Placer, Target
from batuta.core.plan import Command, Migrate, Plan, Preempt, Resize, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.core.world import World

NOW_S = 1000.0


def make_nodes(*sizes: int, **common: Any) -> list[Node]:
    """Nodes n0, n1, … of these sizes."""
    return [Node(f"n{k}", gpus, **common) for k, gpus in enumerate(sizes)]


def make_job(name: str, size: int = 1, **changes: Any) -> Job:
    """A job that takes exactly `size` GPUs unless `min` or `max` say otherwise; it scales perfectly."""
    low, high = changes.pop("min", size), changes.pop("max", size)
    curve = changes.pop("curve", None) or scaling(high)
    submit_s = changes.pop("submit_s", 0.0)
    work_s = changes.pop("work_s", 1e6)
    return Job(name, submit_s, size=size, min=low, max=high, curve=curve, work_s=work_s, **changes)


def scaling(largest: int, across_nodes: float = 1.0, across_racks: float = 1.0) -> SpeedCurve:
    return SpeedCurve(tuple(float(n) for n in range(largest + 1)), across_nodes, across_racks)


def at(text: str) -> Placement:
    """The placement that a text like "n0:01 n1:2" describes."""
    parts = (part.split(":") for part in text.split())
    return Placement(tuple(Span(node, tuple(int(gpu) for gpu in gpus)) for node, gpus in parts))


def shown(placement: Placement) -> str:
    """The opposite of `at`."""
    return " ".join(f"{span.node}:{''.join(map(str, span.gpus))}" for span in placement.spans)


def make_world(
    nodes: Iterable[Node],
    running: Mapping[str, str] | None = None,
    jobs: Iterable[Job] = (),
    *,
    lost: Iterable[str] = (),
    cordoned: Iterable[str] = (),
) -> World:
    """Jobs in `running` run where it says; afterwards nodes are lost and cordoned."""
    world = World()
    for node in nodes:
        apply(world, ev.NodeAdded(0.0, node))
    for job in jobs:
        apply(world, ev.JobSubmitted(job.submit_s, job))
    starts = [Start(job, at(text), Reason.ADMITTED) for job, text in (running or {}).items()]
    carry_out(world, starts, 0.0)
    for name in running or {}:
        apply(world, ev.JobStarted(0.0, name))
    for name in cordoned:
        apply(world, ev.NodeCordoned(NOW_S, name))
    for name in lost:
        apply(world, ev.NodeLost(NOW_S, name))
    return world


def carry_out(world: World, commands: Sequence[Command], now_s: float) -> None:
    plan = Plan(world.version, now_s, "test", tuple(commands), (), no_decisions())
    apply(world, ev.Planned(now_s, plan))


def targets_for(world: World, wanted: Mapping[str, int | tuple[int, str]]) -> list[Target]:
    """Targets in row order; the GPU type is what the job has, or the first, unless it is named."""
    found = []
    for name, gpus in wanted.items():
        row = world.jobs.row(name)
        held = int(world.jobs.gpu_type[row])
        count, kind = gpus if isinstance(gpus, tuple) else (gpus, None)
        found.append(Target(row, count, world.nodes.types.index(kind) if kind else max(held, 0)))
    return sorted(found)


def place(
    placer: Placer, world: World, wanted: Mapping[str, int | tuple[int, str]], costs: Costs | None = None
) -> Placed:
    return placer.place(world, NOW_S, targets_for(world, wanted), costs or Costs())


def commands_of(world: World, targets: Sequence[Target], placed: Placed) -> list[Command]:
    """What a cycle that drops nothing would command: as `decide` does, without weighing."""
    jobs, commands = world.jobs, list[Command]()
    for row, gpus, _ in targets:
        job, held, after = jobs.jobs[row].id, jobs.placements[row], placed.placements.get(row)
        broken = jobs.phase[row] == Phase.BROKEN
        if after is not None:
            commands.append((Start if held is None else Resize)(job, after, Reason.ADMITTED))
        elif held is not None and (gpus == 0 or broken):
            commands.append(Preempt(job, Reason.PREEMPTED))
    for row, move in placed.moves.items():
        commands.append(Migrate(jobs.jobs[row].id, move.placement, move.reason, move.evidence))
    return commands


def outcome(world: World, placed: Placed) -> dict[str, str]:
    """By job: where it goes, or the reason why it does not."""
    ids = world.jobs.ids
    found = {ids[row]: shown(placement) for row, placement in placed.placements.items()}
    found |= {ids[row]: failure.reason.name for row, failure in placed.failures.items()}
    found |= {ids[row]: f"{move.reason.name} {shown(move.placement)}" for row, move in placed.moves.items()}
    return found
