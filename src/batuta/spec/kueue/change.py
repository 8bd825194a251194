"""Changes to quota objects: merge them into the present quota, or remove objects from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from batuta.core.quota import LocalQueue, Quota
from batuta.spec.kueue.objects import KINDS, Manifest, ObjectKey, QuotaObject
from batuta.spec.problem import InputError, Problem, did_you_mean

_FIELDS: Final = {
    "ResourceFlavor": "flavors",
    "Cohort": "cohorts",
    "ClusterQueue": "cluster_queues",
    "LocalQueue": "local_queues",
    "WorkloadPriorityClass": "priority_classes",
}


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Objects to create or replace; all others stay unchanged."""

    objects: tuple[Manifest, ...] = ()
    fair_sharing: bool | None = None  # None when nothing is said about it
    notes: tuple[str, ...] = ()  # what was accepted and is not used, as sentences

    def place(self, key: ObjectKey) -> Problem:
        """Where an object was written; nowhere for one that was not."""
        return next((one.place for one in self.objects if one.key == key), Problem(""))


def merge(quota: Quota, change: QuotaChange) -> Quota:
    """The quota with the objects of a change put in: each replaces the one of its kind and name, or is added.

    Raises InputError when they do not go together.
    """
    fields: dict[str, Any] = {field: tuple(_replaced(quota, kind, change)) for kind, field in _FIELDS.items()}
    if change.fair_sharing is not None:
        fields["fair_sharing"] = change.fair_sharing
    written = {one.key.name for one in change.objects if one.key.kind == "ClusterQueue"}
    leaving = tuple(name for name in quota.leaving if name not in written)
    merged = replace(quota, **fields, leaving=leaving)
    if problems := _cycles(merged, change):
        raise InputError(problems)
    return merged


def remove(quota: Quota, keys: Iterable[ObjectKey]) -> Quota:
    """The quota without these objects. Raises InputError when one is not there, or is still needed."""
    gone, problems = set(keys), list[Problem]()
    known = {kind: {key_of(kind, value): value for value in _values(quota, kind)} for kind in KINDS}
    for key in sorted(gone):
        if key.kind not in known:
            problems.append(Problem(f"unknown kind {key.kind}", fix=did_you_mean(key.kind, KINDS)))
        elif key not in known[key.kind]:
            names = [str(one).partition(" ")[2] for one in known[key.kind]]
            problems.append(Problem(f"there is no {key}", fix=did_you_mean(key.name, names) if names else ""))
    fields: dict[str, Any] = {
        field: tuple(value for value in _values(quota, kind) if key_of(kind, value) not in gone)
        for kind, field in _FIELDS.items()
    }
    left = replace(quota, **fields)
    problems += [
        Problem(f"ResourceFlavor {flavor} is used by {user}", fix=f"take it out of {user} first")
        for user, flavor in flavor_uses(left)
        if ObjectKey("ResourceFlavor", flavor) in gone
    ]
    if problems:
        raise InputError(problems)
    return left


def dangling_references(quota: Quota) -> tuple[str, ...]:
    """Return the references to missing objects, as sentences: allowed, but jobs wait for the objects."""
    flavors = {flavor.name for flavor in quota.flavors}
    queues = {queue.name for queue in quota.cluster_queues}
    found = []
    for user, flavor in flavor_uses(quota):
        if flavor not in flavors:
            effect = "its jobs wait" if user.startswith("ClusterQueue") else "no queue can use that quota"
            found.append(f"{user} names flavor {flavor}, which is not there: {effect}")
    for queue in quota.local_queues:
        if queue.cluster_queue not in queues:
            leads = f"{key_of('LocalQueue', queue)} leads to ClusterQueue {queue.cluster_queue}"
            found.append(f"{leads}, which is not there: its jobs wait")
    return tuple(found)


def flavor_uses(quota: Quota) -> list[tuple[str, str]]:
    """Return which object names which flavor: `("ClusterQueue a", "h100")`."""
    users = (("ClusterQueue", quota.cluster_queues), ("Cohort", quota.cohorts))
    found = []
    for kind, objects in users:
        for user in objects:
            found += [(f"{kind} {user.name}", one.flavor) for group in user.groups for one in group.flavors]
    return found


def find_object(quota: Quota, key: ObjectKey) -> QuotaObject | None:
    return next((value for value in _values(quota, key.kind) if key_of(key.kind, value) == key), None)


def key_of(kind: str, value: QuotaObject) -> ObjectKey:
    return ObjectKey(kind, value.name, value.namespace if isinstance(value, LocalQueue) else "")


def _values(quota: Quota, kind: str) -> Sequence[QuotaObject]:
    return cast("Sequence[QuotaObject]", getattr(quota, _FIELDS[kind]))


def _replaced(quota: Quota, kind: str, change: QuotaChange) -> Iterable[QuotaObject]:
    """Old objects keep their place in line; new ones come last."""
    by_key = {key_of(kind, value): value for value in _values(quota, kind)}
    return (by_key | {one.key: one.value for one in change.objects if one.key.kind == kind}).values()


def _cycles(quota: Quota, change: QuotaChange) -> list[Problem]:
    """Return a problem for each cycle of cohorts."""
    parent_of = {cohort.name: cohort.parent for cohort in quota.cohorts}
    problems, done = [], set[str]()
    for start in parent_of:
        path = [start]
        while (above := parent_of.get(path[-1], "")) and above not in path:
            path.append(above)
        at = parent_of.get(path[-1], "")
        circle = path[path.index(at) :] if at in path else []
        if circle and not done.intersection(circle):
            done.update(circle)
            written = [change.place(ObjectKey("Cohort", name)) for name in circle]
            place = max(written, key=lambda one: (bool(one.file or one.line), one.line))
            way = " → ".join((*circle, circle[0]))
            problems.append(replace(place, message=f"cohorts go round in a circle: {way}", fix="take one parent out"))
    return problems
