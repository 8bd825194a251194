"""What jobs of a World ask of quota, and which flavors have nodes for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from batuta.core.arrays import IntArray, mask_of
from batuta.core.cluster import tolerates
from batuta.core.job import Job
from batuta.core.node_table import TYPE_LABEL, NodeRequirements, most_gpus, wishes_of
from batuta.core.quota import REST_LABEL, Cell, ClusterQueue, Flavor, Flavors, Taint, Toleration, counts_gpus
from batuta.core.world import World
from batuta.quota.claim import PodSet, Way
from batuta.quota.demand import demand
from batuta.quota.refusal import Refusal, Why
from batuta.quota.tree import Amounts, Tree

_NO_CHOICE = 0
"""What stands for the GPU type of CPU-only jobs: the nodes of all types are one to them."""
_ALL = (Toleration(operator="Exists"),)
"""Labels and taints are looked at here, on the nodes that there are, and not a second time."""


Menu = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""What there is to choose from in a queue: by group the resources and the flavors, without the amounts."""


def menu_of(queue: ClusterQueue) -> Menu:
    return tuple((group.resources, tuple([one.flavor for one in group.flavors])) for group in queue.groups)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What jobs that are alike ask for, in any queue with the same menu.

    That is quota for their `min`, in a flavor whose nodes could hold it.
    """

    pod_sets: tuple[PodSet, ...]
    kinds: Mapping[str, frozenset[int]]
    """By flavor that would do: the GPU types of its nodes that the job accepts."""
    ever: bool
    """Whether there are nodes for it at all, whatever its queue has quota for."""
    flavors: Flavors = ()
    """What it gets if all goes well: of each group the first flavor that would do, …"""
    usage: Amounts = field(default_factory=dict)
    """… and how much."""
    only: frozenset[str] = frozenset()
    """The flavors that would do."""
    way: Way | None = None
    """All of that, where only one flavor would do and it asks for one resource."""

    @property
    def needs_no_quota(self) -> bool:
        """Whether its queue limits nothing that it takes: a CPU-only job where quota is in GPUs alone."""
        return bool(self.kinds) and not self.pod_sets[0].requests

    def asks_no_less_than(self, other: Ask) -> bool:
        """Whether the same flavors would do for both, and this one needs as much of everything."""
        if self.kinds.keys() != other.kinds.keys():
            return False
        own = dict(self.pod_sets[0].requests)
        return all(own.get(name, 0) >= amount for name, amount in other.pod_sets[0].requests)

    def as_its_own(self, refusal: Refusal) -> Refusal:
        """What was said to another one that asks for less, with the numbers of this one."""
        if refusal.cell is None:
            return refusal
        needs = dict(self.pod_sets[0].requests).get(refusal.cell.resource, refusal.needs)
        why = Why.EXCEEDS_MAX_QUOTA if needs > refusal.most else refusal.why
        return refusal._replace(needs=needs, why=why)


class Asks:
    """Works out what each job asks for; jobs that are alike share the answer."""

    def __init__(self, world: World, tree: Tree, known: dict[tuple[object, ...], Ask] | None = None) -> None:
        """`known` is what was found before with the same quota and nodes; it grows."""
        self._world, self._tree = world, tree
        self._known: dict[tuple[object, ...], Ask] = {} if known is None else known
        self._most: dict[NodeRequirements, list[int]] = {}
        self._narrowed: dict[tuple[Flavors, NodeRequirements], NodeRequirements | None] = {}
        self._usage: dict[tuple[object, ...], Amounts] = {}

    def of_all(self, rows: IntArray, menus: Sequence[Menu], menu: IntArray) -> tuple[list[Ask], IntArray]:
        """What these rows ask for: all that is different, and by row which of that it is.

        `menu` is the number of each row's menu. All that tells jobs apart is compared as numbers.
        """
        world, jobs, listed = self._world, self._world.jobs, rows.tolist()
        low = jobs.min
        key = menu * (int(low.max(initial=0)) + 1) + low[rows]
        if len(world.reach) > 1:
            # Jobs with equal wishes share the list of what they could have, so it tells them apart as well.
            reach = list(map(world.most.get, map(jobs.ids.__getitem__, listed)))
            if None in reach:
                reach = list(map(world.most_for, listed))
            key = _combined(key, map(id, reach))
        if jobs.picky:
            key = _combined(key, (_likes(jobs.jobs[row]) for row in listed))
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return [self._of(listed[at], menus[menu[at]]) for at in first.tolist()], which

    def _of(self, row: int, menu: Menu) -> Ask:
        job = self._world.jobs.jobs[row]
        key = (menu, id(self._world.most_for(row)), job.min, _likes(job))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(row, menu)
        return found

    def _make(self, row: int, menu: Menu) -> Ask:
        world, job = self._world, self._world.jobs.jobs[row]
        covered = [resource for resources, _ in menu for resource in resources]
        asked = {resource: demand(job, resource, job.min) for resource in covered}
        requests = {resource: amount for resource, amount in asked.items() if amount}
        named = dict.fromkeys(name for _, flavors in menu for name in flavors)
        kinds = {name: found for name in named if (found := self._kinds(job, name, menu))}
        if job.cpu_only and not requests:
            # Nothing of it counts in this queue, so its flavors do not say where it may run.
            kinds = dict.fromkeys(named, frozenset((_NO_CHOICE,)))
        flavors = _first_choice(menu, requests, kinds)
        if len(flavors) < len(requests) or not (job.cpu_only or any(map(counts_gpus, covered))):
            # There is no quota for something that it needs: for GPUs, or in any flavor with nodes for it.
            kinds = {}
        most = world.most_for(row)
        ever = any(most[kind] >= job.min for kind in self._accepted(job))
        usage = {self._tree.number(Cell(name, resource)): requests[resource] for resource, name in flavors}
        pods = PodSet(tuple(requests.items()), tolerations=_ALL)
        way = None
        if len(kinds) == len(usage) == 1:
            [(resource, name)], [(cell, amount)] = flavors, usage.items()
            way = Way(resource, name, cell, amount)
        return Ask((pods,), kinds, ever, flavors, usage, frozenset(kinds), way)

    def _kinds(self, job: Job, name: str, menu: Menu) -> frozenset[int]:
        flavor = self._world.effective_quota.flavor_of.get(name)
        if flavor is None:
            return frozenset()
        tolerations = job.tolerations + _as_text(flavor)
        if not all(
            tolerates(tolerations, _taint(taint)) for taint in flavor.node_taints if _keeps_out(taint)
        ):
            return frozenset()
        most = self._most_for(_narrow(wishes_of(job), (flavor,)))
        if job.cpu_only:
            # Its nodes may have GPUs of any type, or none: there is no type to choose.
            return frozenset((_NO_CHOICE,)) if most[_NO_CHOICE] >= job.min else frozenset()
        named = self._named(menu) if REST_LABEL in flavor.node_labels else ()
        types = self._world.nodes.types
        return frozenset(
            kind for kind in self._accepted(job) if most[kind] >= job.min and types[kind] not in named
        )

    def _named(self, menu: Menu) -> set[str]:
        """The GPU types that a queue has flavors of their own for."""
        known = self._world.effective_quota.flavor_of
        return {
            value
            for _, flavors in menu
            for name in flavors
            if name in known
            for key, value in known[name].node_labels
            if key == TYPE_LABEL
        }

    def _accepted(self, job: Job) -> list[int]:
        if job.cpu_only:
            return [_NO_CHOICE]
        types = self._world.nodes.types
        if not job.gpu_types:
            return list(range(len(types)))
        names = dict(job.gpu_types)
        return [kind for kind, name in enumerate(types) if name in names]

    def _most_for(self, wishes: NodeRequirements) -> list[int]:
        if wishes not in self._most:
            self._most[wishes] = most_gpus(self._world, wishes)
        return self._most[wishes]

    def usage(self, job: Job, flavors: Flavors, gpus: int) -> Amounts:
        """What a job with so many GPUs takes."""
        key = (
            flavors,
            gpus,
            job.cpus_milli_per_gpu,
            job.memory_mib_per_gpu,
            job.gpus_per_replica,
            job.share,
        )
        found = self._usage.get(key)
        if found is None:
            found = self._usage[key] = {
                self._tree.number(Cell(flavor, resource)): amount
                for resource, flavor in flavors
                if (amount := demand(job, resource, gpus))
            }
        return found

    def found(self, row: int, queue: str) -> Flavors:
        """The flavors of a job that has GPUs, and of which nobody knows how it got them: by its nodes."""
        world = self._world
        placement = world.jobs.placements[row]
        nodes = (
            mask_of(tuple(world.nodes.index[node] for node in placement.nodes))
            if placement is not None
            else 0
        )
        wishes = wishes_of(world.jobs.jobs[row])
        found: list[tuple[str, str]] = []
        for group in world.effective_quota.queue_of[queue].groups:
            names = [one.flavor for one in group.flavors]
            known = (world.effective_quota.flavor_of.get(name) for name in names)
            # The flavor for the rest comes last by rule, so that a flavor of its own goes first.
            fitting = (
                flavor.name
                for flavor in known
                if flavor is not None
                and not nodes & ~world.nodes.matching(_narrow(wishes, (flavor,))._replace(tolerations=("*",)))
            )
            name = next(fitting, names[0] if names else "")
            found.extend((resource, name) for resource in group.resources if name)
        return tuple(found)

    def where(self, job: Job, flavors: Flavors) -> NodeRequirements | None:
        """What a job wants of nodes, given the flavors it has; None if the flavors add nothing.

        A flavor that is just a GPU type adds nothing, since the type is chosen by the flavor anyway.
        """
        wishes = wishes_of(job)
        key = (flavors, wishes)
        if key not in self._narrowed:
            own = [
                flavor
                for name in dict.fromkeys(name for _, name in flavors)
                if (flavor := self._world.effective_quota.flavor_of.get(name)) is not None
            ]
            narrowed = _narrow(wishes, tuple(own))
            self._narrowed[key] = None if self._is_same(wishes, narrowed) else narrowed
        return self._narrowed[key]

    def _is_same(self, wishes: NodeRequirements, narrowed: NodeRequirements) -> bool:
        """Whether, of each GPU type that is left, all nodes are left."""
        nodes = self._world.nodes
        before, after = nodes.matching(wishes), nodes.matching(narrowed)
        if not wishes.gpus_per_replica:
            return before == after
        return all(after & own in (0, before & own) for own in nodes.by_type) and not after & ~before


def _likes(job: Job) -> tuple[object, ...]:
    """What a job wants of GPUs."""
    return job.gpu_types, job.share


def _combined(key: IntArray, values: Iterable[Hashable]) -> IntArray:
    """Numbers that are equal where both the key and the values are."""
    listed = list(values)
    number = {value: k for k, value in enumerate(dict.fromkeys(listed))}
    return key * len(number) + np.fromiter(map(number.__getitem__, listed), np.int64, len(listed))


def _first_choice(menu: Menu, requests: Mapping[str, int], kinds: Mapping[str, frozenset[int]]) -> Flavors:
    found: list[tuple[str, str]] = []
    for resources, flavors in menu:
        first = next((name for name in flavors if name in kinds), None)
        found.extend((name, first) for name in resources if name in requests and first is not None)
    # In the order in which a search would find them.
    return tuple(sorted(found))


def _narrow(wishes: NodeRequirements, flavors: tuple[Flavor, ...]) -> NodeRequirements:
    labels, tolerations = wishes.node_labels, wishes.tolerations
    for flavor in flavors:
        labels += tuple(label for label in flavor.node_labels if label != REST_LABEL and label not in labels)
        tolerations += tuple(one for one in _as_text(flavor) if one not in tolerations)
    return wishes._replace(node_labels=labels, tolerations=tolerations)


def _as_text(flavor: Flavor) -> tuple[str, ...]:
    """The tolerations of a flavor as jobs have them."""
    found = []
    for one in flavor.tolerations:
        value = "" if one.operator == "Exists" else f"={one.value}"
        found.append(f"{one.key or '*'}{value}" + (f":{one.effect}" if one.effect else ""))
    return tuple(found)


def _taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _keeps_out(taint: Taint) -> bool:
    return taint.effect in ("NoSchedule", "NoExecute")
