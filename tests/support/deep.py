"""All of a value as plain nested lists of text: floats to the last bit, orders, hidden fields and all.

The order in a dict counts but for a few that are only looked up in, or summed up.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from batuta.core.curve import CurvePool
from batuta.core.job_table import JobTable
from batuta.core.node_table import NodeTable
from batuta.core.plan import Decisions
from batuta.core.world import World, WorldCaches

UNORDERED = {
    *((JobTable, "key_of"), (JobTable, "type_lists"), (Decisions, "special")),
    *((NodeTable, name) for name in ("by_key", "by_label", "by_size", "models")),
}
PASSING = {
    *((NodeTable, "_matching"), (World, "forgotten")),
    *((WorldCaches, name) for name in ("most", "effective_quota", "effective_from")),
}
"""What is found again when somebody asks, and what counts from when somebody took the World up."""


def deep(value: Any) -> Any:
    """Equal for two values only if nobody could ever tell them apart."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), repr(value.tolist())]
    if isinstance(value, dict):
        return [type(value).__name__, [[deep(key), deep(own)] for key, own in value.items()]]
    if isinstance(value, set):
        return ["set", sorted(map(repr, value))]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [deep(own) for own in value]]
    if is_dataclass(value):
        return [type(value).__name__, {f.name: deep(_part(value, f.name)) for f in fields(value)}]
    if hasattr(value, "__slots__") and type(value).__module__.startswith("batuta."):
        return [type(value).__name__, {name: deep(_part(value, name)) for name in sorted(value.__slots__)}]
    return repr(value)


def _part(value: Any, name: str) -> Any:
    """A field or slot. Room that was reserved and is not used yet holds nothing."""
    own = getattr(value, name)
    if (type(value), name) in UNORDERED:
        return dict(sorted(own.items(), key=repr))
    if (type(value), name) in PASSING:
        return None
    if isinstance(value, JobTable) and name in ("_f", "_i"):
        return own[:, : value.n]
    if isinstance(value, CurvePool) and name == "flat":
        return [len(own), own[: value.used]]
    return own
