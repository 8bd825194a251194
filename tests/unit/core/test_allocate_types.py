"""A policy that chooses GPU types: what it is shown, and what becomes of its answer."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from batuta.core.admission import Admitted
from batuta.core.allocate import Allocation, allocate
from batuta.core.arrays import IntArray
from batuta.core.cluster import Node
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Job, JobId, Share, Spread, Topology
from batuta.core.plan import Plan, Resize, Start
from batuta.core.policy import PolicyTraits
from batuta.core.reason import Reason
from batuta.core.view import Choice, PoolView, TypedView
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement.placer import TopologyPlacer
from tests.support.invariants import check_plan
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world, shown


@dataclass(frozen=True)
class FixedTypes:
    """Gives each job what is written down for it: a count and the name of a type."""

    given: Mapping[JobId, tuple[int, str]]
    name: str = "fixed-types"
    traits: ClassVar[PolicyTraits] = PolicyTraits(typed=True)
    seen: list[TypedView] = field(default_factory=list)

    def allocate(self, view: PoolView) -> IntArray:
        gpus = np.array([self.given.get(job, (0, ""))[0] for job in view.ids], dtype=np.int64)
        return np.where(np.cumsum(gpus) <= view.capacity, gpus, 0)

    def allocate_types(self, view: TypedView) -> Choice:
        self.seen.append(view)
        answers = [self.given.get(job, (0, view.types[0])) for job in view.jobs.ids]
        gpus = np.array([gpus for gpus, _ in answers], dtype=np.int64)
        kinds = np.array([view.types.index(name) for _, name in answers], dtype=np.int64)
        return Choice(gpus, kinds)


OLD_AND_NEW = (Node("n0", 4, gpu_type="old"), Node("n1", 8, gpu_type="new"))


def ask(
    world: World, given: Mapping[JobId, tuple[int, str]] | None = None, admitted: Admitted | None = None
) -> tuple[Allocation, TypedView]:
    policy = FixedTypes(given or {})
    allocation = allocate(world, NOW_S, admitted or Admitted(), policy, freeze=True)
    (view,) = policy.seen
    return allocation, view


def decided(world: World, given: Mapping[JobId, tuple[int, str]], costs: Costs | None = None) -> Plan:
    plan = decide(world, NOW_S, SchedulerProfile(FixedTypes(given), TopologyPlacer(), costs=costs or Costs()))
    check_plan(world, plan)
    return plan


def test_it_sees_every_job_once_with_its_speed_on_every_type() -> None:
    jobs = [
        make_job("a", 2, gpu_types=(("old", 0.5), ("new", 2.0))),
        make_job("b", 2, max=6),
        make_job("c", gpu_types=(("new", 3.0),)),
    ]
    allocation, view = ask(make_world(OLD_AND_NEW, {}, jobs), {"a": (2, "new"), "b": (4, "old")})
    assert (view.types, view.capacity.tolist(), view.jobs.capacity) == (("old", "new"), [4, 8], 12)
    assert view.speed.tolist() == [[0.5, 2.0], [1.0, 1.0], [0.0, 3.0]]
    assert view.most.tolist() == [[2, 2], [6, 6], [0, 1]]
    assert (allocation.gpus.tolist(), allocation.capacity) == ([2, 4, 0], [4, 8])
    assert allocation.gpu_type is not None
    assert allocation.gpu_type.tolist() == [1, 0, 1], "who waits is told about the type it would like best"


def test_what_is_left_is_counted_on_the_reference_type() -> None:
    job = make_job("a", 2, work_s=600.0, gpu_types=(("new", 3.0), ("old", 1.0)))
    _, view = ask(make_world(OLD_AND_NEW, {}, [job]))
    assert view.jobs.remaining_s.tolist() == [600.0]


def test_with_one_type_there_is_nothing_to_choose() -> None:
    policy = FixedTypes({"a": (2, "gpu")})
    allocation = allocate(make_world(make_nodes(4), {}, [make_job("a", 2)]), NOW_S, Admitted(), policy, freeze=True)
    assert (allocation.gpus.tolist(), policy.seen) == ([2], [])


def test_jobs_in_transition_keep_theirs_and_their_type_has_less_for_the_others() -> None:
    world = make_world(OLD_AND_NEW, {}, [make_job("a", 3), make_job("b", 3)])
    carry_out(world, [Start("a", at("n1:012"), Reason.ADMITTED)], 1.0)
    allocation, view = ask(world, {"b": (3, "new")})
    assert (list(view.jobs.ids), view.capacity.tolist()) == (["b"], [4, 5])
    assert allocation.gpus.tolist() == [3, 3]


def test_quota_for_one_type_leaves_no_other() -> None:
    world = make_world(OLD_AND_NEW, {}, [make_job("a", 2, max=8), make_job("b"), make_job("c")])
    admitted = Admitted(np.array([3, 1, 0]), gpu_type=np.array([1, 0, -1]))
    _, view = ask(world, admitted=admitted)
    assert list(view.jobs.ids) == ["a", "b"]
    assert view.speed.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert view.most.tolist() == [[0, 3], [1, 0]]


def test_a_job_may_have_of_each_type_what_its_nodes_could_give() -> None:
    nodes = [Node("n0", 2, gpu_type="old"), Node("n1", 8, gpu_type="new")]
    within = Topology(Spread.NODE, required=True)
    jobs = [make_job("a", 4, min=1, topology=within), make_job("b", 4, topology=within)]
    _, view = ask(make_world(nodes, {}, jobs))
    assert view.most.tolist() == [[2, 4], [0, 4]]
    assert view.speed.tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_who_accepts_no_type_is_not_shown_and_told_so() -> None:
    world = make_world(OLD_AND_NEW, {}, [make_job("a"), make_job("z", gpu_types=(("tpu", 1.0),))])
    allocation, view = ask(world)
    assert list(view.jobs.ids) == ["a"]
    assert allocation.gpu_type is not None
    assert allocation.gpu_type.tolist() == [1, -1]
    decision = decided(world, {}).decisions.of("z")
    assert decision is not None
    assert decision.reason is Reason.NO_ACCEPTED_TYPE


def share(name: str, percent: int) -> Job:
    return make_job(name, share=Share(compute_percent=percent))


def test_shares_are_shown_as_one_job_for_each_card_with_the_type_of_that_card() -> None:
    nodes = [Node("n0", 4, gpu_type="old"), Node("n1", 1, gpu_type="new")]
    world = make_world(nodes, {"a": "n1:0"}, [share("a", 40), share("b", 40), make_job("c", 2)])
    allocation, view = ask(world, {"a": (1, "new"), "c": (2, "old")})
    by_job = dict(zip(view.jobs.ids, view.speed.tolist(), strict=True))
    assert by_job["a"] == [0.0, 1.0]
    assert by_job["c"] == [1.0, 0.0], "two GPUs of the new type are not there"
    assert allocation.gpus[0] == 1


# --------------------------------------------------------------------------------- what becomes of the answer


def test_jobs_start_on_the_type_that_was_chosen() -> None:
    world = make_world(OLD_AND_NEW, {}, [make_job("a", 2), make_job("b", 2)])
    plan = decided(world, {"a": (2, "old"), "b": (2, "new")})
    starts = [command for command in plan.commands if isinstance(command, Start)]
    assert {start.job: shown(start.placement) for start in starts} == {"a": "n0:01", "b": "n1:01"}


def faster(name: str, **changes: Any) -> Job:
    return make_job(name, 2, gpu_types=(("old", 1.0), ("new", 4.0)), **changes)


def test_a_running_job_goes_to_a_faster_type_if_that_pays() -> None:
    world = make_world(OLD_AND_NEW, {"a": "n0:01"}, [faster("a")])
    (command,) = decided(world, {"a": (2, "new")}).commands
    assert isinstance(command, Resize)
    assert (command.reason, shown(command.placement)) == (Reason.CHANGED_TYPE, "n1:01")
    assert command.reason.sentence(command.evidence) == "goes from 2 GPUs of one type to 2 of another"


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (faster("a", work_s=NOW_S * 2 + 10), "new"),
        (make_job("a", 2, gpu_types=(("old", 4.0), ("new", 1.0))), "new"),
    ],
    ids=["nearly done", "slower"],
)
def test_it_stays_if_it_does_not_pay(job: Job, kind: str) -> None:
    world = make_world(OLD_AND_NEW, {"a": "n0:01"}, [job])
    plan = decided(world, {"a": (2, kind)})
    assert plan.commands == ()
    decision = plan.decisions.of("a")
    assert decision is not None
    assert decision.gpus == 2


def test_it_goes_to_a_slower_type_to_make_room_for_another() -> None:
    nodes = [Node("n0", 2, gpu_type="old"), Node("n1", 2, gpu_type="new")]
    jobs = [make_job("a", 2), make_job("b", 2, gpu_types=(("new", 1.0),))]
    plan = decided(make_world(nodes, {"a": "n1:01"}, jobs), {"a": (2, "old"), "b": (2, "new")})
    assert [(c.job, c.reason) for c in plan.commands] == [("a", Reason.CHANGED_TYPE), ("b", Reason.ADMITTED)]


def test_it_does_not_stay_at_a_size_that_it_may_not_have() -> None:
    world = make_world(OLD_AND_NEW, {"a": "n0:0123"}, [make_job("a", 4, min=1)])

    class Cut:
        """Quota for two GPUs, of any type."""

        def admit(self, world: World, now_s: float, without: Set[int] = frozenset()) -> Admitted:
            return Admitted(np.array([2]))

    rules = SchedulerProfile(FixedTypes({"a": (2, "new")}), TopologyPlacer(), Cut())
    (command,) = decide(world, NOW_S, rules).commands
    assert isinstance(command, Resize)
    assert shown(command.placement) == "n1:01"
