"""`resourceGroups` of a ClusterQueue or a Cohort: how much of what in which flavor."""

from __future__ import annotations

from batuta.core.quota import FlavorQuota, Limits, ResourceGroup
from batuta.spec.kueue.part import Part, check_resource, read_text_value
from batuta.spec.quantity import shown

MOST_GROUPS, MOST_IN_GROUP, MOST_TOGETHER, MOST_CELLS = 16, 64, 256, 512
_GROUP = ("coveredResources", "flavors")
_FLAVOR = ("name", "resources")
_QUOTA = ("name", "nominalQuota", "borrowingLimit", "lendingLimit")


class _Seen:
    """Names that may stand once in all groups together."""

    def __init__(self) -> None:
        self.resources: set[str] = set()
        self.flavors: set[str] = set()


def read_groups(spec: Part, parent: str, *, lends_at_most_nominal: bool) -> tuple[ResourceGroup, ...]:
    """The groups of a queue or cohort that is below `parent`; empty for below nobody."""
    seen, found = _Seen(), list[ResourceGroup]()
    for group in spec.parts("resourceGroups", MOST_GROUPS, _GROUP):
        resources = _resources(group, seen)
        parts = list(group.parts("flavors", MOST_IN_GROUP, _FLAVOR))
        if not parts:
            group.fault("flavors", f"{group.path} needs flavors", "at least one")
        read = [_flavor(part, resources, parent, seen, lends_at_most_nominal) for part in parts]
        flavors = [flavor for flavor in read if flavor is not None]
        if len(flavors) * len(resources) > MOST_CELLS:
            group.fault("flavors", f"{group.path} has too many quotas", f"at most {MOST_CELLS} in a group")
        found.append(ResourceGroup(resources, tuple(flavors)))
    for what, count in (("flavors", len(seen.flavors)), ("resources", len(seen.resources))):
        if count > MOST_TOGETHER:
            spec.fault(
                "resourceGroups", f"all groups together have {count} {what}", f"at most {MOST_TOGETHER}"
            )
    return tuple(found)


def _resources(group: Part, seen: _Seen) -> tuple[str, ...]:
    names: list[str] = []
    items = group.items("coveredResources", MOST_IN_GROUP)
    if not items:
        group.fault("coveredResources", f"{group.path} needs coveredResources", 'as in ["nvidia.com/gpu"]')
    for item in items:
        name = read_text_value(group.reader, item)
        check_resource(group.reader, item, name)
        if name and name in seen.resources:
            group.reader.fault(
                item.node,
                f"{item.path}: {shown(name)} is covered twice",
                "name each resource once in all groups",
            )
        elif name:
            seen.resources.add(name)
            names.append(name)
    return tuple(names)


def _flavor(
    part: Part, resources: tuple[str, ...], parent: str, seen: _Seen, lends_at_most_nominal: bool
) -> FlavorQuota | None:
    before = len(part.reader.problems)
    name = part.name("name")
    if "name" not in part:
        part.fault("name", f"{part.path} needs the name of a ResourceFlavor")
    elif name and name in seen.flavors:
        part.fault(
            "name", f"{part.path}: flavor {name} is named twice", "name each flavor once in all groups"
        )
    seen.flavors.add(name)
    quotas = list(part.parts("resources", MOST_IN_GROUP, _QUOTA))
    names = tuple(quota.text("name") for quota in quotas)
    if names != resources and len(part.reader.problems) == before:
        wanted = ", ".join(resources) or "nothing"
        part.fault(
            "resources",
            f"{part.at('resources')} has {', '.join(names) or 'nothing'} where the group covers {wanted}",
            "the same resources in the same order as coveredResources",
        )
    limits = tuple(_limits(quota, parent, lends_at_most_nominal) for quota in quotas)
    return FlavorQuota(name, limits) if len(part.reader.problems) == before else None


def _limits(quota: Part, parent: str, lends_at_most_nominal: bool) -> Limits:
    if "nominalQuota" not in quota:
        quota.fault("nominalQuota", f"{quota.path} needs nominalQuota", "0 for none of its own")
    nominal = quota.milli("nominalQuota")
    for key in ("borrowingLimit", "lendingLimit"):
        if key in quota and not parent:
            below = "cohort" if lends_at_most_nominal else "parent"
            quota.fault(
                key, f"{quota.at(key)} has no meaning without a {below}", f"drop it, or name a {below}"
            )
    lending = quota.milli("lendingLimit")
    too_much = lending is not None and nominal is not None and lending > nominal
    if too_much and parent and lends_at_most_nominal:
        quota.fault(
            "lendingLimit",
            f"{quota.at('lendingLimit')} is more than nominalQuota",
            "lend at most what there is",
        )
    return Limits(nominal or 0, quota.milli("borrowingLimit"), lending)
