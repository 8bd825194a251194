"""What comes next in a trial: given what is durable and what the backend shows, then this is done."""

import math

from batuta.core.trial import TrialPlan
from batuta.engine.trials.lifecycle import (
    Begin,
    Conclude,
    End,
    Measure,
    ObservedRun,
    TrialProgress,
    next_actions,
)

PLAN = TrialPlan((1, 2, 4), budget_s=100.0, each_s=20.0)
WAITS, RUNS, OVER = ObservedRun(), ObservedRun(started_s=10.0), ObservedRun(is_over=True)


def moves(now_s=0.0, *, parallelism=1, measured=(), written=(), **runs):
    seen = {int(key[1:]): run for key, run in runs.items()}
    found = next_actions(PLAN, parallelism, 0.0, TrialProgress({*measured, *written}, written, seen), now_s)
    return list(found.actions)


def due_s(now_s, **runs):
    seen = {int(key[1:]): run for key, run in runs.items()}
    return next_actions(PLAN, 1, 0.0, TrialProgress((), (), seen), now_s).due_s


def test_the_smallest_size_is_begun_with_and_the_next_waits_for_it():
    assert moves() == [Begin(1)]
    assert moves(t1=WAITS) == []
    assert moves(t1=RUNS, now_s=29.0) == []


def test_so_many_run_beside_each_other_as_may():
    assert moves(parallelism=2) == [Begin(1), Begin(2)]
    assert moves(parallelism=2, t1=RUNS) == [Begin(2)]
    assert moves(parallelism=16) == [Begin(1), Begin(2), Begin(4)]


def test_a_run_has_its_time_from_its_start_and_waits_for_gpus_as_long_as_the_budget_lasts():
    assert due_s(12.0, t1=RUNS) == 30.0
    assert moves(t1=RUNS, now_s=30.0) == [Measure(1)]
    assert due_s(12.0, t1=WAITS) == 100.0
    assert moves(t1=WAITS, now_s=100.0) == [Measure(1)]


def test_a_run_that_went_on_while_no_controller_watched_has_its_time_from_when_one_does():
    """Given a run since 10 s, when the controller watches since 40 s, then it is measured at 60 s."""
    standing = TrialProgress((), (), {1: RUNS}, watched_s=40.0)
    found = next_actions(PLAN, 1, 0.0, standing, 40.0)
    assert (found.actions, found.due_s) == ((), 60.0)
    assert next_actions(PLAN, 1, 0.0, standing, 60.0).actions == (Measure(1),)
    # The budget stays what it is.
    late = TrialProgress((), (), {1: RUNS}, watched_s=95.0)
    assert next_actions(PLAN, 1, 0.0, late, 95.0).due_s == 100.0
    assert next_actions(PLAN, 1, 0.0, late, 100.0).actions == (Measure(1),)


def test_a_run_that_has_ended_or_is_deleted_by_somebody_is_measured_at_once():
    assert moves(t1=OVER) == [Measure(1)]
    assert moves(t1=ObservedRun(is_leaving=True)) == [Measure(1)]


def test_the_run_of_a_trial_before_this_one_is_waited_for_as_long_as_the_budget_lasts():
    left = ObservedRun(is_left_over=True)
    assert moves(t1=left) == []
    assert due_s(12.0, t1=left) == 100.0
    assert moves(t1=left, now_s=100.0) == [Measure(1)]


def test_a_run_goes_only_when_what_it_showed_is_written_down():
    assert moves(measured=[1], t1=RUNS) == []
    assert moves(written=[1], t1=RUNS) == [End(1)]
    assert moves(written=[1], t1=ObservedRun(started_s=10.0, is_leaving=True)) == []


def test_the_next_size_begins_when_the_one_before_is_gone_or_holds_nothing():
    assert moves(written=[1]) == [Begin(2)]
    assert moves(written=[1], t1=OVER) == [Begin(2)]


def test_it_comes_to_its_end_when_all_sizes_are_written_down():
    assert moves(measured=[4], written=[1, 2]) == []
    assert moves(written=[1, 2, 4], t4=RUNS) == [End(4), Conclude()]


def test_after_the_budget_nothing_begins_and_what_is_known_has_to_do():
    assert moves(now_s=100.0) == [Conclude()]
    assert moves(now_s=100.0, written=[1]) == [Conclude()]
    assert moves(now_s=100.0, written=[1], t2=RUNS) == [Measure(2)]
    assert moves(now_s=100.0, written=[1], measured=[2], t2=RUNS) == []


def test_a_trial_without_anything_to_wait_for_sets_no_clock():
    assert next_actions(PLAN, 1, 0.0, TrialProgress((1, 2, 4), (1, 2, 4), {}), 5.0).due_s == math.inf
