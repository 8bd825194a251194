"""How the policy is asked: about whom, with how many GPUs, and what becomes of its answer."""

from typing import Any

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.allocate import Allocation, allocate
from batuta.core.apply import apply
from batuta.core.arrays import IntArray
from batuta.core.cluster import Node
from batuta.core.job import Job, Share
from batuta.core.plan import Resize, Start
from batuta.core.policy import PolicyTraits
from batuta.core.reason import Reason
from batuta.core.view import PoolView
from batuta.core.world import World
from tests.support.fixed_policy import Fixed
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world


def ask(
    world: World,
    gpus: dict[str, int] | None = None,
    admitted: Admitted | None = None,
    freeze: bool = True,
    now_s: float = NOW_S,
) -> tuple[Allocation, list[PoolView]]:
    policy = Fixed(gpus or {})
    return allocate(world, now_s, admitted or Admitted(), policy, freeze), policy.seen


def caps(world: World, **cap: int) -> IntArray:
    return np.array([cap.get(job, 10**6) for job in world.jobs.ids], dtype=np.int64)


# --------------------------------------------------------------------------------------------------- one type


def test_a_policy_sees_all_jobs_and_all_gpus() -> None:
    world = make_world(make_nodes(4, 2), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 1, max=3)])
    allocation, (view,) = ask(world, {"a": 2, "b": 3})
    assert (list(view.ids), view.capacity) == (["a", "b"], 6)
    assert (view.gpus.tolist(), view.min.tolist(), view.max.tolist()) == ([2, 0], [2, 1], [2, 3])
    assert (allocation.gpus.tolist(), allocation.capacity) == ([2, 3], [6])


def test_a_generous_policy_is_asked_only_when_there_is_not_enough_for_all() -> None:
    policy = Fixed({"a": 1, "b": 1}, traits=PolicyTraits(generous=True))
    jobs = [make_job("a", 1, max=2), make_job("b", 1, max=3)]
    enough = allocate(make_world(make_nodes(5), {}, jobs), NOW_S, Admitted(), policy, freeze=True)
    assert (enough.gpus.tolist(), enough.all_at_max, policy.seen) == ([2, 3], True, [])
    scarce = allocate(make_world(make_nodes(4), {}, jobs), NOW_S, Admitted(), policy, freeze=True)
    assert (scarce.gpus.tolist(), scarce.all_at_max, len(policy.seen)) == ([1, 1], False, 1)


def test_a_policy_sees_what_is_left_now() -> None:
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2, work_s=1000.0), make_job("b")])
    _, (view,) = ask(world, now_s=100.0)
    assert view.remaining_s.tolist() == [1000.0 - 2 * 100, 1e6]
    assert view.attained_gpu_s.tolist() == view.service_gpu_s.tolist() == [200.0, 0.0]


def test_jobs_in_transition_are_left_out_and_keep_theirs() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [make_job(name, 2, max=8) for name in "abc"])
    carry_out(world, [Start("b", at("n0:234"), Reason.ADMITTED)], 1.0)
    allocation, (view,) = ask(world, {"a": 2, "b": 8, "c": 2})
    assert (list(view.ids), view.capacity) == (["a", "c"], 5)
    assert allocation.gpus.tolist() == [2, 3, 2]
    _, (everyone,) = ask(world, freeze=False)
    assert (list(everyone.ids), everyone.capacity) == (["a", "b", "c"], 8)


def test_a_broken_job_is_not_in_transition() -> None:
    world = make_world(make_nodes(2, 2), {"a": "n0:01 n1:0"}, [make_job("a", 3, min=1)], lost=["n1"])
    assert list(ask(world)[1][0].ids) == ["a"]


@pytest.mark.parametrize(
    ("cap", "sizes", "largest", "size"),
    [
        (10, None, 8, 6),
        (7, None, 7, 6),
        (5, None, 5, 5),
        (7, (2, 4, 6, 8), 6, 6),
        (3, (2, 4, 6, 8), 2, 2),
    ],
)
def test_a_cap_lowers_the_largest_size_and_the_one_asked_for(
    cap: int, sizes: tuple[int, ...] | None, largest: int, size: int
) -> None:
    world = make_world(make_nodes(8), {}, [make_job("a", 6, min=2, max=8, sizes=sizes)])
    _, (view,) = ask(world, admitted=Admitted(caps(world, a=cap)))
    assert (view.max.tolist(), view.size.tolist(), view.min.tolist()) == ([largest], [size], [2])


@pytest.mark.parametrize("cap", [0, 1])
def test_who_may_not_have_its_minimum_is_not_asked_about(cap: int) -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 2)])
    allocation, (view,) = ask(world, {"a": 2, "b": 2}, Admitted(caps(world, a=cap)))
    assert list(view.ids) == ["b"]
    assert allocation.gpus.tolist() == [0, 2]


def test_who_wants_more_than_its_nodes_have_is_shown_as_smaller_or_not_at_all() -> None:
    labelled = Node("n1", 2, labels=(("zone", "x"),))
    wish: dict[str, Any] = {"node_labels": (("zone", "x"),)}
    jobs = [make_job("elastic", 4, min=1, **wish), make_job("rigid", 4, **wish), make_job("plain", 4)]
    world = make_world([Node("n0", 4), labelled], {}, jobs)
    allocation, (view,) = ask(world, {"elastic": 2, "plain": 4})
    assert dict(zip(view.ids, view.max.tolist(), strict=True)) == {"elastic": 2, "plain": 4}
    assert allocation.reach is not None
    by_job = {world.jobs.ids[row]: most for row, most in zip(*allocation.reach, strict=True)}
    assert by_job == {"elastic": 2, "rigid": 2}


def test_without_nodes_nobody_gets_anything() -> None:
    world = make_world([], {}, [make_job("a")])
    allocation, views = ask(world, {"a": 1})
    assert allocation.gpu_type is not None
    assert (allocation.gpus.tolist(), allocation.gpu_type.tolist(), allocation.capacity) == ([0], [-1], [])
    assert not views


# ---------------------------------------------------------------------------------------------- several types


def two_types() -> list[Node]:
    return [Node("n0", 4, gpu_type="old"), Node("n1", 8, gpu_type="new")]


def test_a_policy_is_asked_once_for_every_type() -> None:
    jobs = [
        make_job("a", 2, gpu_types=(("old", 1.0),)),
        make_job("b", 2),
        make_job("z", gpu_types=(("tpu", 1.0),)),
    ]
    world = make_world(two_types(), {}, jobs)
    allocation, views = ask(world, {"a": 2, "b": 2, "z": 1})
    assert [(list(view.ids), view.capacity) for view in views] == [(["a"], 4), (["b"], 8)]
    assert allocation.gpu_type is not None
    assert allocation.gpu_type.tolist() == [0, 1, -1]
    assert allocation.gpus.tolist() == [2, 2, 0]


def test_what_is_left_is_counted_in_gpus_of_the_type() -> None:
    job = make_job("a", 2, work_s=600.0, gpu_types=(("new", 3.0), ("old", 1.0)))
    world = make_world(two_types(), {}, [job])
    _, views = ask(world)
    assert views[1].remaining_s.tolist() == [200.0]


def test_gpus_in_transition_are_taken_from_their_own_type() -> None:
    world = make_world(two_types(), {}, [make_job("a", 3), make_job("b", 3)])
    carry_out(world, [Start("a", at("n1:012"), Reason.ADMITTED)], 1.0)
    _, views = ask(world)
    assert [view.capacity for view in views] == [4, 5]


# ----------------------------------------------------------------------------------------------------- shares


def share(name: str, percent: int, **changes: Any) -> Job:
    return make_job(name, share=Share(compute_percent=percent), **changes)


def test_shares_that_fit_on_one_card_are_shown_as_one_job() -> None:
    world = make_world(make_nodes(2), {}, [share("a", 60), share("b", 60), share("c", 40), share("d", 30)])
    allocation, (view,) = ask(world, {"a": 1, "b": 0})
    assert list(view.ids) == ["a", "b"]
    assert dict(zip(world.jobs.ids, allocation.gpus.tolist(), strict=True)) == {
        "a": 1,
        "b": 0,
        "c": 1,
        "d": 0,
    }


def test_a_share_joins_a_card_in_use_and_who_was_there_first_speaks_for_it() -> None:
    world = make_world(make_nodes(2), {"late": "n0:0"}, [share("early", 30), share("late", 60, submit_s=5.0)])
    _, (view,) = ask(world)
    assert list(view.ids) == ["late"]


def test_a_card_with_a_job_in_transition_is_not_the_policys_to_give() -> None:
    world = make_world(make_nodes(2), {"a": "n0:0"}, [share("a", 40), share("b", 40), make_job("c")])
    carry_out(world, [Start("b", at("n0:0"), Reason.ADMITTED)], 1.0)
    allocation, (view,) = ask(world, {"c": 1})
    assert (list(view.ids), view.capacity) == (["c"], 1)
    assert allocation.gpus.tolist() == [1, 1, 1]


@pytest.mark.parametrize("moving", [False, True])
def test_who_may_not_run_has_no_place_beside_others(moving: bool) -> None:
    world = make_world(make_nodes(2), {"a": "n0:0", "b": "n0:0"}, [share("a", 40), share("b", 40)])
    if moving:
        carry_out(world, [Resize("a", at("n0:0"), Reason.GREW)], 1.0)
    allocation, _ = ask(world, {"a": 1, "b": 1}, Admitted(caps(world, b=0)))
    assert allocation.gpus.tolist() == [1, 0]


# ------------------------------------------------------------------------------------------------------ tiers


class Demoting(Fixed):
    """Moves everyone to tier 1."""

    def tiers(self, view: PoolView) -> IntArray:
        return np.ones(len(view), dtype=np.int64)


def test_a_policy_with_tiers_moves_jobs_first_and_decides_then() -> None:
    world = make_world(make_nodes(2), {}, [make_job("a"), make_job("b")])
    policy = Demoting({"a": 1}, traits=PolicyTraits(tiered=True))
    allocation = allocate(world, NOW_S, Admitted(), policy, freeze=True)
    assert allocation.retiered == (("a", 1), ("b", 1))
    assert (policy.seen[0].tier.tolist(), policy.seen[0].tier_since_s.tolist()) == ([1, 1], [NOW_S, NOW_S])
    assert world.jobs.tier.tolist() == [0, 0], "only a plan changes the World"


def test_who_is_there_already_is_not_moved_again() -> None:
    world = make_world(make_nodes(2), {}, [make_job("a"), make_job("b")])
    world.jobs.tier[:] = (1, 0)
    assert allocate(world, NOW_S, Admitted(), Demoting({}, traits=PolicyTraits(tiered=True)), freeze=True).retiered == (
        ("b", 1),
    )


def test_a_policy_cannot_write_into_the_world() -> None:
    world = make_world(make_nodes(2), {}, [make_job("a")])
    _, (view,) = ask(world)
    for name in ("submit_s", "gpus", "min", "max", "size", "tier", "priority", "restart_s"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(view, name)[0] = 7
    apply(world, ev.TimePassed(1.0))
