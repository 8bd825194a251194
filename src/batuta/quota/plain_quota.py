"""The part of a quota that a few numbers per queue describe, as columns.

A plain tree is a queue alone, or a cohort whose queues lend all that they have: GPUs of one flavor, best
effort, and without fair sharing. Most trees are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray, Partitions
from batuta.core.quota import ClusterQueue, Flavors, Quota, Reclaim, Strategy, Within, counts_gpus
from batuta.quota.tree import Node, Tree

NO_LIMIT = 1 << 50
"""More thousandths of a GPU than anybody has, and not so much that a few of them would overflow."""


class PlainQuota(NamedTuple):
    """Columns over the queues of plain trees: tree by tree, and in each as they are listed."""

    number_of: Mapping[str, int]
    """By name of a queue: its number here."""
    names: list[str]
    flavors: list[Flavors]
    """What jobs of a queue use, all of them the same."""
    cell: IntArray
    nominal: IntArray
    borrows: IntArray
    """What a queue may use beyond its own."""
    most: IntArray
    """What a queue could have if it were alone."""
    pushes: BoolArray
    """Whether a job may push others of its queue aside, …"""
    equals: BoolArray
    """… also those that are as important."""
    reclaims: BoolArray
    """Whether a queue may take back what others have borrowed."""
    at: IntArray
    """By queue: the place of its tree among the plain ones."""
    trees: Partitions
    """The queues of each tree, and what they have together."""
    place_of: Mapping[int, int]
    """By number of a tree: its place among the plain ones."""


def plain_quota(quota: Quota, tree: Tree, number_of: Mapping[str, int]) -> PlainQuota:
    """Finds the plain trees of a quota, given the number of each queue's tree."""
    by_tree: dict[int, list[ClusterQueue]] = {}
    for queue in quota.cluster_queues:
        by_tree.setdefault(number_of[queue.name], []).append(queue)
    plain = {
        number: queues
        for number, queues in by_tree.items()
        if not quota.fair_sharing and _is_plain(tree.queues[queues[0].name].root, queues)
    }
    listed = [queue for queues in plain.values() for queue in queues]
    columns = np.array([_numbers(queue, tree) for queue in listed], dtype=np.int64).reshape(len(listed), 7).T
    cell, nominal, borrows, most, pushes, equals, reclaims = columns
    roots = [tree.queues[queues[0].name].root for queues in plain.values()]
    lengths = np.array([len(queues) for queues in plain.values()], dtype=np.int64)
    totals = np.array([sum(root.subtree.values()) for root in roots], dtype=np.int64)
    trees = Partitions(lengths, totals)
    kinds = map(tree.cells.__getitem__, cell.tolist())
    return PlainQuota(
        {queue.name: number for number, queue in enumerate(listed)},
        [queue.name for queue in listed],
        [((kind.resource, kind.flavor),) for kind in kinds],
        cell,
        nominal,
        borrows,
        most,
        pushes > 0,
        equals > 0,
        reclaims > 0,
        trees.number,
        trees,
        {number: place for place, number in enumerate(plain)},
    )


def _numbers(queue: ClusterQueue, tree: Tree) -> tuple[int, ...]:
    """The cell of a plain queue and all that there is to know of it."""
    node, rules = tree.queues[queue.name], queue.preemption
    [(cell, limits)] = node.limits.items()
    in_cohort = node.parent is not None
    borrows = limits.borrowing if in_cohort else None
    return (
        cell,
        limits.nominal,
        NO_LIMIT if borrows is None else borrows,
        node.most(cell),
        rules.within is not Within.NEVER,
        rules.within is Within.LOWER_OR_NEWER_EQUAL_PRIORITY,
        rules.reclaim is not Reclaim.NEVER and in_cohort,
    )


def _is_plain(root: Node, queues: list[ClusterQueue]) -> bool:
    if len(root.subtree) != 1 or root.height > 1 or any(node.local for node in root.queues()):
        return False
    return all(_is_plain_queue(queue) for queue in queues)


def _is_plain_queue(queue: ClusterQueue) -> bool:
    if queue.strategy is Strategy.STRICT_FIFO or queue.preemption.while_borrowing or len(queue.groups) != 1:
        return False
    [group] = queue.groups
    return len(group.resources) == len(group.flavors) == 1 and counts_gpus(group.resources[0])
