"""Which rack suits a job best: racks with the same number of nodes at every level are looked at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batuta.core.bitsets import bits
from batuta.core.node_table import NodeTable

Profile = tuple[int, ...]
"""Of a rack: how many of its nodes have 0, 1, 2, … GPUs for a job."""


class RackProfiles:
    """The racks by profile. It remembers the levels, so later questions look only at what has changed."""

    __slots__ = ("_alike", "_levels", "_nodes", "_of_rack", "_racks", "_table")

    def __init__(self, table: NodeTable, nodes: int) -> None:
        self._table, self._nodes = table, nodes
        self._racks = dict(zip(table.by_rack, range(len(table.by_rack)), strict=True))
        self._levels: list[int] = []
        self._of_rack: list[Profile] = [()] * len(self._racks)
        self._alike: dict[Profile, int] = {(): (1 << len(self._racks)) - 1}
        """The racks with a profile, as one bit each."""

    def by_fit(self, levels: Sequence[int], gpus: int, step: int) -> Iterator[int]:
        """The racks that could hold so many GPUs, as sets of nodes: fewest nodes first, then the fullest."""
        self._bring_up_to_date(levels)
        found: dict[tuple[int, int], int] = {}
        for profile, racks in self._alike.items():
            fit = _fit(profile, gpus, step)
            if fit is not None:
                found[fit] = found.get(fit, 0) | racks
        by_number = list(self._table.by_rack.values())
        for fit in sorted(found):
            for number in bits(found[fit]):
                yield by_number[number]

    def _bring_up_to_date(self, levels: Sequence[int]) -> None:
        now = [level & self._nodes for level in levels]
        if len(self._levels) == len(now):
            changed = 0
            for old, new in zip(self._levels, now, strict=True):
                changed |= old ^ new
            touched = {self._table.rack_of[i] for i in bits(changed)}
        else:
            touched = set(self._table.by_rack)
        self._levels = now
        for name in touched:
            rack = self._table.by_rack[name]
            self._note(self._racks[name], tuple([(level & rack).bit_count() for level in now]))

    def _note(self, number: int, profile: Profile) -> None:
        bit, before = 1 << number, self._of_rack[number]
        self._alike[before] ^= bit
        if not self._alike[before]:
            del self._alike[before]
        self._alike[profile] = self._alike.get(profile, 0) | bit
        self._of_rack[number] = profile


def _fit(profile: Profile, gpus: int, step: int) -> tuple[int, int] | None:
    """How many nodes the job would take, and how many GPUs the rack has for it; None if too few."""
    free, left, count = 0, gpus, 0
    for k in range(len(profile) - 1, step - 1, -1):
        there = profile[k]
        if there:
            whole = k - k % step
            free += there * whole
            if left > 0:
                used = min(there, -(-left // whole))
                count += used
                left -= used * whole
    return (count, free) if left <= 0 else None
