"""The same events give the same plans, bit for bit: a journal proves itself, and a fork keeps to itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from batuta.backends.sim.run import RunOptions, simulate
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start, Stop
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from tests.support.deep import deep
from tests.support.invariants import fingerprint
from tests.support.memory_journal import MemoryJournal, ReplayDiffersError, replay
from tests.support.sims import eventful_night
from tests.support.walks import Walk

POLICIES = ["fifo", "elastic-tiresias", "elastic-srjf", "afs-l", "tiresias-replay"]
CADENCES = {
    "fifo": Cadence(min_interval_s=30),
    "afs-l": Cadence(round_s=60),
    "elastic-tiresias": Cadence(every_s=60),
}


def night(policy: str, seed: int) -> tuple[list[ev.Event], World]:
    """The journal of a simulated night in which much goes wrong, and the World that it ended with.

    Each night is simulated once. The list may be changed, the World may not.
    """
    events, world = simulated_night(policy, seed)
    return [*events], world


@cache
def simulated_night(policy: str, seed: int) -> tuple[list[ev.Event], World]:
    journal, worlds = MemoryJournal(), list[World]()
    cadence = CADENCES.get(policy, Cadence())
    run = simulate(
        eventful_night(seed),
        profile_for(policy),
        RunOptions("night", "16 GPUs"),
        cadence,
        journal,
        watch=lambda world, plan: worlds.append(world),
    )
    assert run.complete
    return journal.events, worlds[-1]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_simulated_night_is_decided_again_bit_for_bit(policy: str, seed: int) -> None:
    events, world = night(policy, seed)
    again = replay(events, profile_for(policy))
    assert deep(again) == deep(world)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["elastic-tiresias", "afs-l"])
def test_not_even_the_last_bit_of_a_plan_differs(policy: str) -> None:
    """`==` of plans is what `replay` looks at; here nothing at all may differ."""
    events, _ = night(policy, seed=3)
    world, rules = World(), profile_for(policy)
    for event in events:
        if isinstance(event, ev.Planned):
            assert deep(decide(world, event.time_s, rules)) == deep(event.plan)
        apply(world, event)


def test_in_these_nights_there_is_something_to_decide() -> None:
    events, _ = night("elastic-tiresias", seed=1)
    kinds = {type(event) for event in events}
    assert {
        ev.QuotaSet,
        ev.NodeLost,
        ev.NodeReturned,
        ev.GpuFailed,
        ev.GpuRepaired,
        ev.JobProgressed,
    } <= kinds
    plans = [event.plan for event in events if isinstance(event, ev.Planned)]
    assert {Start, Resize, Preempt} <= {type(command) for plan in plans for command in plan.commands}
    assert any(plan.retiered for plan in plans)
    reasons = {decision.reason.name for plan in plans for decision in plan.decisions}
    assert {"QUOTA_EXHAUSTED", "WAITING_FOR_GPUS"} <= reasons


def test_two_simulations_of_the_same_night_have_the_same_journal() -> None:
    first, second = (simulated_night.__wrapped__("elastic-srjf", 2)[0] for _ in range(2))
    assert deep(first) == deep(second)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "elastic-srjf", "ffdl"])
@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_happens_is_decided_again(policy: str, seed: int) -> None:
    """A walk through every type of event: users change jobs, nodes join, queues are held."""
    walk = Walk(seed, policy).go(400)
    assert deep(replay(walk.events, profile_for(policy))) == deep(walk.world)


# ------------------------------------------------------------------------------------------- what is detected


def without_last_command(plan: Plan) -> Plan:
    return replace(plan, commands=plan.commands[:-1])


def other_policy(plan: Plan) -> Plan:
    return replace(plan, policy="another")


def other_moment(plan: Plan) -> Plan:
    return replace(plan, time_s=plan.time_s + 1e-9)


def gpus_swapped(plan: Plan) -> Plan:
    """The same GPUs in another order of workers."""
    for k, command in enumerate(plan.commands):
        if not isinstance(command, Preempt | Stop) and command.placement.size > 1:
            spans = tuple(span._replace(gpus=span.gpus[::-1]) for span in command.placement.spans)
            swapped = replace(command, placement=command.placement._replace(spans=spans[::-1]))
            return replace(plan, commands=(*plan.commands[:k], swapped, *plan.commands[k + 1 :]))
    raise LookupError


def one_gpu_more(plan: Plan) -> Plan:
    """Decisions that say something else than the commands."""
    gpus = plan.decisions.gpus.copy()
    gpus[-1] += 1
    return replace(plan, decisions=replace(plan.decisions, gpus=gpus))


def job_forgotten(plan: Plan) -> Plan:
    return replace(plan, decisions=replace(plan.decisions, ids=plan.decisions.ids[:-1]))


@pytest.mark.parametrize(
    "tamper",
    [without_last_command, other_policy, other_moment, gpus_swapped, one_gpu_more, job_forgotten],
)
def test_a_plan_that_was_tampered_with_is_detected(tamper: Callable[[Plan], Plan]) -> None:
    events, _ = night("elastic-srjf", seed=1)
    for number, event in enumerate(events):
        if isinstance(event, ev.Planned) and number > 50:
            try:
                forged = tamper(event.plan)
            except LookupError:
                continue
            events[number] = ev.Planned(event.time_s, forged)
            break
    with pytest.raises(ReplayDiffersError, match=f"event {number} at {event.time_s} s"):
        replay(events, profile_for("elastic-srjf"))


def test_an_event_that_was_left_out_is_detected() -> None:
    events, _ = night("fifo", seed=1)
    gone = next(k for k, event in enumerate(events) if isinstance(event, ev.JobEnded))
    with pytest.raises(ReplayDiffersError):
        replay(events[:gone] + events[gone + 1 :], profile_for("fifo"))


def test_other_rules_do_not_decide_the_same() -> None:
    events, _ = night("elastic-srjf", seed=2)
    with pytest.raises(ReplayDiffersError):
        replay(events, profile_for("elastic-fifo"))
    with pytest.raises(ReplayDiffersError):
        replay(events, profile_for("elastic-srjf", weigh=False))


# ------------------------------------------------------------------------------------------------------ forks


def test_a_fork_does_not_see_what_happens_to_the_original() -> None:
    events, _ = night("elastic-tiresias", seed=2)
    world, forks = World(), list[tuple[World, object]]()
    for number, event in enumerate(events):
        if number % 40 == 0:
            forks.append((world.fork(), fingerprint(world)))
        apply(world, event)
    assert len(forks) > 5
    for fork, before in forks:
        assert fingerprint(fork) == before


def test_the_original_does_not_see_what_happens_to_a_fork() -> None:
    events, _ = night("elastic-tiresias", seed=2)
    half, world = len(events) // 2, World()
    for event in events[:half]:
        apply(world, event)
    before, fork = fingerprint(world), world.fork()
    for event in events[half:]:
        apply(fork, event)
    assert fingerprint(world) == before
    for event in events[half:]:
        apply(world, event)
    assert fingerprint(world) == fingerprint(fork)


def test_a_fork_decides_as_the_original_does() -> None:
    events, _ = night("afs-l", seed=1)
    world, rules, compared = World(), profile_for("afs-l"), 0
    for event in events:
        if isinstance(event, ev.Planned):
            assert decide(world.fork(), event.time_s, rules) == event.plan
            compared += any(isinstance(command, Resize | Migrate) for command in event.plan.commands)
        apply(world, event)
    assert compared
