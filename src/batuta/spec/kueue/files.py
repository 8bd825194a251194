"""Read quota from files, texts or plain objects: Kueue's objects or the short form (how-to/share-by-quota.md).

Each queue of the short form becomes a ClusterQueue and a LocalQueue of its name, and each GPU type a flavor. A type
that is not named has no limit: it belongs to the flavor `other-types`. The limit on all types is its own resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from batuta.core import quota as model
from batuta.core.node_table import TYPE_LABEL
from batuta.spec.kueue.change import QuotaChange, key_of
from batuta.spec.kueue.object_reader import ObjectReader
from batuta.spec.kueue.objects import (
    MOST_PRIORITY,
    Manifest,
    ObjectKey,
    QuotaObject,
    each_object,
    position_of,
    read_object,
)
from batuta.spec.problem import InputError, Problem, read_text, sorted_problems
from batuta.spec.yaml_reader import YamlNode, object_node

GPU = "nvidia.com/gpu"
ALL_TYPES = "*"
ANY = model.Flavor("any")
OTHER_TYPES = model.Flavor("other-types", ((TYPE_LABEL, ALL_TYPES),))
"""The nodes of every type that no other flavor of the queue names."""
MOST_GPUS = model.NO_LIMIT // model.MILLI
_KEYS = ("name", "quota", "cohort", "weight", "held", "max_priority")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NAME_FIX = "letters, digits, dots, dashes and underscores"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_RULES = model.Preemption(model.Within.LOWER_PRIORITY, model.Reclaim.ANY)
NOWHERE = Problem("")  # the place of an object that no file has
_KIND_OF = {model.Flavor: "ResourceFlavor", model.ClusterQueue: "ClusterQueue", model.LocalQueue: "LocalQueue"}


def queue_change(
    name: str,
    quota: Mapping[str, int],
    cohort: str = "",
    weight: float = 1.0,
    *,
    held: bool = False,
    max_priority: int | None = None,
    place: Problem = NOWHERE,
) -> QuotaChange:
    """A queue in short form as the objects that it stands for: its flavors, its ClusterQueue, its LocalQueue."""
    groups, flavors = list[model.ResourceGroup](), list[model.Flavor]()
    types = [kind for kind in quota if kind != ALL_TYPES]
    # More than there is. It is not lent: a queue with a limit keeps it, whatever else is in its cohort.
    no_limit = (model.Limits(model.NO_LIMIT, lending=0 if cohort else None),)
    if types:
        flavors += [*map(flavor_of_type, types), OTHER_TYPES]
        limits = [
            model.FlavorQuota(flavor_of_type(kind).name, (model.Limits(quota[kind] * model.MILLI),)) for kind in types
        ]
        groups.append(model.ResourceGroup((GPU,), (*limits, model.FlavorQuota(OTHER_TYPES.name, no_limit))))
    if ALL_TYPES in quota or not types:
        flavors.append(ANY)
        total = (model.Limits(quota[ALL_TYPES] * model.MILLI),) if ALL_TYPES in quota else no_limit
        groups.append(model.ResourceGroup((model.ALL_GPUS,), (model.FlavorQuota(ANY.name, total),)))
    stop = model.StopPolicy.HOLD if held else model.StopPolicy.NONE
    queue = model.ClusterQueue(
        name, cohort, tuple(groups), preemption=_RULES, weight=weight, stop=stop, max_priority=max_priority
    )
    values: tuple[QuotaObject, ...] = (*flavors, queue, model.LocalQueue(name, name))
    return QuotaChange(tuple(Manifest(key_of(_KIND_OF[type(value)], value), value, place) for value in values))


def flavor_of_type(gpu_type: str) -> model.Flavor:
    """The nodes with GPUs of one type. Kubernetes wants lower-case names; the label keeps the type's own."""
    return model.Flavor(re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-"), ((TYPE_LABEL, gpu_type),))


def is_short_form(root: YamlNode) -> bool:
    """Whether a document is a list of queues and not an object."""
    if not isinstance(root, yaml.MappingNode):
        return False
    keys = {key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)}
    return "queues" in keys and not keys & {"apiVersion", "kind"}


def read_short_form(reader: ObjectReader, root: YamlNode) -> Iterator[Manifest]:
    """The objects of all queues of a document; what is wrong is noted."""
    top = reader.mapping(root, "the file", ("queues",)) or {}
    for node in reader.sequence(top.get("queues"), "queues"):
        before = len(reader.problems)
        written = _read_queue(reader, node)
        if len(reader.problems) == before:
            yield from written


def _read_queue(reader: ObjectReader, node: YamlNode) -> tuple[Manifest, ...]:
    values = reader.mapping(node, "a queue", _KEYS)
    if values is None:
        return ()
    if "name" not in values:
        reader.fault(node, "a queue needs a name")
        return ()
    name = reader.text(values["name"], "name") or ""
    if name and not _NAME.fullmatch(name):
        reader.fault(values["name"], f"a queue cannot have the name {name!r}", _NAME_FIX)
    cohort = reader.text(values.get("cohort"), "cohort") or ""
    weight = reader.number(values.get("weight"), "weight", 0, 1e6)
    if weight == 0:
        reader.fault(values["weight"], "weight must be larger than 0")
    quota = _read_quota(reader, values.get("quota"))
    most = reader.whole(values.get("max_priority"), "max_priority", -MOST_PRIORITY, MOST_PRIORITY)
    held, place = _held(reader, values), position_of(reader, node)
    return queue_change(name, quota, cohort, weight or 1.0, held=held, max_priority=most, place=place).objects


def _read_quota(reader: ObjectReader, node: YamlNode | None) -> dict[str, int]:
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
    text = (reader.text(values.get("held"), "held") or "").lower()
    if text and text not in _TRUTH:
        reader.fault(values["held"], f"held must be true or false, found {text!r}")
    return _TRUTH.get(text, False)


def read_quota_files(paths: Sequence[Path]) -> QuotaChange:
    """What all these files say together. YAML or JSON, Kueue's objects or the short form."""
    texts, problems = list[tuple[str, str]](), list[Problem]()
    for path in paths:
        try:
            texts.append((str(path), read_text(path)))
        except InputError as error:
            problems += error.problems
    try:
        change = read_quota_texts(texts)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return change


def read_quota_texts(texts: Iterable[tuple[str, str]]) -> QuotaChange:
    """The same for texts, each with the name that its problems shall have."""
    collected = Collected()
    for file, text in texts:
        reader = ObjectReader(file)
        for root in reader.compose_sound(text):
            collected.add(reader, root)
        collected.close(reader)
    return collected.change()


def read_quota_objects(objects: Iterable[Any]) -> QuotaChange:
    """The same for plain values, as the API server sends them."""
    collected, reader = Collected(), ObjectReader("")
    for value in objects:
        try:
            collected.add(reader, object_node(value))
        except InputError as error:
            reader.problems += error.problems
    collected.close(reader)
    return collected.change()


class Collected:
    """Objects from one or more readers, each named once."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Manifest] = {}
        self._fair_sharing: bool | None = None
        self._problems: list[Problem] = []
        self._notes: list[str] = []

    def add(self, reader: ObjectReader, root: YamlNode) -> None:
        """Read a document: objects of Kueue, or queues in short form."""
        short = is_short_form(root)
        items = (read_object(reader, item) for item in each_object(reader, root))
        for found in read_short_form(reader, root) if short else items:
            if isinstance(found, bool):
                self._fair_sharing = found
            elif found is not None:
                self._add(found, short)

    def _add(self, one: Manifest, short: bool) -> None:
        earlier = self._objects.setdefault(one.key, one)
        # Flavors of the short form follow from the names of types: each queue may bring them along again.
        if earlier is one or (short and one.key.kind == "ResourceFlavor" and earlier.value == one.value):
            return
        first = str(earlier.place).removesuffix(": ")
        fix = f"the first is at {first}" if first else ""
        self._problems.append(replace(one.place, message=f"{one.key} appears twice", fix=fix))

    def close(self, reader: ObjectReader) -> None:
        self._problems += reader.problems
        self._notes += reader.notes

    def change(self) -> QuotaChange:
        if self._problems:
            raise InputError(sorted_problems(self._problems))
        return QuotaChange(tuple(self._objects.values()), self._fair_sharing, tuple(dict.fromkeys(self._notes)))
