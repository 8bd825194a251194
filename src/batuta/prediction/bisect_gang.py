"""Which node makes a gang hang, or which two together, when nobody can see it: by trying parts of the gang.

Suspects are single nodes, or else pairs: a link between two that are well by themselves. A set that hangs
holds the guilty as a whole; a set that goes on does not. The next set to try is the one that leaves half of
what is possible either way. So among n nodes one is found in log2(n) tries and one more, which shows that the
gang goes on without it, and a pair in about twice as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from batuta.core.cluster import NodeName


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a gang on these nodes."""

    nodes: frozenset[NodeName]
    hung: bool


@dataclass(frozen=True, slots=True)
class TryNext:
    """These of the suspects should be tried together; beside nodes that are none."""

    nodes: frozenset[NodeName]


@dataclass(frozen=True, slots=True)
class Guilty:
    """Without this node the gang goes on; or without one of these two, which only hang together."""

    nodes: frozenset[NodeName]


@dataclass(frozen=True, slots=True)
class Nobody:
    """Neither one node nor two explain what was seen: it is the program, or more than this can find."""


Finding: TypeAlias = TryNext | Guilty | Nobody


def find_guilty(tried: Sequence[Tried]) -> Finding:
    """What follows from the tries so far. The first that hung names the suspects; there must be one."""
    hung = [one.nodes for one in tried if one.hung]
    if not hung:
        raise ValueError("nothing has hung yet, so nobody is suspected")
    suspects = frozenset.intersection(*hung)
    good = [one.nodes for one in tried if not one.hung]
    singles, pairs = _possible(suspects, 1, good), _possible(suspects, 2, good)
    if len(singles) == 1:
        (alone,) = singles
        is_proven = all(alone < pair for pair in pairs)
        return Guilty(alone) if is_proven else TryNext(suspects - alone)
    possible = singles or pairs
    if len(possible) == 1:
        return Guilty(possible[0])
    return TryNext(_half(possible)) if possible else Nobody()


def _possible(
    suspects: Iterable[NodeName], size: int, good: Sequence[frozenset[NodeName]]
) -> list[frozenset[NodeName]]:
    """Who could be guilty: in every set that hung, and in none that went on."""
    found = (frozenset(some) for some in combinations(sorted(suspects), size))
    return [some for some in found if not any(some <= nodes for nodes in good)]


def _half(possible: Sequence[frozenset[NodeName]]) -> frozenset[NodeName]:
    """Nodes that hold about half of what is possible: each time the one that adds most without too much."""
    of_node: dict[NodeName, list[int]] = {}
    for number, some in enumerate(possible):
        for node in some:
            of_node.setdefault(node, []).append(number)
    missing = [len(some) for some in possible]
    adds = {node: sum(missing[number] == 1 for number in numbers) for node, numbers in of_node.items()}
    chosen: set[NodeName] = set()
    room = len(possible) // 2
    while room > 0:
        fitting = [node for node in adds if adds[node] <= room]
        if not fitting:
            break
        node = min(fitting, key=lambda one: (-adds[one], -len(of_node[one]), one))
        room -= adds.pop(node)
        chosen.add(node)
        for number in of_node[node]:
            missing[number] -= 1
            if missing[number] == 1:
                (last,) = possible[number] - chosen
                adds[last] += 1
    return frozenset(chosen)
