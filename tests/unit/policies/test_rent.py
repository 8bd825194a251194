"""Rent: who gets how many GPUs, and when a change is worth its restart."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.cluster import Node
from batuta.core.curve import power_curve
from batuta.core.decide import decide
from batuta.core.phases import Phases, SharedOutlook
from batuta.core.plan import Start
from batuta.core.view import TypedView
from batuta.engine.profile import profile_for
from batuta.policies.rent import Rent
from batuta.policies.rent_options import list_sizes, unrest, urgency
from batuta.spec.snapshot import SnapshotJob
from batuta.spec.task_job import PRIOR_EXPONENT, PRIOR_RESTART_S, prior_work_s
from tests.support.views import make_typed, make_view, pools, run, typed_pools
from tests.support.worlds import make_job, make_world

LINEAR = tuple(map(float, range(9)))


def elastic(name: str, **given: object) -> dict[str, object]:
    return {"id": name, "size": 1, "min": 1, "max": 8, "speed": LINEAR} | given


# ---------------------------------------------------------------------------------------------- who gets what


def test_a_lonely_job_gets_all_that_makes_it_faster() -> None:
    assert run(Rent(), 8, [elastic("a")]) == {"a": 8}
    assert run(Rent(), 8, [elastic("a", speed=(0, 1, 1.9, 2, 2.1))]) == {"a": 4}
    assert run(Rent(), 8, [elastic("a", speed=(0, 1, 1.9, 1.2, 1))]) == {"a": 2}


def test_two_that_scale_alike_both_run_however_long_they_are() -> None:
    jobs = [elastic("long", remaining_s=100_000), elastic("short", remaining_s=100)]
    assert run(Rent(), 8, jobs) == {"long": 4, "short": 4}


def test_the_shorter_one_grows_first_and_no_gpu_stands_idle() -> None:
    jobs = [
        elastic("long", remaining_s=100_000),
        elastic("short", remaining_s=100),
        {"id": "rigid", "size": 1},
    ]
    assert run(Rent(), 8, jobs) == {"long": 2, "short": 5, "rigid": 1}


def test_prices_alone_let_the_longer_one_wait() -> None:
    jobs = [elastic("long", remaining_s=100_000), elastic("short", remaining_s=100)]
    assert run(Rent(min_first=False), 8, jobs) == {"long": 0, "short": 8}


def test_a_job_that_was_just_changed_neither_grows_nor_shrinks_so_that_another_grows() -> None:
    first = elastic("first", gpus=2, last_start_s=0.0, remaining_s=1000)
    view = make_view(8, [first, elastic("second", gpus=1, last_start_s=0.0, remaining_s=100_000)])
    held = replace(view, held=np.array([True, False]))
    assert Rent().allocate(held).tolist() == [2, 6]
    assert Rent().allocate(view).tolist() == [4, 4]


def test_a_job_that_was_just_changed_gives_way_to_one_that_would_wait() -> None:
    first = elastic("first", gpus=8, last_start_s=0.0, remaining_s=100_000)
    view = make_view(8, [first, elastic("short", remaining_s=100, submit_s=1.0)])
    assert min(Rent().allocate(replace(view, held=np.array([True, False]))).tolist()) >= 1


def test_where_the_mins_do_not_all_fit_prices_say_who_waits_and_none_grows() -> None:
    jobs = [elastic(f"j{k}", remaining_s=100.0 * (10 - k), submit_s=float(k)) for k in range(10)]
    assert run(Rent(), 8, jobs) == {f"j{k}": int(k >= 2) for k in range(10)}


def test_of_jobs_that_are_alike_those_that_came_first_go_first() -> None:
    came = {"second": 2.0, "first": 1.0, "third": 3.0}
    jobs = [elastic(name, min=4, size=4, max=4, submit_s=submit_s) for name, submit_s in came.items()]
    assert run(Rent(), 8, jobs) == {"first": 4, "second": 4, "third": 0}
    typed = make_typed((4, 4), make_view(8, jobs), [(1.0, 1.0)] * 3)
    assert Rent().allocate_types(typed).gpus.tolist() == [4, 4, 0]


@pytest.mark.parametrize("came_s", [0.0, 1.0])
def test_who_runs_is_not_stopped_for_a_newcomer_of_another_width_of_which_as_little_is_known(
    came_s: float,
) -> None:
    """Given jobs of unknown length, each with what is believed of its size, then the first go first."""

    def unknown(name: str, width: int, gpus: int = 0) -> dict[str, object]:
        curve = power_curve(width, PRIOR_EXPONENT)
        believed = {"remaining_s": prior_work_s(curve), "restart_s": PRIOR_RESTART_S, "speed": curve.speeds}
        runs = {"gpus": gpus, "last_start_s": 0.0, "submit_s": 0.0} if gpus else {"submit_s": came_s}
        return elastic(name, size=width, min=width, max=width) | believed | runs

    small = [unknown(name, 2, gpus=2) for name in ("a", "b", "c")]
    assert run(Rent(), 8, [*small, unknown("wide", 8)]) == {"a": 2, "b": 2, "c": 2, "wide": 0}
    new = [unknown(name, 1) for name in ("x", "y", "z")]
    assert run(Rent(), 8, [unknown("wide", 8, gpus=8), *new]) == {"wide": 8, "x": 0, "y": 0, "z": 0}


def test_a_short_job_does_not_buy_speed_that_hardly_helps_it() -> None:
    poor = (0.0, 1.0, 1.05, 1.06, 1.07, 1.08, 1.09, 1.1, 1.11)
    jobs = [elastic("long", remaining_s=100_000), elastic("short", remaining_s=100, speed=poor)]
    assert run(Rent(), 9, jobs) == {"long": 8, "short": 1}


def test_rigid_jobs_get_their_size_or_nothing() -> None:
    jobs = [{"id": f"r{k}", "size": 3, "remaining_s": 100.0 * k} for k in range(1, 4)]
    assert run(Rent(), 7, jobs) == {"r1": 3, "r2": 3, "r3": 0}


def test_sizes_that_fill_nodes_are_preferred_and_listed_ones_obeyed() -> None:
    assert run(Rent(), 64, [elastic("a", max=40, speed=tuple(map(float, range(41))))]) == {"a": 40}
    listed = elastic("a", min=3, size=3, max=7, sizes=(3, 5, 7))
    assert run(Rent(), 6, [listed]) == {"a": 5}


def test_without_a_curve_more_gpus_are_thought_to_help() -> None:
    jobs = [elastic("a", speed=(0.0, 1.0)), elastic("b", speed=(0.0, 1.0))]
    assert sum(run(Rent(), 8, jobs).values()) == 8


# ------------------------------------------------------------------------------------------ what changes cost


def test_a_change_has_to_earn_its_restart() -> None:
    slow_restart = elastic("a", gpus=4, restart_s=3600.0, remaining_s=7200.0, last_start_s=0.0)
    assert run(Rent(), 8, [slow_restart]) == {"a": 4}
    assert run(Rent(), 8, [slow_restart | {"restart_s": 30.0}]) == {"a": 8}


def test_a_job_near_its_end_keeps_its_gpus_and_gets_them_back() -> None:
    jobs = [
        elastic("ends", max=1, remaining_s=5.0, restart_s=30.0),
        elastic("other", max=1, remaining_s=5000.0, restart_s=30.0),
    ]
    assert run(Rent(), 1, jobs) == {"ends": 1, "other": 0}


def test_who_scales_later_is_given_more_later() -> None:
    own = Phases(np.array([0.0, 4000.0, 8000.0]), np.array([[0, 1, 1.02, 1.03, 1.04], [0, 1, 2, 3, 4.0]]))
    view = make_view(8, [elastic("a", max=4, speed=(0, 1, 1.3, 1.5, 1.6), remaining_s=8000.0)])
    shared = SharedOutlook(np.array([0]), own, np.array([8000.0]))
    now = list_sizes(replace(view, outlooks=(shared,)))
    assert now.left_s[now.gpus == 4] == pytest.approx(4000 / 1.04 + 1000)


# --------------------------------------------------------------------------------------------------- decency


def test_a_job_that_is_late_becomes_dearer_until_it_runs() -> None:
    jobs = [elastic("old", max=1, remaining_s=50_000.0), elastic("new", max=1, remaining_s=100.0)]
    before, after = make_view(1, jobs, now_s=0.0), make_view(1, jobs, now_s=1e6)
    assert dict(zip(before.ids, Rent().allocate(before).tolist(), strict=True)) == {"old": 0, "new": 1}
    assert dict(zip(after.ids, urgency(after, list_sizes(after)).tolist(), strict=True))["old"] > 1
    assert (urgency(before, list_sizes(before)) == 1).all()


def test_who_waited_in_a_rush_is_not_late_because_of_the_rush() -> None:
    jobs = [elastic("a", max=1, remaining_s=1000.0), elastic("b", max=1, remaining_s=1000.0)]
    view = make_view(2, jobs, now_s=9000.0)
    assert (urgency(view, list_sizes(view)) > 1).all()
    crowded = replace(view, crowd=np.array([10.0, 1.0]))
    late = dict(zip(crowded.ids, urgency(crowded, list_sizes(crowded)).tolist(), strict=True))
    assert late["a"] == 1
    assert late["b"] > 1


def test_who_was_restarted_too_often_is_left_alone() -> None:
    view = make_view(8, [elastic("a", gpus=4, restart_s=30.0, remaining_s=1e5, last_start_s=0.0)], now_s=60.0)
    assert Rent().allocate(replace(view, restarts=np.array([2]))).tolist() == [8]
    often = replace(view, restarts=np.array([60]))
    assert (unrest(often) > 5).all()
    assert Rent().allocate(often).tolist() == [4]


@given(pool=pools(most=8), wrong=st.sampled_from([float("nan"), float("inf"), -1.0, 1e300]))
def test_nonsense_about_the_time_left_does_no_harm(pool: tuple[int, list[SnapshotJob]], wrong: float) -> None:
    capacity, jobs = pool
    view = make_view(capacity, jobs)
    broken = replace(view, remaining_s=np.full(len(jobs), wrong))
    gpus = Rent().allocate(broken)
    assert gpus.sum() <= capacity
    assert (view.sizes.floor(gpus) == gpus).all()


# ------------------------------------------------------------------------------------------ several GPU types


def test_of_two_types_each_goes_to_whom_it_helps_more() -> None:
    jobs = [
        make_job("alike", gpu_types=(("fast", 1.0), ("slow", 0.9)), work_s=4000.0),
        make_job("needs-fast", gpu_types=(("fast", 1.0), ("slow", 0.1)), work_s=4000.0),
    ]
    nodes = [Node("f", 1, gpu_type="fast"), Node("s", 1, gpu_type="slow")]
    world = make_world(nodes, {}, jobs)
    plan = decide(world, 0.0, profile_for("rent"))
    went = {command.job: command.placement.nodes for command in plan.commands if isinstance(command, Start)}
    assert went == {"alike": ("s",), "needs-fast": ("f",)}


@given(view=typed_pools(), wrong=st.sampled_from([0.0, float("nan"), float("inf"), -1.0]))
def test_nonsense_about_the_time_left_does_no_harm_with_types_either(view: TypedView, wrong: float) -> None:
    rows = len(view.jobs)
    jobs = replace(view.jobs, remaining_s=np.full(rows, wrong), done_s=np.zeros(rows))
    chosen = Rent().allocate_types(replace(view, jobs=jobs))
    for kind, capacity in enumerate(view.capacity.tolist()):
        assert chosen.gpus[chosen.gpu_type == kind].sum() <= capacity
