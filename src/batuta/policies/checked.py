"""Policies of others are looked over: what they answer is legal, or it is refused with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.policy import Policy
from batuta.core.typed_view import Choice, TypedView
from batuta.core.view import PoolView

_SHOWN = 3


class PolicyAnswerError(Exception):
    """A policy raised an error, or gave an answer that cannot be carried out."""


class CheckedPolicy:
    """The same policy; an answer that breaks the contract never reaches the cluster."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def allocate(self, view: PoolView) -> IntArray:
        """What the policy answers. Raises PolicyAnswerError with all that is wrong with it."""
        try:
            answer = np.asarray(self._inner.allocate(view))
        except Exception as error:
            raise PolicyAnswerError(f"policy {self.name} failed: {type(error).__name__}: {error}") from error
        faults = _faults(view, answer)
        if faults:
            raise PolicyAnswerError(f"policy {self.name} {'; '.join(faults)}")
        return answer.astype(np.int64, copy=False)

    def __getattr__(self, name: str) -> Any:
        """What else the policy says of itself: tiers, generous, placement, knowledge."""
        if name == "allocate_parts":
            raise AttributeError(name)  # it is asked part by part, so that each answer is looked over
        found = getattr(self._inner, name)
        return self._checked_types if name == "allocate_types" else found

    def _checked_types(self, view: TypedView) -> Choice:
        """The same for a policy that chooses types; one that does not has no `allocate_types`."""
        inner: Any = self._inner
        try:
            gpus, kinds = (np.asarray(part) for part in inner.allocate_types(view))
        except Exception as error:
            raise PolicyAnswerError(f"policy {self.name} failed: {type(error).__name__}: {error}") from error
        faults = _faults(view.jobs, gpus) or _type_faults(view, gpus, kinds)
        if faults:
            raise PolicyAnswerError(f"policy {self.name} {'; '.join(faults)}")
        return Choice(gpus.astype(np.int64, copy=False), kinds.astype(np.int64, copy=False))


def _faults(view: PoolView, answer: np.ndarray[Any, Any]) -> list[str]:
    if answer.shape != (len(view),):
        return [f"answered {answer.shape} for {len(view)} jobs, not one count each"]
    if not np.issubdtype(answer.dtype, np.integer):
        return [f"answered with {answer.dtype}, not with whole numbers"]
    found = []
    illegal = np.flatnonzero((answer != 0) & ~_is_legal(view, answer))
    if illegal.size:
        some = ", ".join(f"{int(answer[row])} for {view.ids[row]}" for row in illegal[:_SHOWN].tolist())
        more = f" and {illegal.size - _SHOWN} more" if illegal.size > _SHOWN else ""
        found.append(f"gave sizes that jobs may not have: {some}{more}")
    if int(answer.sum()) > view.capacity:
        found.append(f"gave {int(answer.sum())} GPUs, there are {view.capacity}")
    return found


def _type_faults(view: TypedView, gpus: np.ndarray[Any, Any], kinds: np.ndarray[Any, Any]) -> list[str]:
    served = np.flatnonzero(gpus)
    if kinds.shape != gpus.shape or not np.issubdtype(kinds.dtype, np.integer):
        return ["answered types in another shape than counts, or not as whole numbers"]
    own = kinds[served]
    if ((own < 0) | (own >= len(view.types))).any():
        return [f"named a GPU type by a number outside 0..{len(view.types) - 1}"]
    found = []
    beyond = served[gpus[served] > view.most[served, own]]
    if beyond.size:
        some = ", ".join(
            f"{int(gpus[row])} {view.types[int(kinds[row])]} for {view.jobs.ids[row]}"
            for row in beyond[:_SHOWN].tolist()
        )
        found.append(f"gave GPUs of a type that jobs may not have so many of: {some}")
    given = np.bincount(own, gpus[served], len(view.types))
    found.extend(
        f"gave {int(given[kind])} GPUs of {view.types[kind]}, there are {view.capacity[kind]}"
        for kind in np.flatnonzero(given > view.capacity).tolist()
    )
    return found


def _is_legal(view: PoolView, answer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    legal: np.ndarray[Any, Any] = view.sizes.floor(np.clip(answer, view.min, view.max)) == answer
    return legal
