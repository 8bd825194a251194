"""One thing that happens in a case about quota."""

from __future__ import annotations

from dataclasses import replace

import yaml

from batuta.core.quota import Quota
from batuta.spec.kueue.cluster_queue import HIGHEST
from batuta.spec.kueue.part import Item, Part, check_resource, read_milli
from batuta.spec.kueue.resource_flavor import read_tolerations
from batuta.spec.problem import did_you_mean
from batuta.spec.quota_case import Action, ChangeQuota, Delete, Finish, PatchWorkload, PodSet, Submit
from batuta.spec.quota_case_world import CaseQuota

_ACTIONS = ("submit", "finish", "delete", "patchWorkload", "update", "create", "deleteObject")
_SHAPE = ("count", "requests", "minCount", "nodeSelector", "tolerations")
_SUBMIT = ("name", "queue", "namespace", "priority", "active", "podSets", *_SHAPE)
MOST_PODS = 10_000_000
MOST_RESOURCES = 64


class Workloads:
    """The names of workloads at a point of a case. One that has finished can still be deleted."""

    def __init__(self) -> None:
        self._lives: dict[str, bool] = {}

    def enter(self, part: Part, key: str) -> str:
        """The name of a new one."""
        name = part.text(key)
        if self._lives.get(name):
            part.fault(key, f"there is a workload {name} already", "another name, or delete it first")
        self._lives[name] = True
        return name

    def find(self, part: Part, key: str) -> str:
        """The name of one that was submitted before."""
        name = part.text(key)
        if name not in self._lives:
            fix = did_you_mean(name, list(self._lives)) if self._lives else ""
            part.fault(key, f"there is no workload {name}", fix)
        return name

    def finish(self, part: Part, key: str) -> str:
        name = self.find(part, key)
        self._lives[name] = False
        return name

    def delete(self, part: Part, key: str) -> str:
        name = self.find(part, key)
        self._lives.pop(name, None)
        return name


def read_action(step: Part, quota: CaseQuota, workloads: Workloads) -> Action | None:
    """What a step does; None when that is not clear, which is noted."""
    before = len(step.reader.problems)
    do = step.part("do", _ACTIONS)
    found = [action for action in _ACTIONS if action in do]
    if len(found) != 1:
        if len(step.reader.problems) == before:
            step.fault("do", f"{do.path} has {len(found)} things to do", f"one of {', '.join(_ACTIONS)}")
        return None
    action = found[0]
    match action:
        case "submit":
            return _submit(do.part(action, _SUBMIT), quota.quota, workloads)
        case "finish":
            return Finish(workloads.finish(do, action))
        case "delete":
            return Delete(workloads.delete(do, action))
        case "patchWorkload":
            return _patch(do.part(action, ("name", "spec")), quota.quota, workloads)
    return _change(do, action, quota)


def _change(do: Part, action: str, quota: CaseQuota) -> ChangeQuota | None:
    node = do.value(action)
    if node is None:
        return None
    if action == "create":
        key = quota.create(Item(node, do.at(action)))
    else:
        part = do.part(action, ("kind", "name", "namespace", *(("spec",) if action == "update" else ())))
        kind, name = part.text("kind"), part.text("name")
        name = f"{part.text('namespace')}/{name}" if "namespace" in part else name
        patch = part.value("spec")
        if not kind or not name or (action == "update" and patch is None):
            part.fault("", f"{part.path} needs kind, name{' and spec' if action == 'update' else ''}")
            return None
        key = quota.delete(node, kind, name) if patch is None else quota.update(node, kind, name, patch)
    return None if key is None else ChangeQuota(action, key.kind, key.name, quota.quota)


def _submit(part: Part, quota: Quota, workloads: Workloads) -> Submit:
    for key in ("name", "queue"):
        if key not in part:
            part.fault(key, f"{part.path} needs {key}")
    if "podSets" in part and any(key in part for key in _SHAPE):
        part.fault("podSets", f"{part.path} has podSets and {' and '.join(k for k in _SHAPE if k in part)}")
    sets = tuple(_pod_set(one, one.text("name")) for one in part.parts("podSets", 64, ("name", *_SHAPE)))
    return Submit(
        workloads.enter(part, "name"),
        part.text("queue"),
        sets or (_pod_set(part, "main"),),
        _priority(part, quota) or 0,
        part.flag("active", default=True),
        part.text("namespace"),
    )


def _pod_set(part: Part, name: str) -> PodSet:
    count = part.whole("count", 0, MOST_PODS)
    requests = []
    for resource, item in part.entries("requests", MOST_RESOURCES):
        check_resource(part.reader, item, resource)
        requests.append((resource, read_milli(part.reader, item) or 0))
    return PodSet(
        name or "main",
        1 if count is None else count,
        tuple(requests),
        part.whole("minCount", 0, MOST_PODS),
        part.labels("nodeSelector"),
        read_tolerations(part, "tolerations"),
    )


def _patch(part: Part, quota: Quota, workloads: Workloads) -> PatchWorkload:
    if "name" not in part or "spec" not in part:
        part.fault("name", f"{part.path} needs name and spec")
    spec = part.part("spec", ("active", "priority", "queueName"))
    return PatchWorkload(
        workloads.find(part, "name"),
        spec.flag("active", default=True) if "active" in spec else None,
        _priority(spec, quota),
        spec.text("queueName") if "queueName" in spec else None,
    )


def _priority(part: Part, quota: Quota) -> int | None:
    """A number, or the name of a class that is there by now."""
    if "priority" not in part:
        return None
    classes = {one.name: one.value for one in quota.priority_classes}
    node = part.value("priority")
    if isinstance(node, yaml.ScalarNode) and node.value in classes:
        return classes[node.value]
    before = len(part.reader.problems)
    found = part.whole("priority", -HIGHEST - 1, HIGHEST)
    if classes and len(part.reader.problems) > before:
        part.reader.problems[-1] = replace(part.reader.problems[-1], fix=f"or one of {', '.join(classes)}")
    return found
