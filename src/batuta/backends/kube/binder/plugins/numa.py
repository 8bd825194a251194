"""numa: a pod never goes where the kubelet's topology manager would refuse it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from itertools import combinations
from typing import ClassVar

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Ints, Rows
from batuta.backends.kube.binder.numa_table import Alignment
from batuta.backends.kube.binder.plugin import Need, No, Plugin
from batuta.backends.kube.binder.requests import ContainerNeed, Needs


class Reason(StrEnum):
    """Why a node will not do."""

    NO_FIT = "cannot align the pod's resources on NUMA nodes"
    NO_REPORT = "does not report its NUMA nodes"


class Numa(Plugin):
    """NodeResourceTopology against the pod, by the rules of the kubelet's topology manager."""

    name: ClassVar[str] = "numa"

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.aligned) or need.single_numa

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        if not cluster.numa.has_report(row):
            return No(self.name, Reason.NO_REPORT) if need.single_numa else None
        alignment = Alignment.SINGLE if need.single_numa else Alignment(int(cluster.numa.alignment[row]))
        if alignment is Alignment.OPEN:
            return None
        fits = _admits(need, cluster, row, alignment)
        return None if fits else No(self.name, Reason.NO_FIT)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        if cluster.numa.is_empty and not need.single_numa:
            return np.ones(len(rows), np.bool_)
        table = cluster.numa
        strict = np.full(len(rows), True) if need.single_numa else table.alignment[rows] != Alignment.OPEN
        plain = strict & _is_plain(need, cluster, rows)
        fits = np.ones(len(rows), np.bool_)
        if plain.any():
            fits[plain] = _some_zone(need, cluster, rows[plain])
        for place in np.flatnonzero(strict & ~plain):
            fits[place] = self.check(need, cluster, int(rows[place])) is None
        return fits

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        reported = sum(cluster.numa.has_report(row) for row in rows.tolist())
        silent = len(rows) - reported
        return +Counter({No(self.name, Reason.NO_FIT): reported, No(self.name, Reason.NO_REPORT): silent})


def _is_plain(need: Need, cluster: Cluster, rows: Rows) -> Flags:
    """Where the question is only whether one NUMA node has everything; others are looked at one by one."""
    table = cluster.numa
    reported: Flags = np.logical_or.reduce(table.exists[rows], axis=1)
    if need.single_numa:
        return reported
    alone = sum(bool(one.requests) for one in need.cls.aligned_containers) <= 1
    plain: Flags = reported & (table.alignment[rows] == Alignment.SINGLE) & (table.by_pod[rows] | alone)
    return plain


def _some_zone(need: Need, cluster: Cluster, rows: Rows) -> Flags:
    """Which rows have a NUMA node with all that is aligned there; where nothing is, every one will do."""
    table = cluster.numa
    good = table.exists[rows]
    for name, value in need.cls.aligned:
        if name not in table.available:
            continue
        counts: Flags = np.logical_or.reduce(table.capacity[name][rows] > 0, axis=1)
        if "/" not in name:
            counts = counts & (table.pins_cpus if name == "cpu" else table.pins_memory)[rows]
        left = table.available[name][rows]
        if name in table.sent:
            left = left - table.sent[name][rows, None]
        good = good & ((left >= value) | ~counts[:, None])
    some: Flags = np.logical_or.reduce(good, axis=1)
    return some


def _admits(need: Need, cluster: Cluster, row: int, alignment: Alignment) -> bool:
    """What the topology manager would answer: for the pod as a whole, or for one container after another."""
    table = cluster.numa
    units: Iterable[ContainerNeed] = need.cls.aligned_containers
    if table.by_pod[row] or need.single_numa:
        units = [ContainerNeed(need.cls.aligned, True)]
    left: dict[str, Ints] = {}
    for container in units:
        wanted = _pinned(container.requests, cluster, row)
        for name, _ in wanted:
            if name not in left:
                found = table.left(row, name)
                if found is not None:
                    left[name] = found
        wanted = tuple((name, value) for name, value in wanted if name in left)
        place = _place(wanted, left, cluster, row, alignment)
        if place is None:
            return False
        if container.kept:
            _take(wanted, left, place)
    return True


def _pinned(needs: Needs, cluster: Cluster, row: int) -> Needs:
    """Without the static policies of its CPU and memory managers, a kubelet does not align these."""
    table = cluster.numa
    return tuple(
        (name, value)
        for name, value in needs
        if "/" in name or (table.pins_cpus[row] if name == "cpu" else table.pins_memory[row])
    )


def _place(
    wanted: Needs, left: dict[str, Ints], cluster: Cluster, row: int, alignment: Alignment
) -> tuple[int, ...] | None:
    """The NUMA nodes that the kubelet would choose: as few as may be, lowest numbers first."""
    if not wanted:
        return ()
    table = cluster.numa
    zones = [int(zone) for zone in np.flatnonzero(table.exists[row])]
    for count in range(1, len(zones) + 1 if alignment is Alignment.RESTRICTED else 2):
        groups = list(combinations(zones, count))
        for group in groups:
            if all(_sum(left[name], group) >= value for name, value in wanted):
                return group
        # On an empty node this many would do, so the kubelet does not accept more; and resources that need
        # different numbers of NUMA nodes are never aligned.
        if any(_sum(table.capacity[name][row], group) >= value for group in groups for name, value in wanted):
            return None
    return None


def _sum(per_zone: Ints, group: tuple[int, ...]) -> int:
    return int(sum(max(int(per_zone[zone]), 0) for zone in group))


def _take(wanted: Needs, left: dict[str, Ints], group: tuple[int, ...]) -> None:
    for name, value in wanted:
        for zone in group:
            part = min(value, max(int(left[name][zone]), 0))
            left[name][zone] -= part
            value -= part
