"""The account of GPU time on random journals: every GPU-second of the capacity is booked, and booked once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.report.gpu_usage import UnallocatedGpus, UsageAccounting, UsageReport
from tests.support.examples import examples
from tests.support.walks import Walk

SEEDS = st.integers(0, 10**6)
SPANS = st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)).filter(lambda span: abs(span[0] - span[1]) > 1e-3)
POLICIES = st.sampled_from(("fifo", "elastic-fifo"))


def journal(seed: int, policy: str) -> list[ev.Event]:
    """Some hours in which anything may happen, with a week in the middle in which nothing does."""
    walk = Walk(seed, policy).go(60)
    walk.now_s += 3 * 86_400.0
    return walk.go(120).events


def account_of(events: list[ev.Event], from_s: float, to_s: float) -> UsageReport:
    ledger = UsageAccounting(World(), from_s, to_s)
    for event in events:
        if event.time_s > to_s:
            break
        ledger.take(event)
    return ledger.finish()


def capacity_gpu_s(events: list[ev.Event], from_s: float, to_s: float) -> float:
    """GPUs that were there times seconds, counted in the plainest way."""
    world, at_s, total = World(), 0.0, 0.0
    for event in [*events, ev.TimePassed(to_s)]:
        gpus = sum(n.gpus for i, n in enumerate(world.nodes.nodes) if not world.lost >> i & 1)
        total += gpus * max(0.0, min(event.time_s, to_s) - max(at_s, from_s))
        at_s = max(at_s, event.time_s)
        if event.time_s > to_s:
            break
        apply(world, event)
    return total


def free_gpu_s(gpus: UnallocatedGpus) -> float:
    return gpus.idle_gpu_s + gpus.fragmented_gpu_s + gpus.unavailable_gpu_s


@settings(max_examples=examples(20))
@given(seed=SEEDS, policy=POLICIES, span=SPANS)
def test_what_jobs_held_and_what_was_left_are_the_capacity(seed, policy, span) -> None:
    events = journal(seed, policy)
    end_s = events[-1].time_s
    from_s, to_s = sorted(share * end_s for share in span)

    waste = account_of(events, from_s, to_s)

    expected = capacity_gpu_s(events, from_s, to_s)
    assert waste.unallocated().capacity_gpu_s == pytest.approx(expected, rel=1e-9, abs=1e-3)
    for day in waste.days:
        assert day.job_usage.held_gpu_s + free_gpu_s(day.unallocated) == pytest.approx(
            day.unallocated.capacity_gpu_s, rel=1e-9, abs=1e-3
        )


@settings(max_examples=examples(20))
@given(seed=SEEDS, policy=POLICIES)
def test_no_amount_is_negative_and_queues_add_up(seed, policy) -> None:
    events = journal(seed, policy)

    waste = account_of(events, 0.0, events[-1].time_s)

    parts = [day.unallocated for day in waste.days] + [own for day in waste.days for own in day.queues.values()]
    for part in parts:
        assert all(getattr(part, name) >= -1e-6 for name in part.__slots__)
    assert sum(own.held_gpu_s for own in waste.queues().values()) == pytest.approx(waste.job_usage().held_gpu_s)


@settings(max_examples=examples(20))
@given(seed=SEEDS, cut=st.floats(0.1, 0.9))
def test_two_spans_side_by_side_hold_what_one_over_both_holds_but_for_work_lost_later(seed, cut) -> None:
    events = journal(seed, "fifo")
    end_s = events[-1].time_s
    whole = account_of(events, 0.0, end_s)

    first, second = account_of(events, 0.0, cut * end_s), account_of(events, cut * end_s, end_s)

    assert first.job_usage().held_gpu_s + second.job_usage().held_gpu_s == pytest.approx(
        whole.job_usage().held_gpu_s, abs=1e-3
    )
    assert free_gpu_s(first.unallocated()) + free_gpu_s(second.unallocated()) == pytest.approx(
        free_gpu_s(whole.unallocated()), abs=1e-3
    )
    # That it will be lost is not known yet when the first span ends.
    assert first.job_usage().lost_gpu_s + second.job_usage().lost_gpu_s <= whole.job_usage().lost_gpu_s + 1e-3


@settings(max_examples=examples(20))
@given(seed=SEEDS)
def test_an_account_that_begins_with_a_world_goes_on_as_if_it_had_seen_all(seed) -> None:
    events = journal(seed, "fifo")
    middle, end_s = len(events) // 2, events[-1].time_s
    world = World()
    for event in events[:middle]:
        apply(world, event)
    from_s = world.now_s

    ledger = UsageAccounting(world, from_s, end_s)
    for event in events[middle:]:
        ledger.take(event)

    told, expected = ledger.finish(), account_of(events, from_s, end_s)
    assert told.job_usage().held_gpu_s == pytest.approx(expected.job_usage().held_gpu_s, abs=1e-3)
    assert told.unallocated().idle_gpu_s == pytest.approx(expected.unallocated().idle_gpu_s, abs=1e-3)
    assert told.job_usage().waiting_gpu_s == pytest.approx(expected.job_usage().waiting_gpu_s, abs=1e-3)
