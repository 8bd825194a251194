"""Which of places that are as good is really used the least: by measured use, where that is known and fresh.

Only ties are broken by it. Nodes lie in tiers of a tenth, one bit each, so a choice among thousands looks at
few of them; nothing is worked out before the first choice, and nothing at all where nobody reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batuta.core.bitsets import bits
from batuta.core.layout import Layout
from batuta.placement.choose_gpus import Chosen, Groups, choose_gpus, group_masks

if TYPE_CHECKING:
    from batuta.placement.busy_cards import BusyCards

TENTHS = 10


class CalmNodes:
    """The nodes by how busy those of their free GPUs are that a job would get."""

    __slots__ = ("_busy", "_layout", "_tiers")

    def __init__(self, busy: BusyCards, layout: Layout) -> None:
        self._busy = busy
        self._layout = layout
        self._tiers: dict[int, list[int]] = {}
        """By GPUs of a job, then by tenths: nodes. GPUs that are taken since may have made them busier."""

    def calm_first(self, nodes: int, gpus: int) -> Iterator[int]:
        """These nodes, the calmest first; of equals the lowest number. For a job with so many GPUs there."""
        tiers = self._tiers.get(gpus)
        if tiers is None:
            tiers = self._tiers[gpus] = self._sorted(gpus)
        for tenth, _ in enumerate(tiers):
            here = tiers[tenth] & nodes
            while here:
                low = here & -here
                here ^= low
                i = low.bit_length() - 1
                actual = self._tenth(i, gpus)
                if actual > tenth:
                    tiers[tenth] ^= low
                    tiers[actual] |= low
                else:
                    yield i

    def _sorted(self, gpus: int) -> list[int]:
        tiers = [0] * (TENTHS + 1)
        known = 0
        for i in self._busy.nodes:
            known |= 1 << i
            tiers[self._tenth(i, gpus)] |= 1 << i
        tiers[self._busy.tenth_unknown] |= self._layout.table.all & ~known
        return tiers

    def _tenth(self, i: int, gpus: int) -> int:
        """How busy the calmest so many free GPUs of a node are on the average, in tenths."""
        if i not in self._busy.nodes:
            return self._busy.tenth_unknown
        busy = sorted([self._busy.of(i, gpu) for gpu in bits(self._layout.free[i])])[:gpus]
        return round(TENTHS * sum(busy) / len(busy)) if busy else TENTHS


def calmest_gpus(
    nvlink: Groups, numa: Groups, free: int, count: int, own: int, single_numa: bool, tenths: list[int]
) -> Chosen:
    """The same as `choose_gpus`, and of choices that are as close together the one with the calmest GPUs.

    `tenths`: how busy each GPU of the node is.
    """
    first = choose_gpus(nvlink, numa, free, count, own, single_numa)
    groups = group_masks(nvlink or numa)
    calm = 0
    by_tenth: dict[int, int] = {}
    for gpu in bits(free):
        by_tenth[tenths[gpu]] = by_tenth.get(tenths[gpu], 0) | 1 << gpu
    for tenth in sorted(by_tenth)[:-1]:
        calm |= by_tenth[tenth]
        if calm.bit_count() < count:
            continue
        try:
            found = choose_gpus(nvlink, numa, calm, count, own, single_numa)
        except ValueError:
            continue  # not so many in one NUMA node
        if _shape(groups, free, found.mask, own) == _shape(groups, free, first.mask, own):
            return found
    return first


def _shape(groups: tuple[int, ...], free: int, taken: int, own: int) -> list[tuple[int, int, int]]:
    """What a choice takes of each group and leaves there: two alike are as good."""
    return sorted(
        ((taken & group).bit_count(), (free & ~taken & group).bit_count(), (own & group).bit_count())
        for group in groups
    )
