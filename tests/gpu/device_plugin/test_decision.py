"""Whose request is it, and may it be granted?"""

import pytest

from batuta.gpu.device_plugin.allocation import AllocationRefused, ContainerRequest, SharePod
from batuta.gpu.device_plugin.inventory import Overcommit
from tests.gpu.device_plugin.books import COMPUTE, MEMORY, books, holding, pod, stock, units


class TestGranting:
    def test_the_oldest_pod_that_wants_as_much_gets_it(self) -> None:
        young, old, other = pod("y", 4, bound_s=3), pod("o", 4, bound_s=1), pod("other", 5)
        assert books(young, old, other).grant(MEMORY, units(0, 0, 1, 2, 3)).pod == old

    def test_of_pods_bound_in_one_second_the_first_is_the_one_with_the_lower_version(self) -> None:
        share = (ContainerRequest("main", 2),)
        late = SharePod("team", "a", "1", 0, share, 5.0, version=12)
        early = SharePod("team", "b", "2", 0, share, 5.0, version=9)
        assert books(late, early).grant(MEMORY, units(0, 0, 1)).pod == early

    def test_a_pod_that_has_its_units_is_passed_over(self) -> None:
        first, second = pod("a", 2, bound_s=1), pod("b", 2, bound_s=2)
        held = [holding("a", units(0, 0, 1))]
        assert books(first, second, held=held).grant(MEMORY, units(0, 2, 3)).pod == second

    def test_a_pod_that_runs_is_passed_over_even_if_the_kubelet_has_lost_its_file(self) -> None:
        running, waiting = pod("a", 2, bound_s=1, is_waiting=False), pod("b", 2, bound_s=2)
        assert books(running, waiting).grant(MEMORY, units(0, 2, 3)).pod == waiting

    def test_the_same_request_again_gets_the_same_answer(self) -> None:
        one, other = pod("a", 2, bound_s=1), pod("b", 2, bound_s=2)
        known = books(one, other, held=[holding("a", units(0, 0, 1))])
        assert known.grant(MEMORY, units(0, 1, 0)).pod == one

    def test_a_request_that_was_answered_before_the_kubelet_wrote_it_down_is_the_same_pods(self) -> None:
        one = pod("a", 2)
        assert books(one).grant(MEMORY, units(0, 0, 1)) == books(one).grant(MEMORY, units(0, 0, 1))

    def test_the_second_resource_goes_to_the_container_that_began(self) -> None:
        """Given two pods that want as much compute, the one that has just got its memory is meant."""
        old, begun = pod("old", 2, 30, bound_s=1), pod("begun", 3, 30, bound_s=2)
        known = books(old, begun, began=("uid-begun", "main"))
        assert known.grant(COMPUTE, units(0, *range(30), resource=COMPUTE)).pod == begun

    def test_each_container_of_a_pod_gets_its_own(self) -> None:
        two = SharePod("team", "two", "uid-two", 0, (ContainerRequest("a", 2), ContainerRequest("b", 2)))
        known = books(two, held=[holding("two", units(0, 0, 1), container="a")])
        assert known.grant(MEMORY, units(0, 2, 3)).container.name == "b"

    def test_a_container_inherits_the_units_of_an_init_container(self) -> None:
        shares = (ContainerRequest("setup", 2, is_init=True), ContainerRequest("main", 2))
        known = books(SharePod("team", "p", "uid-p", 0, shares), held=[holding("p", units(0, 0, 1), container="setup")])
        assert known.grant(MEMORY, units(0, 0, 1)).container.name == "main"


class TestRefusing:
    @pytest.mark.parametrize(
        ("ids", "why"),
        [
            (["GPU-9/memory/0"], "unknown unit of batuta.dev/gpu-memory: GPU-9/memory/0"),
            (["GPU-0/memory/10", "nonsense"], "GPU-0/memory/10 and 1 more"),
            (["GPU-0/memory/01"], "unknown unit"),
            (["GPU-0/compute/1"], "unknown unit of batuta.dev/gpu-memory"),
            ([*units(0, 0), *units(1, 0)], "a share is of one GPU, and these units"),
            ([], "are of GPUs none"),
        ],
    )
    def test_units_that_are_not_there_or_not_of_one_card(self, ids: list[str], why: str) -> None:
        with pytest.raises(AllocationRefused, match=why):
            books(pod("a", max(len(ids), 1))).grant(MEMORY, ids)

    def test_a_card_that_is_ill(self) -> None:
        with pytest.raises(AllocationRefused, match=r"GPU 0 \(GPU-0\) is ill: Xid 79"):
            books(pod("a", 1), of=stock(ill=[0])).grant(MEMORY, units(0, 0))

    def test_another_card_than_the_one_decided_on(self) -> None:
        with pytest.raises(AllocationRefused, match="GPU 1 was decided on for team/a"):
            books(pod("a", 1, on=1)).grant(MEMORY, units(0, 0))

    def test_a_pod_without_a_decision(self) -> None:
        with pytest.raises(AllocationRefused, match="no scheduler has decided on a GPU for team/a"):
            books(pod("a", 1, on=None)).grant(MEMORY, units(0, 0))

    def test_a_request_that_is_nobodys(self) -> None:
        with pytest.raises(AllocationRefused, match="no pod on this node waits for 2 units"):
            books(pod("a", 1)).grant(MEMORY, units(0, 0, 1))

    def test_units_that_another_pod_holds(self) -> None:
        """Given a kubelet that offers units a second time, nobody gets them."""
        known = books(pod("a", 3), pod("b", 2), held=[holding("a", units(0, 0, 1, 2))])
        with pytest.raises(AllocationRefused, match=r"1 of these units of batuta\.dev/gpu-memory are held by team/a"):
            known.grant(MEMORY, units(0, 2, 3))

    def test_units_of_a_pod_that_is_gone_are_free(self) -> None:
        known = books(pod("b", 2), held=[holding("gone", units(0, 0, 1))])
        assert known.grant(MEMORY, units(0, 0, 1)).pod.name == "b"

    def test_a_container_that_turns_out_to_be_another_one(self) -> None:
        """Given a pod that began with its memory, a request for compute that it did not make is refused."""
        known = books(pod("a", 2, 30), pod("b", 2, 50), began=("uid-a", "main"))
        with pytest.raises(AllocationRefused, match="not clear whose turn it is"):
            known.grant(COMPUTE, units(0, *range(50), resource=COMPUTE))


class TestPreferring:
    def test_the_card_that_was_decided_on(self) -> None:
        available = [*units(0, *range(10)), *units(1, *range(10))]
        assert books(pod("a", 3, on=1)).prefer(MEMORY, available, [], 3) == units(1, 0, 1, 2)

    def test_units_that_somebody_seems_to_have_come_last(self) -> None:
        known = books(pod("a", 2, on=0), pod("ending", 2), held=[holding("ending", units(0, 0, 1))])
        assert known.prefer(MEMORY, units(0, 0, 1, 2, 3), [], 2) == units(0, 2, 3)

    def test_what_is_included_stays_and_says_which_card(self) -> None:
        available = [*units(0, *range(10)), *units(1, *range(10))]
        chosen = books(pod("a", 2, on=0)).prefer(MEMORY, available, units(1, 4), 2)
        assert chosen == [*units(1, 4), *units(1, 0)]

    def test_without_a_decision_the_tightest_card_with_room(self) -> None:
        available = [*units(0, *range(10)), *units(1, *range(4))]
        assert books().prefer(MEMORY, available, [], 3) == units(1, 0, 1, 2)
        assert books().prefer(MEMORY, available, [], 5) == units(0, 0, 1, 2, 3, 4)

    def test_nothing_is_preferred_where_nothing_is_there(self) -> None:
        assert books().prefer(MEMORY, [], [], 3) == []


def test_a_generous_node_gives_out_more_than_it_has() -> None:
    """Given 150 % of compute and 120 % of memory, there are as many units, and each is known."""
    generous = stock(cards=1, generosity=Overcommit(120, 150))
    assert [len(generous.units(resource).devices) for resource in (MEMORY, COMPUTE)] == [12, 150]
    last = units(0, 149, resource=COMPUTE)
    assert generous.card_of(last[0], COMPUTE) is not None
    assert stock().card_of(last[0], COMPUTE) is None
