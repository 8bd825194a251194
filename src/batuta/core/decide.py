"""One cycle: admit → allocate → place → weigh → explain. It reads the World and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from batuta.core.admission import Admission, AdmitAll, Admitted
from batuta.core.allocate import Allocation, allocate
from batuta.core.budgets import within_budgets
from batuta.core.cpu_only import place_cpu_only
from batuta.core.eligibility import left_alone, suspend
from batuta.core.explain import explain
from batuta.core.job import JobId
from batuta.core.placer import EVERYWHERE, Failure, Placed, Placer, Target
from batuta.core.plan import Plan, no_decisions
from batuta.core.policy import Policy
from batuta.core.utilisation import IdleRules, restrain
from batuta.core.weigh import Changes, Costs, commands_for, weigh
from batuta.core.world import World

STEPS = ("admit", "allocate", "place", "weigh", "explain")
ROUNDS = 4  # so often quota is given out anew, because a job that got some finds no place
FEW = 8  # so many jobs are found one by one in less time than by comparing two columns


@dataclass(frozen=True, slots=True)
class SchedulerProfile:
    """Everything that shapes a decision beside the World: the collaborators of the steps."""

    policy: Policy
    placer: Placer
    admission: Admission = field(default_factory=AdmitAll)
    costs: Costs = field(default_factory=Costs)
    idle: IdleRules = field(default_factory=IdleRules)
    explains: bool = True
    """False where it is not read: commands still have their reasons, but not every job gets a decision."""


def decide(
    world: World, now_s: float, rules: SchedulerProfile, after_step: Callable[[str], None] | None = None
) -> Plan:
    """What should happen now, and why. `after_step` is told the name of each step that is done."""
    done = after_step or (lambda step: None)
    if not world.jobs.n:
        return Plan(world.version, now_s, rules.policy.name, (), (), no_decisions())
    without: frozenset[int] = frozenset()
    failures: dict[int, Failure] = {}
    for last in (*repeat(False, ROUNDS - 1), True):
        found = _attempt(world, now_s, rules, without, done)
        stuck = {row for row in found.admitted.contested if found.changes.after.get(row) is None}
        if last or not stuck or not (found.admitted.losers or found.placed.layout.total_free):
            break
        # What cannot be placed holds no quota: jobs that were preempted or wait for its sake are better served.
        without |= stuck
        failures |= {row: found.placed.failures[row] for row in stuck if row in found.placed.failures}
    found.placed.failures.update(failures)
    # 5. Why does each job have what it has?
    admitted, changes, allocation = found.admitted, found.changes, found.allocation
    decisions = no_decisions()
    if rules.explains:
        steady = rules.policy.traits.steady
        decisions = explain(world, now_s, allocation, admitted, found.placed, changes, steady)
    commands = commands_for(world, now_s, changes, admitted) if changes.after or world.jobs.held_back else ()
    flavors = tuple(
        (world.jobs.ids[row], own) for row, own in admitted.flavors.items() if changes.after.get(row) is not None
    )
    plan = Plan(
        *(world.version, now_s, rules.policy.name, commands, allocation.retiered, decisions, flavors),
        found_idle=admitted.found_idle,
    )
    done("explain")
    return plan


class _Attempt(NamedTuple):
    """What the first four steps came to."""

    admitted: Admitted
    allocation: Allocation
    placed: Placed
    changes: Changes


def _attempt(
    world: World, now_s: float, rules: SchedulerProfile, without: frozenset[int], done: Callable[[str], None]
) -> _Attempt:
    # 1. Who may run at all, and up to what size?
    admitted = suspend(world, now_s, rules.admission.admit(world, now_s, without))
    if world.idle:
        admitted = restrain(world, now_s, admitted, rules.idle)
    if admitted.budgets:
        admitted = within_budgets(world, now_s, admitted, rules.policy)
    done("admit")
    # 2. How many GPUs, of which type?
    allocation = allocate(world, now_s, admitted, rules.policy, rules.costs.freeze_transitions)
    done("allocate")
    # 3. Which GPUs on which nodes?
    targets = _targets(world, now_s, allocation)
    if targets:
        placed = rules.placer.place(world, now_s, targets, rules.costs, _nodes_of(world, admitted))
        changes = Changes.of(world, targets, placed, admitted)
    else:
        placed, changes = Placed({}, {}, {}, world.layout), Changes({}, set(), {}, {})
    done("place")
    # 4. Is each change worth its cost?
    weigh(world, now_s, changes, placed, admitted, rules.costs)
    # CPU-only jobs take the CPU and memory that all of these leave.
    if world.jobs.cpu_only:
        placed = place_cpu_only(world, now_s, admitted, placed, changes, _nodes_of(world, admitted))
    done("weigh")
    return _Attempt(admitted, allocation, placed, changes)


def _nodes_of(world: World, admitted: Admitted) -> Mapping[JobId, int]:
    """The nodes of jobs whose quota is good for some only."""
    if not admitted.wishes:
        return EVERYWHERE
    return {world.jobs.ids[row]: world.nodes.matching(own) for row, own in admitted.wishes.items()}


def _targets(world: World, now_s: float, allocation: Allocation) -> list[Target]:
    """The jobs that shall have something else than they have."""
    jobs = world.jobs
    if allocation.all_at_max and len(jobs.short) <= FEW and not jobs.broken:
        rows = sorted(map(jobs.row, jobs.short)) if jobs.short else ()
        return [Target(row, jobs.jobs[row].max, 0) for row in rows]
    differs = allocation.gpus != jobs.held
    if allocation.exchanges:
        held = jobs.gpu_type
        differs |= (held >= 0) & (held != allocation.gpu_type) & (allocation.gpus > 0)
    broken = jobs.is_broken()
    if broken is not None and jobs.held_back:
        broken = broken & ~left_alone(jobs, now_s)
    cpu_only = jobs.without_gpus()
    if cpu_only is not None:
        differs, broken = differs & ~cpu_only, None if broken is None else broken & ~cpu_only
    changed = (differs if broken is None else differs | broken).nonzero()[0]
    if not changed.size:
        return []
    rows, gpus = changed.tolist(), allocation.gpus[changed].tolist()
    kinds = repeat(0) if allocation.gpu_type is None else allocation.gpu_type[changed].tolist()
    return list(map(Target, rows, gpus, kinds))
