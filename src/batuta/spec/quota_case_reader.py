"""Reads quota test cases from YAML or JSON: one, or a list of them. All problems come at once.

`docs/reference/quota-objects.md` describes the file: objects, then steps of one action and what is expected after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from batuta.core.cluster import Node
from batuta.core.quota import Quota
from batuta.spec import quota_case as qc
from batuta.spec.cluster import parse_cluster_string
from batuta.spec.kueue.change import QuotaChange, flavor_uses, merge, remove
from batuta.spec.kueue.files import is_short_form, read_short_form
from batuta.spec.kueue.kinds import MAX_INT32, read_tolerations
from batuta.spec.kueue.object_reader import (
    Item,
    ObjectReader,
    Section,
    check_resource,
    read_milli,
    read_text_value,
)
from batuta.spec.kueue.objects import KINDS, Manifest, ObjectKey, each_object, read_object
from batuta.spec.problem import InputError, Problem, did_you_mean, read_text, sorted_problems
from batuta.spec.yaml_reader import YamlNode, is_null

_ACTIONS = ("submit", "finish", "delete", "patchWorkload", "update", "create", "deleteObject")
_SHAPE = ("count", "requests", "minCount", "nodeSelector", "tolerations")
_SUBMIT = ("name", "queue", "namespace", "priority", "active", "podSets", *_SHAPE)
MOST_PODS = 10_000_000
MOST_RESOURCES = 64
MOST_STEPS, MOST_OBJECTS = 100_000, 100_000
MOST_FILES = 256
_CASE = ("name", "config", "cluster", "files", "objects", "steps", "note")
_STEP = ("do", "admitted", "preempted", "pending")
_EVICTION = ("workload", "reason", "preemption", "by", "message")


class CaseState:
    """The objects as written at one step of a case, their quota, and the workloads. A bad object changes nothing."""

    def __init__(self, reader: ObjectReader, *, fair: bool) -> None:
        self._reader = reader
        self._nodes: dict[ObjectKey, YamlNode] = {}
        self._elsewhere: set[ObjectKey] = set()
        """Objects of other files: the positions of their nodes do not belong to this file."""
        self.quota = Quota(fair_sharing=fair)
        self._is_active: dict[str, bool] = {}  # by workload; a finished one can still be deleted

    def create_from(self, path: Path) -> None:
        """Add the objects of another file. Raises InputError with its problems."""
        own, known = self._reader, set(self._nodes)
        self._reader = ObjectReader(str(path))
        try:
            for root in self._reader.compose_sound(read_text(path)):
                self.create(Item(root, ""))
            own.notes += self._reader.notes
            if self._reader.problems:
                raise InputError(self._reader.problems)
        finally:
            self._reader = own
            self._elsewhere |= set(self._nodes) - known

    def create(self, item: Item) -> ObjectKey | None:
        """Add an object, a list of them, or queues in short form; return the key of the last one."""
        if is_short_form(item.node):
            written = tuple(read_short_form(self._reader, item.node))
            self._merge(item.node, QuotaChange(written))
            return written[-1].key if written else None
        key = None
        for one in each_object(self._reader, item.node):
            found = read_object(self._reader, one)
            if isinstance(found, bool):
                self.quota = replace(self.quota, fair_sharing=found)
            elif found is not None:
                key = found.key
                self._create(one.node, found)
        return key

    def _create(self, node: YamlNode, found: Manifest) -> None:
        if found.key in self._nodes:
            self._reader.fault(node, f"{found.key} is there already", "update it, or delete it first")
        else:
            self._merge(node, QuotaChange((found,)))
            self._nodes[found.key] = node

    def update(self, node: YamlNode, kind: str, name: str, patch: YamlNode) -> ObjectKey | None:
        """Merge a patch into the `spec` of an object as written, and read it again."""
        key = self._find(node, kind, name)
        if key is None:
            return None
        place = (patch.start_mark, patch.end_mark)
        spec = yaml.ScalarNode("tag:yaml.org,2002:str", "spec", *place)
        changed = merge_patch(self._nodes[key], yaml.MappingNode("tag:yaml.org,2002:map", [(spec, patch)], *place))
        reader = ObjectReader(self._reader.file)
        found = read_object(reader, Item(changed, ""))
        self._reader.notes += reader.notes
        if key not in self._elsewhere:
            self._reader.problems += reader.problems
        else:
            self._reader.adopt(node, reader.problems)
        if isinstance(found, Manifest):
            self._merge(node, QuotaChange((found,)))
            self._nodes[key] = changed
        return key

    def delete(self, node: YamlNode, kind: str, name: str) -> ObjectKey | None:
        key = self._find(node, kind, name)
        if key is None:
            return None
        del self._nodes[key]
        # A flavor stays while a queue or cohort names it, as with the API server.
        if kind != "ResourceFlavor" or name not in {flavor for _, flavor in flavor_uses(self.quota)}:
            self.quota = remove(self.quota, [key])
        return key

    def _find(self, node: YamlNode, kind: str, name: str) -> ObjectKey | None:
        """Return the key of an object; `namespace/name` where the name alone is ambiguous."""
        if kind not in KINDS:
            self._reader.fault(node, f"unknown kind {kind[:60]}", did_you_mean(kind, KINDS))
            return None
        space, _, short = name.rpartition("/")
        found = [key for key in self._nodes if (key.kind, key.name) == (kind, short) and space in ("", key.namespace)]
        if len(found) == 1:
            return found[0]
        if found:
            self._reader.fault(node, f"{kind} {name} could be {' or '.join(map(str, found))}", "namespace/name")
        else:
            known = [key.name for key in self._nodes if key.kind == kind]
            self._reader.fault(node, f"there is no {kind} {name}", did_you_mean(name, known) if known else "")
        return None

    def _merge(self, node: YamlNode, change: QuotaChange) -> None:
        try:
            self.quota = merge(self.quota, change)
        except InputError as error:
            self._reader.adopt(node, error.problems)

    def new_workload(self, part: Section, key: str) -> str:
        name = part.text(key)
        if self._is_active.get(name):
            part.fault(key, f"there is a workload {name} already", "another name, or delete it first")
        self._is_active[name] = True
        return name

    def workload(self, part: Section, key: str) -> str:
        """Return the name of a workload that was submitted before."""
        name = part.text(key)
        if name not in self._is_active:
            fix = did_you_mean(name, list(self._is_active)) if self._is_active else ""
            part.fault(key, f"there is no workload {name}", fix)
        return name

    def finish_workload(self, part: Section, key: str) -> str:
        name = self.workload(part, key)
        self._is_active[name] = False
        return name

    def delete_workload(self, part: Section, key: str) -> str:
        name = self.workload(part, key)
        self._is_active.pop(name, None)
        return name


def merge_patch(node: YamlNode | None, patch: YamlNode) -> YamlNode:
    """Apply a JSON merge patch (RFC 7396) to nodes: merge mappings, remove null, replace all else."""
    if not isinstance(patch, yaml.MappingNode):
        return patch
    pairs = list(node.value) if isinstance(node, yaml.MappingNode) else []
    for key, value in patch.value:
        place = next((k for k, (own, _) in enumerate(pairs) if own.value == key.value), None)
        old = None if place is None else pairs[place][1]
        if is_null(value):
            pairs = [pair for pair in pairs if pair[0].value != key.value]
        elif place is None:
            pairs.append((key, merge_patch(old, value)))
        else:
            pairs[place] = (key, merge_patch(old, value))
    base = node if isinstance(node, yaml.MappingNode) else patch
    return yaml.MappingNode(base.tag, pairs, base.start_mark, base.end_mark)


def read_action(step: Section, state: CaseState) -> qc.Action | None:
    """Return the action of a step; None, with a problem, when there is not exactly one."""
    before = len(step.reader.problems)
    do = step.section("do", _ACTIONS)
    found = [action for action in _ACTIONS if action in do]
    if len(found) != 1:
        if len(step.reader.problems) == before:
            step.fault("do", f"{do.path} has {len(found)} things to do", f"one of {', '.join(_ACTIONS)}")
        return None
    action = found[0]
    match action:
        case "submit":
            return _submit(do.section(action, _SUBMIT), state)
        case "finish":
            return qc.Finish(state.finish_workload(do, action))
        case "delete":
            return qc.Delete(state.delete_workload(do, action))
        case "patchWorkload":
            return _patch(do.section(action, ("name", "spec")), state)
    return _change(do, action, state)


def _change(do: Section, action: str, state: CaseState) -> qc.ChangeQuota | None:
    node = do.value(action)
    if node is None:
        return None
    if action == "create":
        key = state.create(Item(node, do.at(action)))
    else:
        part = do.section(action, ("kind", "name", "namespace", *(("spec",) if action == "update" else ())))
        kind, name = part.text("kind"), part.text("name")
        name = f"{part.text('namespace')}/{name}" if "namespace" in part else name
        patch = part.value("spec")
        if not kind or not name or (action == "update" and patch is None):
            part.fault("", f"{part.path} needs kind, name{' and spec' if action == 'update' else ''}")
            return None
        key = state.delete(node, kind, name) if patch is None else state.update(node, kind, name, patch)
    return None if key is None else qc.ChangeQuota(action, key.kind, key.name, state.quota)


def _submit(part: Section, state: CaseState) -> qc.Submit:
    for key in ("name", "queue"):
        part.require(key)
    if "podSets" in part and any(key in part for key in _SHAPE):
        part.fault("podSets", f"{part.path} has podSets and {' and '.join(k for k in _SHAPE if k in part)}")
    sets = tuple(_pod_set(one, one.text("name")) for one in part.sections("podSets", 64, ("name", *_SHAPE)))
    name, queue = state.new_workload(part, "name"), part.text("queue")
    sets = sets or (_pod_set(part, "main"),)
    priority, active = _priority(part, state.quota) or 0, part.flag("active", default=True)
    return qc.Submit(name, queue, sets, priority, active, part.text("namespace"))


def _pod_set(part: Section, name: str) -> qc.PodSet:
    count = part.whole("count", 0, MOST_PODS)
    requests = []
    for resource, item in part.entries("requests", MOST_RESOURCES):
        check_resource(part.reader, item, resource)
        requests.append((resource, read_milli(part.reader, item) or 0))
    least, selector = part.whole("minCount", 0, MOST_PODS), part.labels("nodeSelector")
    tolerations = read_tolerations(part, "tolerations")
    return qc.PodSet(name or "main", 1 if count is None else count, tuple(requests), least, selector, tolerations)


def _patch(part: Section, state: CaseState) -> qc.PatchWorkload:
    if "name" not in part or "spec" not in part:
        part.fault("name", f"{part.path} needs name and spec")
    spec = part.section("spec", ("active", "priority", "queueName"))
    name, priority = state.workload(part, "name"), _priority(spec, state.quota)
    active = spec.flag("active", default=True) if "active" in spec else None
    return qc.PatchWorkload(name, active, priority, spec.text("queueName") if "queueName" in spec else None)


def _priority(part: Section, quota: Quota) -> int | None:
    """Return a number, also for the name of a class that exists by now."""
    if "priority" not in part:
        return None
    classes = {one.name: one.value for one in quota.priority_classes}
    node = part.value("priority")
    if isinstance(node, yaml.ScalarNode) and node.value in classes:
        return classes[node.value]
    before = len(part.reader.problems)
    found = part.whole("priority", -MAX_INT32 - 1, MAX_INT32)
    if classes and len(part.reader.problems) > before:
        part.reader.problems[-1] = replace(part.reader.problems[-1], fix=f"or one of {', '.join(classes)}")
    return found


def parse_valid_cases(text: str, file: str = "cases.yaml") -> tuple[tuple[qc.QuotaCase, ...], list[Problem]]:
    """Return the valid cases, and the problems of the others in file order."""
    reader = ObjectReader(file)
    read = [_read_case(reader, item) for item in _each_case(reader, text)]
    return tuple(case for case in read if case is not None), sorted_problems(reader.problems)


def _each_case(reader: ObjectReader, text: str) -> Iterator[Item]:
    for root in reader.compose_sound(text):
        if isinstance(root, yaml.SequenceNode):
            yield from (Item(node, f"case {number}") for number, node in enumerate(root.value, start=1))
        else:
            yield Item(root, "case 1")


def _read_case(reader: ObjectReader, item: Item) -> qc.QuotaCase | None:
    before, noted = len(reader.problems), len(reader.notes)
    top = _open(reader, item, _CASE)
    if top is None:
        return None
    state = CaseState(reader, fair=top.word("config", ("base", "fair"), "base") == "fair")
    for one in top.items("files", MOST_FILES):
        try:
            state.create_from(Path(reader.file).parent / read_text_value(reader, one))
        except InputError as error:
            reader.problems += error.problems
    for one in top.items("objects", MOST_OBJECTS):
        state.create(one)
    nodes: tuple[Node, ...] = ()
    if (cluster := top.value("cluster")) is not None:
        try:
            nodes = parse_cluster_string(top.text("cluster"))
        except InputError as error:
            reader.adopt(cluster, error.problems)
    if not ("objects" in top or "files" in top) or "steps" not in top:
        top.fault("", f"{item.path} needs steps, and objects or files")
    begin = state.quota
    steps = [_read_step(reader, one, state) for one in top.items("steps", MOST_STEPS)]
    if len(reader.problems) > before:
        return None
    name, sound = top.text("name") or item.path, tuple(step for step in steps if step is not None)
    return qc.QuotaCase(name, begin, sound, top.text("note"), tuple(dict.fromkeys(reader.notes[noted:])), nodes)


def _read_step(reader: ObjectReader, item: Item, state: CaseState) -> qc.Step | None:
    step = _open(reader, item, _STEP)
    if step is None:
        return None
    if "do" not in step:
        step.fault("do", f"{item.path} does nothing", "as in do: {finish: w1}")
        return None
    action = read_action(step, state)
    expected = qc.Expected(_admitted(step), _preempted(step), _pending(step))
    return None if action is None else qc.Step(action, expected)


def _open(reader: ObjectReader, item: Item, known: tuple[str, ...]) -> Section | None:
    """Return a mapping that may have other keys: recorded cases have some of their own."""
    found = reader.mapping(item.node, item.path)
    if found is None:
        return None
    return Section(reader, *item, known, dict.fromkeys(set(found) - set(known), ""))


def _admitted(step: Section) -> Mapping[str, Mapping[str, str] | None] | None:
    """Return flavors by resource for each workload; the file may only list workloads."""
    if "admitted" not in step:
        return None
    names = _names(step, "admitted")
    if names is not None:
        return dict.fromkeys(names)
    found: dict[str, Mapping[str, str] | None] = {}
    for name, item in step.entries("admitted", MOST_STEPS):
        if is_null(item.node):
            found[name] = None
            continue
        flavors = step.reader.mapping(item.node, item.path) or {}
        found[name] = {
            resource: read_text_value(step.reader, Item(node, f"{item.path}.{resource}"))
            for resource, node in flavors.items()
        }
    return found


def _preempted(step: Section) -> tuple[qc.Eviction, ...] | None:
    if "preempted" not in step:
        return None
    found = []
    for item in step.items("preempted", MOST_STEPS):
        if isinstance(item.node, yaml.ScalarNode):
            found.append(qc.Eviction(read_text_value(step.reader, item)))
            continue
        one = Section(step.reader, *item, _EVICTION)
        one.require("workload", fix="the workload that lost its quota")
        found.append(qc.Eviction(*(one.text(key) for key in ("workload", "reason", "preemption", "by"))))
    return tuple(found)


def _pending(step: Section) -> Mapping[str, qc.PendingReason] | None:
    if "pending" not in step:
        return None
    names = _names(step, "pending")
    if names is not None:
        return dict.fromkeys(names, qc.PendingReason())
    found = {}
    for name, item in step.entries("pending", MOST_STEPS):
        one = None if is_null(item.node) else _open(step.reader, item, ("reason", "message"))
        found[name] = qc.PendingReason() if one is None else qc.PendingReason(one.text("reason"), one.text("message"))
    return found


def _names(step: Section, key: str) -> list[str] | None:
    """Return the workloads of a list; None when it is not a list."""
    if not isinstance(step.value(key), yaml.SequenceNode):
        return None
    return [read_text_value(step.reader, item) for item in step.items(key, MOST_STEPS)]
