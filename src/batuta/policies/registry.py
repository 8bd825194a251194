"""Which policies there are: the built-in ones, and those that other packages announce.

A package adds its own with an entry point of the group `batuta.policies`: a policy, or anything that makes
one when called without arguments. It is imported only when it is asked for, so a broken one harms no other.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from batuta.core.policy import Policy
from batuta.policies.afs_l import AfsL
from batuta.policies.elastic_fifo import ElasticFifo
from batuta.policies.elastic_srjf import ElasticSrjf
from batuta.policies.elastic_tiresias import ElasticTiresias
from batuta.policies.ffdl import Ffdl
from batuta.policies.fifo import Fifo
from batuta.policies.gavel import Gavel
from batuta.policies.optimus import Optimus
from batuta.policies.optimus_replay import OptimusReplay
from batuta.policies.pollux import Pollux
from batuta.policies.rent import Rent
from batuta.policies.sia import Sia
from batuta.policies.srjf import Srjf
from batuta.policies.themis import Themis
from batuta.policies.tiresias import Tiresias
from batuta.policies.tiresias_replay import TiresiasReplay

GROUP = "batuta.policies"

BUILT_IN: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "srjf": Srjf,
    "tiresias": Tiresias,
    "elastic-fifo": ElasticFifo,
    "elastic-srjf": ElasticSrjf,
    "elastic-tiresias": ElasticTiresias,
    "ffdl": Ffdl,
    "afs-l": AfsL,
    "rent": Rent,
    "optimus": Optimus,
    "themis": Themis,
    "gavel": Gavel,
    "pollux": Pollux,
    "sia": Sia,
    "tiresias-replay": TiresiasReplay,
    "optimus-replay": OptimusReplay,
}


class UnknownPolicyError(LookupError):
    """There is no policy of this name; the message names the nearest one."""

    def __init__(self, name: str, known: list[str]) -> None:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        super().__init__(f"unknown policy {name!r} ({hint})")
        self.name = name
        self.known = tuple(known)


class BrokenPolicyError(RuntimeError):
    """A policy from another package could not be loaded; the message says from where and why."""


def policy_names() -> list[str]:
    """All names that `load_policy` knows: the built-in ones in their usual order, then the others by name."""
    return [*BUILT_IN, *sorted(set(_announced()) - set(BUILT_IN))]


def load_policy(name: str) -> Policy:
    """The policy of this name with its default parameters. A built-in name cannot be taken over."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    announced = _announced()
    if name not in announced:
        raise UnknownPolicyError(name, policy_names())
    return _load(announced[name])


def _announced() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> Policy:
    """Foreign code: whatever it raises is told as one sentence about where it comes from."""
    origin = f"policy {point.name!r} from {point.value!r}"
    if point.dist is not None:
        origin += f" of package {point.dist.name}"
    try:
        found = point.load()
        policy = found() if isinstance(found, type) or not isinstance(found, Policy) else found
    except Exception as error:
        raise BrokenPolicyError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(policy, Policy):
        raise BrokenPolicyError(f"{origin} is no policy: it needs a name and allocate(view)")
    return policy
