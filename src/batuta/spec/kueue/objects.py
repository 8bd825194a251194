"""Finds the Kueue objects of a document and reads each, with Batuta's own annotations on queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from batuta.core.quota import ClusterQueue, Cohort, Flavor, IdleAction, IdleWish, LocalQueue, PriorityClass
from batuta.spec.kueue import kinds
from batuta.spec.kueue.object_reader import Item, ObjectReader, Section, read_text_value
from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.quantity import parse_duration_s
from batuta.spec.yaml_reader import ObjectMark, YamlNode, scalar_at

IDLE_ACTION_ANNOTATION = "batuta.dev/idle-action"
IDLE_AFTER_ANNOTATION = "batuta.dev/idle-after"
_MOST_ANNOTATIONS = 1000
TRIAL_ANNOTATION = "batuta.dev/trial"
MAX_PRIORITY_ANNOTATION = "batuta.dev/max-priority"
MOST_PRIORITY = 2_000_000_000  # what Kubernetes lets a PriorityClass have, up or down
_WORDS = {"true": True, "false": False}
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
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "ownerReferences"),
    *("managedFields", "selfLink"),
)
_T = TypeVar("_T")
QuotaObject: TypeAlias = Flavor | ClusterQueue | LocalQueue | Cohort | PriorityClass


def read_annotations(metadata: Section) -> dict[str, Any]:
    """Return the fields of a queue that Batuta's annotations set; None in each where one is absent or wrong."""
    actions = {one.value: one for one in IdleAction}
    action = _annotation(metadata, IDLE_ACTION_ANNOTATION, actions.get, f"one of {', '.join(actions)}")
    return {
        "idle": IdleWish(action, _idle_after_s(metadata)),
        "trial": _annotation(metadata, TRIAL_ANNOTATION, _WORDS.get, '"true" or "false"'),
        "max_priority": _annotation(metadata, MAX_PRIORITY_ANNOTATION, _parse_priority, 'a whole number, as in "100"'),
    }


def queue_annotations(queue: ClusterQueue | LocalQueue) -> dict[str, str]:
    """Return the annotations that `read_annotations` reads as the same fields."""
    values = {
        IDLE_ACTION_ANNOTATION: queue.idle.action and queue.idle.action.value,
        IDLE_AFTER_ANNOTATION: None if queue.idle.after_s is None else f"{queue.idle.after_s:g}s",
        TRIAL_ANNOTATION: None if queue.trial is None else str(queue.trial).lower(),
        MAX_PRIORITY_ANNOTATION: None if queue.max_priority is None else str(queue.max_priority),
    }
    return {name: value for name, value in values.items() if value is not None}


def _annotation(metadata: Section, name: str, parse: Callable[[str], _T | None], fix: str) -> _T | None:
    for key, item in metadata.entries("annotations", _MOST_ANNOTATIONS):
        if key == name:
            word = read_text_value(metadata.reader, item)
            found = parse(word)
            if found is None:
                metadata.reader.fault(item.node, f"{name} cannot be {word[:60]!r}", fix)
            return found
    return None


def _parse_priority(text: str) -> int | None:
    is_sound = re.fullmatch(r"[-+]?[0-9]{1,10}", text) and abs(int(text)) <= MOST_PRIORITY
    return int(text) if is_sound else None


def _idle_after_s(metadata: Section) -> float | None:
    text = _annotation(metadata, IDLE_AFTER_ANNOTATION, str, "")
    if text is None:
        return None
    try:
        found = parse_duration_s(text, IDLE_AFTER_ANNOTATION)
    except InputError as error:
        metadata.fault("annotations", error.problems[0].message, "as in 15m")
        return None
    if not found > 0:
        metadata.fault("annotations", f"{IDLE_AFTER_ANNOTATION} must be more than 0", "as in 15m")
        return None
    return found


class ObjectKey(NamedTuple):
    """What an object is known by. Only local queues have a namespace."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Manifest(NamedTuple):
    """An object of a file and its position."""

    key: ObjectKey
    value: QuotaObject
    place: Problem  # a problem without a message: only the position


def each_object(reader: ObjectReader, root: YamlNode, path: str = "") -> Iterator[Item]:
    """The objects of a document: itself, or the items of a `kind: List`."""
    kind = scalar_at(root, "kind")
    if kind is None or kind not in _LISTS:
        yield Item(root, path)
        return
    top = Section(reader, root, path or kind, ("apiVersion", "kind", "metadata", "items"))
    for item in top.items("items", 100_000):
        yield from each_object(reader, item.node, item.path if path else "")


def read_object(reader: ObjectReader, item: Item) -> Manifest | bool | None:
    """An object of quota, or whether fair sharing is on, or None for what is neither or wrong."""
    before = len(reader.problems)
    kind, version = _kind(reader, item)
    if kind == CONFIGURATION:
        return _read_configuration(reader, item)
    if not kind:
        return None
    top = Section(reader, *item, _CLASS_TOP if kind == "WorkloadPriorityClass" else _TOP)
    metadata = top.section("metadata", _METADATA)
    name = metadata.name("name")
    if "name" not in metadata:
        (metadata if metadata.node is not None else top).fault("metadata", f"a {kind} needs metadata.name")
    namespace = metadata.name("namespace") if kind == "LocalQueue" else ""
    key = ObjectKey(kind, name, namespace)
    value = _read_value(top, key, version)
    if isinstance(value, ClusterQueue | LocalQueue):
        value = replace(value, **read_annotations(metadata))
    reader.notes += [f"{key}: {note}" for note in top.unused]
    return Manifest(key, value, position_of(reader, item.node)) if len(reader.problems) == before else None


def position_of(reader: ObjectReader, node: YamlNode) -> Problem:
    """Return the position of a node, as a problem without a message."""
    mark = node.start_mark
    if isinstance(mark, ObjectMark):
        return Problem("", reader.file)
    return Problem("", reader.file, mark.line + 1, mark.column + 1)


def _read_value(top: Section, key: ObjectKey, version: str) -> QuotaObject:
    match key.kind:
        case "ResourceFlavor":
            return kinds.read_flavor(top, key.name)
        case "ClusterQueue":
            return kinds.read_cluster_queue(top, key.name, version)
        case "LocalQueue":
            return kinds.read_local_queue(top, key.name, key.namespace)
        case "Cohort":
            return kinds.read_cohort(top, key.name, version)
    return kinds.read_priority_class(top, key.name)


def _read_configuration(reader: ObjectReader, item: Item) -> bool:
    known = reader.mapping(item.node, CONFIGURATION) or {}
    others = [key for key in known if key not in ("apiVersion", "kind", "metadata", "fairSharing")]
    if others:
        reader.notes.append(f"{CONFIGURATION}: only fairSharing is read, not {', '.join(others)}")
    return kinds.read_fair_sharing(Section(reader, *item, tuple(known)))


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
        name = scalar_at(values.get("metadata"), "name") or ""
        reader.notes.append(f"{kind} {name} is not used by Batuta: {_UNUSED_KINDS[kind]}")
    elif kind not in KINDS:
        reader.fault(values["kind"], f"unknown kind {kind[:60]}", did_you_mean(kind, KINDS))
    elif version in _VERSIONS or (kind, version) == ("Cohort", "v1alpha1"):
        return kind, version
    else:
        known = " or ".join(f"{GROUP}/{one}" for one in _VERSIONS)
        reader.fault(values["apiVersion"], f"version {version[:60]} of {kind} is not known", known)
    return "", ""
