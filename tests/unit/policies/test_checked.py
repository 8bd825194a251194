"""A policy of somebody else's: given its answer, then it is carried out or refused with a sentence."""

from typing import Any

import numpy as np
import pytest

from batuta.core.policy import PLAIN, Policy, PolicyTraits, as_parted, as_tiered, as_typed
from batuta.policies.checked import BrokenPolicyError, CheckedPolicy, PolicyAnswerError
from tests.support.views import make_typed, make_view


class Mine:
    """Answers what it is told to."""

    name = "mine"
    traits = PolicyTraits(generous=True, parted=True)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def allocate(self, view: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ask(answer: Any) -> Any:
    view = make_view(6, [{"id": "a", "size": 2, "min": 2, "max": 4}, {"id": "b", "max": 4, "sizes": (1, 4)}])
    return CheckedPolicy(Mine(answer), "mine.py").allocate(view).tolist()


@pytest.mark.parametrize("answer", [[2, 4], [0, 0], [4, 1], np.array([3, 0], dtype=np.int32)])
def test_a_legal_answer_is_passed_on(answer: Any) -> None:
    assert ask(answer) == list(answer)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([2], "answered (1,) for 2 jobs"),
        ([2.5, 1.0], "not with whole numbers"),
        ([1, 1], "sizes that jobs may not have: 1 for a"),
        ([5, 1], "sizes that jobs may not have: 5 for a"),
        ([2, 2], "sizes that jobs may not have: 2 for b"),
        ([-2, 1], "sizes that jobs may not have: -2 for a"),
        ([4, 4], "gave 8 GPUs, there are 6"),
        ([9, 9], "sizes that jobs may not have: 9 for a, 9 for b; gave 18 GPUs, there are 6"),
        (None, "answered () for 2 jobs"),
        (ZeroDivisionError("oops"), "failed: ZeroDivisionError: oops"),
    ],
)
def test_any_other_answer_is_refused(answer: Any, sentence: str) -> None:
    with pytest.raises(PolicyAnswerError) as refused:
        ask(answer)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("policy mine ")


def test_its_traits_hold_but_it_is_asked_part_by_part_so_that_each_answer_is_checked() -> None:
    checked = CheckedPolicy(Mine([]), "mine.py")
    assert isinstance(checked, Policy)
    assert checked.traits == PolicyTraits(generous=True)
    assert (as_tiered(checked), as_parted(checked), as_typed(checked)) == (None, None, None)


def test_a_policy_without_traits_is_a_plain_one() -> None:
    class Plain:
        name = "plain"
        allocate = Mine.allocate

    assert CheckedPolicy(Plain(), "plain.py").traits == PLAIN


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"tiers": len, "generous": True}, r"add traits = PolicyTraits\(tiered=True, generous=True\)"),
        ({"traits": "fast"}, "traits that are no PolicyTraits"),
        ({"traits": PolicyTraits(tiered=True, typed=True)}, "no tiers, allocate_types"),
        ({"name": 3}, "it needs a name"),
    ],
)
def test_what_is_not_declared_or_not_there_is_refused(own: dict[str, Any], why: str) -> None:
    policy = type("Mine", (), {"name": "mine", "allocate": Mine.allocate} | own)
    with pytest.raises(BrokenPolicyError, match=why) as refused:
        CheckedPolicy(policy(), "mine.py: Mine")
    assert str(refused.value).startswith("mine.py: Mine ")


class MineByType(Mine):
    """Answers what it is told to, types included."""

    traits = PolicyTraits(typed=True)

    def allocate_types(self, view: Any) -> Any:
        return self.allocate(view)


def ask_types(answer: Any) -> Any:
    jobs = make_view(6, [{"id": "a", "size": 2, "min": 2, "max": 4}, {"id": "b", "max": 4}])
    view = make_typed([4, 2], jobs, [[1.0, 1.0], [1.0, 0.0]])
    checked = as_typed(CheckedPolicy(MineByType(answer), "mine.py"))
    assert checked is not None
    gpus, kinds = checked.allocate_types(view)
    return gpus.tolist(), kinds.tolist()


def test_a_legal_answer_with_types_is_passed_on() -> None:
    assert ask_types(([2, 4], [1, 0])) == ([2, 4], [1, 0])
    assert ask_types(([2, 0], [1, 1])) == ([2, 0], [1, 1]), "without GPUs the type does not matter"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (([2, 1], [0]), "answered types in another shape"),
        (([2, 1], [0.0, 0.0]), "answered types in another shape"),
        (([2, 1], [0, 2]), "a number outside 0..1"),
        (([1, 1], [0, 0]), "sizes that jobs may not have: 1 for a"),
        (([2, 1], [0, 1]), "may not have so many of: 1 type1 for b"),
        (([2, 3], [0, 0]), "gave 5 GPUs of type0, there are 4"),
        (([2, 1],), "failed: ValueError"),
        (KeyError("oops"), "failed: KeyError: 'oops'"),
    ],
)
def test_any_other_answer_with_types_is_refused(answer: Any, sentence: str) -> None:
    with pytest.raises(PolicyAnswerError) as refused:
        ask_types(answer)
    assert sentence in str(refused.value)
