"""Queues in a few words, as quota.

queues:
  - name: team-a
    quota: {H100: 8, "*": 16}   # GPUs by type, * for all together; default: no limit
    cohort: research            # queues of one cohort lend to each other
    weight: 2                   # default 1
    held: false                 # nothing new starts while it is held

Each becomes a ClusterQueue and a LocalQueue of its name, and each GPU type a flavor. A type that is not named
is not limited: it falls into the flavor `other-types`. The limit on all types is a resource of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import yaml

from batuta.core.node_table import TYPE_LABEL
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Flavor,
    FlavorQuota,
    Limits,
    LocalQueue,
    Preemption,
    Reclaim,
    ResourceGroup,
    StopPolicy,
    Within,
)
from batuta.spec.kueue.change import QuotaChange, key_of
from batuta.spec.kueue.objects import Value, Written, place_of
from batuta.spec.kueue.part import ObjectReader
from batuta.spec.problem import Problem
from batuta.spec.yaml_nodes import YamlNode

GPU, ALL_GPUS = "nvidia.com/gpu", "batuta.dev/gpus"
ALL_TYPES = "*"
ANY = Flavor("any")
OTHER_TYPES = Flavor("other-types", ((TYPE_LABEL, ALL_TYPES),))
"""The nodes of every type that no other flavor of the queue names."""
MOST_GPUS = 10_000_000
_KEYS = ("name", "quota", "cohort", "weight", "held")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NAME_FIX = "letters, digits, dots, dashes and underscores"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_RULES = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
_KIND_OF = {Flavor: "ResourceFlavor", ClusterQueue: "ClusterQueue", LocalQueue: "LocalQueue"}


def queue_values(
    name: str, quota: Mapping[str, int], cohort: str = "", weight: float = 1.0, *, held: bool = False
) -> tuple[Value, ...]:
    """The objects that a queue in short form stands for: its flavors, its ClusterQueue, its LocalQueue."""
    groups, flavors = list[ResourceGroup](), list[Flavor]()
    types = [kind for kind in quota if kind != ALL_TYPES]
    if types:
        flavors += [flavor_of_type(kind) for kind in types]
        limits = [FlavorQuota(flavor_of_type(kind).name, _gpus(quota[kind])) for kind in types]
        rest = FlavorQuota(OTHER_TYPES.name, _no_limit(cohort))
        groups.append(ResourceGroup((GPU,), (*limits, rest)))
        flavors.append(OTHER_TYPES)
    if ALL_TYPES in quota or not types:
        flavors.append(ANY)
        total = _gpus(quota[ALL_TYPES]) if ALL_TYPES in quota else _no_limit(cohort)
        groups.append(ResourceGroup((ALL_GPUS,), (FlavorQuota(ANY.name, total),)))
    stop = StopPolicy.HOLD if held else StopPolicy.NONE
    queue = ClusterQueue(name, cohort, tuple(groups), preemption=_RULES, weight=weight, stop=stop)
    return (*flavors, queue, LocalQueue(name, name))


def _no_limit(cohort: str) -> tuple[Limits, ...]:
    """More than there is. It is not lent: who has a limit keeps it, whoever else is in its cohort."""
    return (Limits(MOST_GPUS * MILLI, lending=0 if cohort else None),)


def queue_change(
    name: str, quota: Mapping[str, int], cohort: str = "", weight: float = 1.0, *, held: bool = False
) -> QuotaChange:
    """A queue in short form as a change of the quota that there is."""
    values = queue_values(name, quota, cohort, weight, held=held)
    return QuotaChange(tuple(_written(value, Problem("")) for value in values))


def flavor_of_type(gpu_type: str) -> Flavor:
    """The nodes with GPUs of one type. Kubernetes wants lower-case names; the label keeps the type's own."""
    return Flavor(re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-"), ((TYPE_LABEL, gpu_type),))


def is_short_form(root: YamlNode) -> bool:
    """Whether a document is a list of queues and not an object."""
    if not isinstance(root, yaml.MappingNode):
        return False
    keys = {key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)}
    return "queues" in keys and not keys & {"apiVersion", "kind"}


def read_short_form(reader: ObjectReader, root: YamlNode) -> Iterator[Written]:
    """The objects of all queues of a document; what is wrong is noted."""
    top = reader.mapping(root, "the file", ("queues",)) or {}
    for node in reader.sequence(top["queues"], "queues") if "queues" in top else ():
        before, place = len(reader.problems), place_of(reader, node)
        values = _read_queue(reader, node)
        if len(reader.problems) == before:
            yield from (_written(value, place) for value in values)


def _read_queue(reader: ObjectReader, node: YamlNode) -> tuple[Value, ...]:
    values = reader.mapping(node, "a queue", _KEYS)
    if values is None:
        return ()
    if "name" not in values:
        reader.fault(node, "a queue needs a name")
        return ()
    name = reader.text(values["name"], "name") or ""
    if name and not _NAME.fullmatch(name):
        reader.fault(values["name"], f"a queue cannot have the name {name!r}", _NAME_FIX)
    cohort = (reader.text(values["cohort"], "cohort") or "") if "cohort" in values else ""
    weight = reader.number(values["weight"], "weight", 0, 1e6) if "weight" in values else 1.0
    if weight == 0:
        reader.fault(values["weight"], "weight must be larger than 0")
    quota = _read_quota(reader, values.get("quota"))
    return queue_values(name, quota, cohort, weight or 1.0, held=_held(reader, values))


def _read_quota(reader: ObjectReader, node: YamlNode | None) -> dict[str, int]:
    if node is None:
        return {}
    found: dict[str, int] = {}
    names: dict[str, str] = {}
    for kind, value in (reader.mapping(node, "quota") or {}).items():
        count = reader.whole(value, f"quota.{kind}", 0, MOST_GPUS)
        flavor = flavor_of_type(kind).name
        if kind != ALL_TYPES and not flavor:
            reader.fault(value, f"quota: {kind!r} is not the name of a GPU type", "as in H100")
        elif kind != ALL_TYPES and names.setdefault(flavor, kind) != kind:
            reader.fault(value, f"quota: {names[flavor]} and {kind} are the same type", "keep one of them")
        elif count is not None:
            found[kind] = count
    return found


def _held(reader: ObjectReader, values: dict[str, YamlNode]) -> bool:
    if "held" not in values:
        return False
    text = (reader.text(values["held"], "held") or "").lower()
    if text and text not in _TRUTH:
        reader.fault(values["held"], f"held must be true or false, found {text!r}")
    return _TRUTH.get(text, False)


def _written(value: Value, place: Problem) -> Written:
    return Written(key_of(_KIND_OF[type(value)], value), value, place)


def _gpus(count: int) -> tuple[Limits]:
    return (Limits(count * MILLI),)
