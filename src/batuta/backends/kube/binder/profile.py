"""Which plugins run, in which order, with which weights: configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names
from batuta.backends.kube.binder.plugin import Plugin
from batuta.backends.kube.binder.plugins.gpus import Gpus, GpuShare, Utilisation
from batuta.backends.kube.binder.plugins.node_affinity import NodeAffinity
from batuta.backends.kube.binder.plugins.numa import Numa
from batuta.backends.kube.binder.plugins.pod_affinity import PodAffinity, PodSpread
from batuta.backends.kube.binder.plugins.resources import HostPorts, Resources
from batuta.backends.kube.binder.plugins.taints import Taints, Unschedulable

ENTRY_POINTS: Final = "batuta.binder_plugins"
OWN: Final[Mapping[type[Plugin], float]] = {
    Unschedulable: 0.0,
    Taints: 3.0,
    NodeAffinity: 2.0,
    Resources: 1.0,
    Gpus: 0.0,
    GpuShare: 1.0,
    HostPorts: 0.0,
    Numa: 0.0,
    PodAffinity: 0.0,
    PodSpread: 0.0,
    Utilisation: 0.5,
}
"""Batuta's own plugins, and how much the score of each counts by default."""
DEFAULT_WEIGHTS: Final = {plugin.name: weight for plugin, weight in OWN.items()}


class WeightedPlugin(NamedTuple):
    """A plugin, and how much its score counts; what it filters counts always."""

    plugin: Plugin
    weight: float = 1.0


class Level(NamedTuple):
    """A level of the topology, and the node labels that name its domains; the first that is there counts."""

    name: str
    labels: tuple[str, ...]


LEVELS: Final = (
    Level("zone", (names.ZONE_LABEL,)),
    Level("rack", names.RACK_LABELS),
    Level("node", (names.HOSTNAME_LABEL,)),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """How the binder judges. Filters run in this order, and a node counts for the first that refuses it."""

    plugins: tuple[WeightedPlugin, ...]
    levels: tuple[Level, ...] = LEVELS
    assume_s: float = 60.0  # how long a binding may be on its way before the pod counts as not bound


class BadProfile(ValueError):
    """A profile names plugins that are not registered, or settings that they do not have."""


@cache
def registered() -> Mapping[str, type[Plugin]]:
    """All plugins by name: Batuta's own, and those that other packages bring by entry point."""
    found = {one.name: one for one in OWN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        found.setdefault(point.name, point.load())
    return found


def default_profile() -> Profile:
    """All of Batuta's plugins: GPUs are packed, idle ones come first among equals."""
    return profile_of(DEFAULT_WEIGHTS)


def profile_of(weights: Mapping[str, float], settings: Mapping[str, Mapping[str, object]] | None = None) -> Profile:
    """A profile with these plugins in this order; `settings` are a plugin's parameters, by its name."""
    known = registered()
    given = settings or {}
    faults = [_unknown("binder plugin", name, known) for name in {**weights, **given} if name not in known]
    for name in given.keys() & known.keys():
        kind: Any = known[name]
        has: list[str] = [one.name for one in fields(kind)] if is_dataclass(kind) else []
        faults += [_unknown(f"setting of {name}", one, has) for one in given[name] if one not in has]
    if faults:
        raise BadProfile("; ".join(sorted(faults)))
    return Profile(
        tuple(WeightedPlugin(known[name](**given.get(name, {})), weight) for name, weight in weights.items())
    )


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    return f"no {kind} is named {name!r}: there is {', '.join(sorted(known)) or 'none'}"
