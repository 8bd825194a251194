"""One cycle: admit → allocate → place → weigh → explain. It reads the World and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat

from batuta.core.admission import Admission, OpenDoor
from batuta.core.allocate import Allocation, allocate
from batuta.core.changes import Changes, commands_for, weigh
from batuta.core.explain import explain
from batuta.core.placer import Placed, Placer, Target
from batuta.core.plan import Plan, no_decisions
from batuta.core.policy import Policy
from batuta.core.weigh import Costs
from batuta.core.withhold import left_alone, withhold
from batuta.core.world import World

STEPS = ("admit", "allocate", "place", "weigh", "explain")
FEW = 8
"""So many jobs are found one by one in less time than by comparing two columns."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that shapes a decision beside the World: the collaborators of the steps."""

    policy: Policy
    placer: Placer
    admission: Admission = field(default_factory=OpenDoor)
    costs: Costs = field(default_factory=Costs)
    explains: bool = True
    """False where nobody reads it: commands still have their reasons, but not every job gets a decision."""


def decide(world: World, now_s: float, rules: Rules, after_step: Callable[[str], None] | None = None) -> Plan:
    """What should happen now, and why. `after_step` is told the name of each step that is done."""
    done = after_step or _ignore
    if not world.jobs.n:
        return Plan(world.version, now_s, rules.policy.name, (), (), no_decisions())
    # 1. Who may run at all, and up to what size?
    admitted = withhold(world, now_s, rules.admission.admit(world, now_s))
    done("admit")
    # 2. How many GPUs, of which type?
    allocation = allocate(world, now_s, admitted, rules.policy, rules.costs.freeze_transitions)
    done("allocate")
    # 3. Which GPUs on which nodes?
    targets = _targets(world, now_s, allocation)
    if targets:
        placed = rules.placer.place(world, now_s, targets, rules.costs)
        changes = Changes.of(world, targets, placed, admitted)
    else:
        placed, changes = Placed({}, {}, {}, world.layout), Changes({}, set(), {}, {})
    done("place")
    # 4. Is each change worth its cost?
    weigh(world, now_s, changes, placed, admitted, rules.costs)
    done("weigh")
    # 5. Why does each job have what it has?
    decisions = explain(world, allocation, admitted, placed, changes) if rules.explains else no_decisions()
    commands = commands_for(world, changes) if targets or world.jobs.held_back else ()
    plan = Plan(world.version, now_s, rules.policy.name, commands, allocation.retiered, decisions)
    done("explain")
    return plan


def _targets(world: World, now_s: float, allocation: Allocation) -> list[Target]:
    """The jobs that shall have something else than they have."""
    jobs = world.jobs
    if allocation.all_at_max and len(jobs.short) <= FEW and not jobs.broken:
        rows = sorted(map(jobs.row, jobs.short)) if jobs.short else ()
        return [Target(row, jobs.jobs[row].max, 0) for row in rows]
    differs = allocation.gpus != jobs.i("gpus")
    broken = jobs.is_broken()
    if broken is not None and jobs.held_back:
        broken = broken & ~left_alone(jobs, now_s)
    changed = (differs if broken is None else differs | broken).nonzero()[0]
    if not changed.size:
        return []
    rows, gpus = changed.tolist(), allocation.gpus[changed].tolist()
    kinds = repeat(0) if allocation.gpu_type is None else allocation.gpu_type[changed].tolist()
    return list(map(Target, rows, gpus, kinds))


def _ignore(step: str) -> None:
    pass
