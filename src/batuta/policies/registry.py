"""Which policies there are: the built-in ones, those of other packages, and those in a Python file.

A package adds its own with an entry point of the group `batuta.policies`: a policy, or anything that makes
one when called without arguments. It is imported only when it is asked for, so a broken one harms no other.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from batuta.core.policy import Policy
from batuta.policies.afs_l import AfsL
from batuta.policies.checked import BrokenPolicyError, CheckedPolicy
from batuta.policies.ffdl import Ffdl
from batuta.policies.fifo import ElasticFifo, ElasticSrjf, Fifo, Srjf
from batuta.policies.gavel import Gavel
from batuta.policies.optimus import Optimus, OptimusReplay
from batuta.policies.pollux import Pollux
from batuta.policies.rent import Rent
from batuta.policies.sia import Sia
from batuta.policies.themis import Themis
from batuta.policies.tiresias import ElasticTiresias, Tiresias, TiresiasReplay

GROUP = "batuta.policies"
DEFAULT_POLICY = "rent"  # decides where none was chosen
BUILT_IN: dict[str, tuple[Callable[[], Policy], str]] = {
    "fifo": (Fifo, "First come, first served; every job gets the fewest GPUs that it can run on."),
    "srjf": (Srjf, "Jobs with the least work left go first; every job gets the fewest GPUs that it can run on."),
    "tiresias": (Tiresias, "Jobs that have used little GPU time so far go first, at the size that they asked for."),
    "elastic-fifo": (
        ElasticFifo,
        "First come, first served; GPUs that no job waits for make the running jobs larger.",
    ),
    "elastic-srjf": (
        ElasticSrjf,
        "Jobs with the least work left go first; GPUs that no job waits for make the running jobs larger.",
    ),
    "elastic-tiresias": (
        ElasticTiresias,
        "Jobs that have used little GPU time so far go first; the others shrink while many wait, and free "
        "GPUs go to the jobs that get fastest by them.",
    ),
    "ffdl": (Ffdl, "First come, first served; sizes are chosen so that all running jobs together are fastest."),
    "afs-l": (AfsL, "GPUs go one by one to the job that gains most by one more; short jobs are preferred."),
    "rent": (
        Rent,
        "Every job that fits runs at its min before any grows; growth goes where the work of the next while "
        "is worth most: to short jobs that scale well.",
    ),
    "rent-pure": (
        partial(Rent, name="rent-pure", min_first=False),
        "The same without the first part: prices alone decide which jobs grow and which wait, for the shortest mean "
        "completion time.",
    ),
    "optimus": (Optimus, "First come, first served; GPUs then go one by one to the job whose end they bring nearest."),
    "themis": (Themis, "Jobs that are slowed down most against a fair share of the cluster go first."),
    "gavel": (
        Gavel,
        "Every job gets a fair part of every GPU type's time, weighted by what the type is worth to the job.",
    ),
    "pollux": (Pollux, "Sizes that keep all jobs near, or above, what a fair share would give them; few restarts."),
    "sia": (Sia, "The GPU type and size of which each job makes good use, for all together; few restarts."),
    "tiresias-replay": (TiresiasReplay, "Tiresias as its authors ran it, to repeat published experiments."),
    "optimus-replay": (OptimusReplay, "Optimus as its authors ran it, to repeat published experiments."),
}
"""By name: what makes it, and a sentence about it."""


class UnknownPolicyError(LookupError):
    """There is no policy of this name; the message names the nearest one."""

    def __init__(self, name: str, known: list[str]) -> None:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        super().__init__(f"unknown policy {name!r} ({hint})")


def policy_names() -> list[str]:
    """All names that `load_policy` knows: the built-in ones in their usual order, then the others by name."""
    return [*BUILT_IN, *sorted(set(_announced()) - set(BUILT_IN))]


def load_policy(name: str) -> Policy:
    """The policy of this name with its default parameters. A built-in name cannot be taken over."""
    if name in BUILT_IN:
        return BUILT_IN[name][0]()
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
        policy = found() if isinstance(found, type) or not hasattr(found, "allocate") else found
    except Exception as error:
        raise BrokenPolicyError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error
    return CheckedPolicy(policy, origin)


def load_policy_file(path: str, name: str = "") -> Policy:
    """The policy class of a file, with its default parameters; `name` chooses among several."""
    module = _load_module(path)
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "allocate")
    }
    if name:
        if name not in own:
            raise BrokenPolicyError(f"{path} has no policy class {name} (it has: {', '.join(own) or 'none'})")
        chosen = own[name]
    elif len(own) == 1:
        chosen = next(iter(own.values()))
    else:
        found = ", ".join(own) or "none"
        raise BrokenPolicyError(f"{path} must have one class with allocate(view), found {found}")
    try:
        policy = chosen()
    except Exception as error:
        raise BrokenPolicyError(f"{path}: {chosen.__name__}() failed: {error}") from error
    return CheckedPolicy(policy, f"{path}: {chosen.__name__}")


def _load_module(path: str) -> ModuleType:
    module_name = "batuta_policy_file_" + "".join(c if c.isalnum() else "_" for c in path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise BrokenPolicyError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise BrokenPolicyError(f"{path} does not exist") from None
    except Exception as error:
        raise BrokenPolicyError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def policy_summaries() -> list[tuple[str, str]]:
    """Return all policies with a sentence each; a foreign one with the first line of its docstring."""
    return [(name, _summary(name)) for name in policy_names()]


def _summary(name: str) -> str:
    if name in BUILT_IN:
        return BUILT_IN[name][1]
    policy = load_policy(name)
    return policy.description if isinstance(policy, CheckedPolicy) else ""
