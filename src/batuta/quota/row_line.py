"""A line of rows: a claim is made of one when it comes to its turn, and most never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from batuta.quota.asks import Ask
from batuta.quota.claim import Claim
from batuta.quota.glance import Glance
from batuta.quota.lines import Line
from batuta.quota.refusal import Refusal
from batuta.quota.tree import Node


class RowLine(Line):
    """Rows in their order. Those whose like was refused are passed over until something is given back."""

    __slots__ = ("_asked", "_asks", "_at", "_claim", "_denied", "_glance", "_passed", "_priorities", "_rows")

    def __init__(
        self,
        strict: bool,
        rows: list[int],
        asks: Mapping[int, Ask],
        priorities: Sequence[int],
        claim: Callable[[int, Node], Claim],
        glance: Glance,
    ) -> None:
        """`glance` says who cannot be served now, as far as that takes no search."""
        super().__init__(strict)
        self._rows, self._asks, self._priorities, self._claim = rows, asks, priorities, claim
        self._glance = glance
        self._at = 0
        self._passed: list[int] = []
        self._denied: list[int] = []
        """Those who would delay somebody for whom quota is kept, and were told so."""
        self._asked: dict[Ask, tuple[int, Refusal]] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self._rows) - self._at

    def pop(self) -> Claim | None:
        self._glance.renew()
        while True:
            self._pass_over()
            if self._at == len(self._rows):
                return super().pop()
            row = self._rows[self._at]
            if self.waiting and (-self._priorities[row], row) > self._first_put_back():
                return super().pop()
            self._at += 1
            if self.strict or not self._glance.delays(row):
                return self._claim(row, self._glance.queue)
            self._denied.append(row)

    def _first_put_back(self) -> tuple[int, int]:
        claim = self.waiting[0][2]
        return -claim.priority, claim.row

    def _pass_over(self) -> None:
        if self.strict:
            return
        rows, at = self._rows, self._at
        while at < len(rows) and self._is_hopeless(rows[at]):
            self._passed.append(rows[at])
            at += 1
        self._at = at

    def _is_hopeless(self, row: int) -> bool:
        """Whether one that asks for no more, and is as important, was refused already."""
        ask, priority = self._asks[row], self._priorities[row]
        known = self.refused.get(id(ask))
        if known is None and (seen := self._glance.hopeless(row)) is not None:
            known = self.refused[id(ask)] = priority, seen
        if known is None:
            for other, (least, refusal) in self._asked.items():
                if priority <= least and ask.asks_no_less_than(other):
                    known = self.refused[id(ask)] = least, ask.as_its_own(refusal)
                    break
        return known is not None and priority <= known[0]

    def refuse(self, claim: Claim, refusal: Refusal) -> None:
        super().refuse(claim, refusal)
        self._asked[self._asks[claim.row]] = claim.priority, refusal

    def why_passed(self) -> Iterator[tuple[int, Refusal]]:
        """Rows that were never looked at, because their like was refused, and why."""
        for row in self._passed:
            yield row, self.refused[id(self._asks[row])][1]

    def wake(self) -> None:
        super().wake()
        self._asked.clear()
        for row in self._denied:
            self.put(self._claim(row, self._glance.queue))
        self._denied = []
        if self._passed:
            rest = self._passed + self._rows[self._at :]
            # Rows are numbered by age, so this is the order of the line.
            self._rows = sorted(rest, key=lambda row: (-self._priorities[row], row))
            self._at, self._passed = 0, []
