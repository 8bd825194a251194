"""GPU counts that leave no odd gaps behind: parts of a node that double, then whole nodes."""

from __future__ import annotations

from functools import lru_cache

FINE_NODES = 8
"""Up to so many nodes every number is a size; beyond, there are four to an octave."""


@lru_cache(maxsize=256)
def node_sizes(most: int, gpus_per_node: int) -> tuple[int, ...]:
    """Such sizes up to `most`, ascending: 1, 2, 4, 8, 12, …, 32, 40, 48, 56, 64, 80, … on nodes of four."""
    sizes = set()
    part = 1
    while part < gpus_per_node:
        sizes.add(part)
        part *= 2
    nodes, step = 1, 1
    while nodes * gpus_per_node <= most:
        sizes.add(nodes * gpus_per_node)
        if nodes >= FINE_NODES * step:
            step *= 2
        nodes += step
    return tuple(sorted(n for n in sizes if n <= most))
