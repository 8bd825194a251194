"""Which object a document is, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import yaml

from batuta.core.quota import ClusterQueue, Cohort, Flavor, LocalQueue, PriorityClass
from batuta.spec.kueue.cluster_queue import read_cluster_queue
from batuta.spec.kueue.idle_annotations import read_idle
from batuta.spec.kueue.part import Item, ObjectReader, Part, part_of
from batuta.spec.kueue.resource_flavor import read_flavor
from batuta.spec.kueue.small_kinds import (
    read_cohort,
    read_fair_sharing,
    read_local_queue,
    read_priority_class,
)
from batuta.spec.kueue.trial_annotation import read_trial_wish
from batuta.spec.problem import Problem, did_you_mean
from batuta.spec.yaml_nodes import YamlNode

GROUP, CONFIG_GROUP = "kueue.x-k8s.io", "config.kueue.x-k8s.io"
KINDS = ("ResourceFlavor", "ClusterQueue", "LocalQueue", "Cohort", "WorkloadPriorityClass")
CONFIGURATION = "Configuration"
_LISTS = ("List", *(f"{kind}List" for kind in KINDS))
_VERSIONS = ("v1beta1", "v1beta2")
_UNUSED_KINDS = {
    "AdmissionCheck": "jobs start without waiting for it",
    "Topology": "where replicas stand close together is said by each task (gpu.topology)",
    "ProvisioningRequestConfig": "nodes are not asked for",
    "MultiKueueConfig": "jobs stay on this cluster",
    "MultiKueueCluster": "jobs stay on this cluster",
    "Workload": "a job is submitted as a task",
}
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_CLASS_TOP = ("apiVersion", "kind", "metadata", "value", "description")
_METADATA = (
    *("name", "namespace", "labels", "annotations", "generateName", "uid", "resourceVersion", "generation"),
    *(
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "finalizers",
        "ownerReferences",
    ),
    *("managedFields", "selfLink"),
)

Value: TypeAlias = Flavor | ClusterQueue | LocalQueue | Cohort | PriorityClass


class Key(NamedTuple):
    """What an object is known by. Only local queues have a namespace."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Written(NamedTuple):
    """An object as somebody wrote it, and where."""

    key: Key
    value: Value
    place: Problem
    """Without a message: only where it stands."""


def each_object(reader: ObjectReader, root: YamlNode, path: str = "") -> Iterator[Item]:
    """The objects of a document: itself, or the items of a `kind: List`."""
    kind = _scalar(root, "kind")
    if kind is None or kind not in _LISTS:
        yield Item(root, path)
        return
    top = Part(reader, root, path or kind, ("apiVersion", "kind", "metadata", "items"), {})
    for item in top.items("items", 100_000):
        yield from each_object(reader, item.node, item.path if path else "")


def read_object(reader: ObjectReader, item: Item) -> Written | bool | None:
    """An object of quota, or whether fair sharing is on, or None for what is neither or wrong."""
    before = len(reader.problems)
    kind, version = _kind(reader, item)
    if kind == CONFIGURATION:
        return _read_configuration(reader, item)
    if not kind:
        return None
    top = part_of(reader, item, _CLASS_TOP if kind == "WorkloadPriorityClass" else _TOP)
    metadata = top.part("metadata", _METADATA)
    name = metadata.name("name")
    if "name" not in metadata:
        (metadata if metadata.node is not None else top).fault("metadata", f"a {kind} needs metadata.name")
    namespace = metadata.name("namespace") if kind == "LocalQueue" else ""
    key = Key(kind, name, namespace)
    value = _read_value(top, key, version)
    if isinstance(value, ClusterQueue | LocalQueue):
        value = replace(value, idle=read_idle(metadata), trial=read_trial_wish(metadata))
    reader.notes += [f"{key}: {note}" for note in top.unused]
    return Written(key, value, place_of(reader, item.node)) if len(reader.problems) == before else None


def place_of(reader: ObjectReader, node: YamlNode) -> Problem:
    """Where a node stands."""
    mark = node.start_mark
    line = getattr(mark, "line", None)
    return Problem("", reader.file) if line is None else Problem("", reader.file, line + 1, mark.column + 1)


def _read_value(top: Part, key: Key, version: str) -> Value:
    match key.kind:
        case "ResourceFlavor":
            return read_flavor(top, key.name)
        case "ClusterQueue":
            return read_cluster_queue(top, key.name, version)
        case "LocalQueue":
            return read_local_queue(top, key.name, key.namespace)
        case "Cohort":
            return read_cohort(top, key.name, version)
    return read_priority_class(top, key.name)


def _read_configuration(reader: ObjectReader, item: Item) -> bool:
    known = reader.mapping(item.node, CONFIGURATION) or {}
    others = [key for key in known if key not in ("apiVersion", "kind", "metadata", "fairSharing")]
    if others:
        reader.notes.append(f"{CONFIGURATION}: only fairSharing is read, not {', '.join(others)}")
    return read_fair_sharing(Part(reader, item.node, item.path, tuple(known), {}))


def _kind(reader: ObjectReader, item: Item) -> tuple[str, str]:
    """Kind and version of an object of ours; two empty words for others, which are noted or at fault."""
    node = item.node
    values = reader.mapping(node, item.path or "an object")
    if values is None:
        return "", ""
    missing = [key for key in ("apiVersion", "kind") if key not in values]
    if missing:
        example = f"apiVersion: {GROUP}/v1beta2 and kind: ClusterQueue"
        reader.fault(node, f"an object needs {' and '.join(missing)}", f"as in {example}")
        return "", ""
    kind = reader.text(values["kind"], "kind") or ""
    group, _, version = (reader.text(values["apiVersion"], "apiVersion") or "").rpartition("/")
    if (group, kind) == (CONFIG_GROUP, CONFIGURATION):
        return kind, version
    if group != GROUP and kind not in KINDS:
        reader.notes.append(f"{kind} is not about quota: it is left out")
        return "", ""
    if group != GROUP:
        reader.fault(values["apiVersion"], f"apiVersion of a {kind} cannot be that", f"{GROUP}/v1beta2")
    elif kind in _UNUSED_KINDS:
        name = _scalar(values.get("metadata"), "name") or ""
        reader.notes.append(f"{kind} {name} is not used by Batuta: {_UNUSED_KINDS[kind]}")
    elif kind not in KINDS:
        reader.fault(values["kind"], f"unknown kind {kind[:60]}", did_you_mean(kind, KINDS))
    elif version in _VERSIONS or (kind, version) == ("Cohort", "v1alpha1"):
        return kind, version
    else:
        known = " or ".join(f"{GROUP}/{one}" for one in _VERSIONS)
        reader.fault(values["apiVersion"], f"version {version[:60]} of {kind} is not known", known)
    return "", ""


def _scalar(node: YamlNode | None, key: str) -> str | None:
    """A value of a mapping, without any check."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key and isinstance(value, yaml.ScalarNode):
                return str(value.value)
    return None
