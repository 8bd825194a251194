"""Which GPUs of a node: close together, and leaving whole groups to others.

The answer depends on a handful of small values, so it is remembered; a large cluster has few kinds of nodes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

from batuta.core.bitsets import bits

Groups: TypeAlias = tuple[int, ...]
"""For each GPU of a node the number of its group, as nodes state NVLink and NUMA; empty: one group."""


class Chosen(NamedTuple):
    """Some GPUs of one node, as a set and in worker order."""

    mask: int
    gpus: tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def choose_gpus(
    nvlink: Groups, numa: Groups, free: int, count: int, own: int = 0, single_numa: bool = False
) -> Chosen:
    """Takes `count` of the free GPUs: beside its `own`, in the smallest group that suffices, else few.

    The caller has made sure that they fit (`Room.capacity`).
    """
    if single_numa and numa:
        free = numa_part(numa, free, count, own)
    if free.bit_count() < count:
        raise ValueError(f"{count} GPUs wanted, {free.bit_count()} are free")
    groups = group_masks(nvlink or numa)
    if not groups:
        taken = lowest(free, count)
        return Chosen(taken, tuple(bits(taken)))
    taken = _beside_own(groups, free, count, own) if own else 0
    while (left := count - taken.bit_count()) > 0:
        parts = [(part.bit_count(), k) for k, group in enumerate(groups) if (part := group & free & ~taken)]
        fitting = [part for part in parts if part[0] >= left]
        # The smallest group that suffices leaves larger ones whole; without one, the largest keep them few.
        _, k = min(fitting) if fitting else max(parts, key=lambda part: (part[0], -part[1]))
        taken |= lowest(groups[k] & free & ~taken, left)
    # In the order of the groups, so that the GPUs of one replica lie in one group as far as possible.
    return Chosen(taken, tuple(gpu for group in groups for gpu in bits(group & taken)))


def _beside_own(groups: tuple[int, ...], free: int, count: int, own: int) -> int:
    taken = 0
    for group in sorted(groups, key=lambda group: -(group & own).bit_count()):
        if group & own:
            taken |= lowest(group & free, count - taken.bit_count())
    return taken


@lru_cache(maxsize=1 << 16)
def crossings(nvlink: Groups, mask: int) -> int:
    """How many NVLink groups these GPUs lie in."""
    return sum(1 for group in group_masks(nvlink) if group & mask)


@lru_cache(maxsize=1 << 16)
def numa_part(numa: Groups, free: int, count: int, own: int = 0) -> int:
    """The free GPUs of one NUMA node: that of `own`, else the fullest with `count`, else the widest."""
    nodes = group_masks(numa)
    if own:
        home = max(nodes, key=lambda node: (node & own).bit_count())
        return free & home if not own & ~home else 0
    parts = [node & free for node in nodes]
    fitting = [part for part in parts if part.bit_count() >= count]
    if count and fitting:
        return min(fitting, key=int.bit_count)
    return max(parts, key=int.bit_count, default=free)


@lru_cache(maxsize=1 << 12)
def group_masks(groups: Groups) -> tuple[int, ...]:
    """One set of GPUs per group, in the order of their first GPU; none when the node states no groups."""
    masks: dict[int, int] = {}
    for gpu, group in enumerate(groups):
        masks[group] = masks.get(group, 0) | 1 << gpu
    return tuple(masks.values())


def lowest(mask: int, count: int) -> int:
    """The `count` lowest GPUs of a set; all of them when there are fewer."""
    if mask.bit_count() <= count:
        return mask
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken
