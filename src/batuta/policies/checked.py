"""Policies of others are looked over: what they answer is legal, or it is refused with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.policy import Policy
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
        return getattr(self._inner, name)


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


def _is_legal(view: PoolView, answer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    legal: np.ndarray[Any, Any] = view.sizes.floor(np.clip(answer, view.min, view.max)) == answer
    return legal
