"""Policies of other packages: what they declare and answer is legal, or is refused with a sentence."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.policy import PLAIN, PolicyTraits
from batuta.core.view import Choice, PoolView, TypedView

_SHOWN = 3
_DECLARED_BY = {
    "tiers": "tiered=True",
    "allocate_types": "typed=True",
    "generous": "generous=True",
    "placement": "placer=PlacerKind.…",
    "weighs": "weighs=True",
}
"""What a policy may have beside `allocate`, and how its traits say so."""


class BrokenPolicyError(RuntimeError):
    """A policy from another package could not be loaded; the message says from where and why."""


class PolicyAnswerError(Exception):
    """A policy raised an error, or gave an answer that cannot be carried out."""


class CheckedPolicy:
    """A policy of another package: needs `name` and `allocate(view)`. An answer that breaks the contract is refused."""

    def __init__(self, inner: Any, origin: str) -> None:
        """`origin` says where the policy comes from, for messages. Raises BrokenPolicyError."""
        if not isinstance(getattr(inner, "name", None), str) or not callable(getattr(inner, "allocate", None)):
            raise BrokenPolicyError(f"{origin} is no policy: it needs a name and allocate(view)")
        self._inner = inner
        self.name: str = inner.name
        # It is asked part by part, so that each answer is checked.
        self.traits = replace(_read_traits(inner, origin), parted=False)
        self.description = _first_line(type(inner))

    def allocate(self, view: PoolView) -> IntArray:
        """Return what the policy answers. Raises PolicyAnswerError with all that is wrong with it."""
        with self._asking():
            answer = np.asarray(self._inner.allocate(view))
        self._refuse(_faults(view, answer))
        return answer.astype(np.int64, copy=False)

    def tiers(self, view: PoolView) -> IntArray:
        """Return the queue level of each job; asked of a policy that declares `tiered`."""
        return np.asarray(self._inner.tiers(view))

    def allocate_types(self, view: TypedView) -> Choice:
        """Return counts and types, checked as in `allocate`; asked of a policy that declares `typed`."""
        with self._asking():
            gpus, kinds = (np.asarray(part) for part in self._inner.allocate_types(view))
        self._refuse(_faults(view.jobs, gpus) or _type_faults(view, gpus, kinds))
        return Choice(gpus.astype(np.int64, copy=False), kinds.astype(np.int64, copy=False))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise PolicyAnswerError(f"policy {self.name} failed: {type(error).__name__}: {error}") from error

    def _refuse(self, faults: list[str]) -> None:
        if faults:
            raise PolicyAnswerError(f"policy {self.name} {'; '.join(faults)}")


def _first_line(own: type) -> str:
    """Return what a policy says of itself in one line: its class, or else its module."""
    text = inspect.getdoc(own) or inspect.getdoc(sys.modules[own.__module__]) or ""
    return text.split("\n")[0]


def _read_traits(inner: Any, origin: str) -> PolicyTraits:
    """Return the declared traits of a policy that Batuta did not write."""
    traits = getattr(inner, "traits", None)
    if traits is None:
        found = [word for name, word in _DECLARED_BY.items() if hasattr(inner, name)]
        if found:
            raise BrokenPolicyError(
                f"{origin} does not declare what it has: add traits = PolicyTraits({', '.join(found)}), "
                "from batuta.core.policy"
            )
        return PLAIN
    if not isinstance(traits, PolicyTraits):
        raise BrokenPolicyError(f"{origin} has traits that are no PolicyTraits (from batuta.core.policy)")
    needed = {"tiers": traits.tiered, "allocate_types": traits.typed}
    missing = [name for name, wanted in needed.items() if wanted and not callable(getattr(inner, name, None))]
    if missing:
        raise BrokenPolicyError(f"{origin} declares more than it has: no {', '.join(missing)}(view)")
    return traits


def _faults(view: PoolView, answer: np.ndarray[Any, Any]) -> list[str]:
    if answer.shape != (len(view),):
        return [f"answered {answer.shape} for {len(view)} jobs, not one count each"]
    if not np.issubdtype(answer.dtype, np.integer):
        return [f"answered with {answer.dtype}, not with whole numbers"]
    found = []
    legal = view.sizes.floor(np.clip(answer, view.min, view.max)) == answer
    illegal = np.flatnonzero((answer != 0) & ~legal)
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
