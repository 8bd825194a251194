"""Whether a job hangs, and which node or pair of nodes makes its gang hang.

A job hangs that used to report and has been silent for much longer than ever before. A job that reports
nothing, or rarely, is never called hung. GPU utilisation is no evidence: a collective that waits for a
lost rank keeps GPUs busy.

`find_faulty_nodes` finds the cause by running parts of the gang. Suspects are single nodes, or else pairs:
a link between two nodes that are healthy by themselves. A set that hangs contains the whole cause; a set
that runs does not. The next set to test halves what is possible. So among n nodes it finds one in log2(n)
tests and one more, which shows that the gang runs without it, and a pair in about twice as many.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple

from batuta.core.cluster import NodeName

_REMEMBERED = 64
_LATE_S = 30.0  # a check that is later than this proves no silence: the machine slept or was too busy to read reports


@dataclass(frozen=True, slots=True)
class HangRules:
    """When silence is a hang. All of these must be exceeded."""

    after_s: float = 1800.0  # infinite: never
    times_usual: float = 20.0  # so many times the usual time between two reports
    times_longest: float = 3.0  # so many times its longest silence: it may evaluate or save meanwhile
    reports: int = 5  # a run that has reported less often than this is not known well enough

    def __post_init__(self) -> None:
        if not (self.after_s > 0 and self.times_usual >= 1 and self.times_longest >= 1 and self.reports >= 2):
            raise ValueError(f"a hang needs a time > 0, factors ≥ 1 and two reports at least: {self}")


@dataclass(frozen=True, slots=True)
class HangReport:
    """A job has not reported for too long."""

    silent_s: float
    usual_s: float  # the usual time between two reports
    ranks: tuple[int, ...] = ()  # the ranks that block the others; empty when unknown
    of: int = 0  # how many ranks had ever reported


class HangMeter:
    """Detects a hang from the times at which reports arrive, by the clock of the receiver."""

    __slots__ = ("_gaps", "_heard_s", "_longest_s", "_look_by_s", "_reports", "_waits", "is_done", "rules")

    def __init__(self, rules: HangRules = HangRules()) -> None:  # noqa: B008  (frozen)
        self.rules = rules
        self._longest_s = 0.0
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)
        self.began()

    def began(self) -> None:
        """A run begins: earlier reports no longer count, the longest silence does."""
        self._waits: dict[int, bool] = {}  # by rank: whether its last report says that it waits for the others
        self._reports = 0
        self._heard_s: float | None = None
        self._look_by_s = math.inf  # when the last check was, or when the next one is due
        self.is_done = False  # whether all steps are done: what comes after is not counted in steps

    def heard(self, now_s: float, rank: int = 0, *, waits: bool = False) -> None:
        """A rank reported: progress, a heartbeat, or that it waits for the others."""
        self._waits[rank] = waits
        if waits:
            return  # that is no progress
        if self._heard_s is not None and now_s > self._heard_s:
            gap_s = now_s - self._heard_s
            self._gaps.append(gap_s)
            self._longest_s = max(self._longest_s, gap_s)
        self._heard_s = now_s
        self._reports += 1

    def look(self, now_s: float) -> HangReport | None:
        if self._heard_s is None:
            return None
        if now_s > self._look_by_s + _LATE_S:
            self._heard_s = now_s
        # A check that is due later may still come.
        self._look_by_s = now_s if math.isinf(self._look_by_s) else max(self._look_by_s, now_s)
        silent_s = now_s - self._heard_s
        if self.is_done or self._reports < self.rules.reports or silent_s < self._limit_s():
            return None
        return HangReport(silent_s, self._usual_s(), blocking_ranks(self._waits), len(self._waits))

    def next_look_s(self, now_s: float) -> float:
        """Return when the next check is due; none is needed before."""
        since_s = now_s if self._heard_s is None else self._heard_s
        self._look_by_s = max(now_s, since_s + self._limit_s())
        return self._look_by_s

    def _usual_s(self) -> float:
        return median(self._gaps) if self._gaps else 0.0

    def _limit_s(self) -> float:
        rules = self.rules
        return max(rules.after_s, rules.times_usual * self._usual_s(), rules.times_longest * self._longest_s)


def blocking_ranks(waits: Mapping[int, bool]) -> tuple[int, ...]:
    """Return the ranks that do not wait, if at least as many others wait for them."""
    busy = sorted(rank for rank, is_waiting in waits.items() if not is_waiting)
    return tuple(busy) if 2 * len(busy) <= len(waits) else ()


class GangTest(NamedTuple):
    """The result of running the gang on these nodes."""

    nodes: frozenset[NodeName]
    hung: bool


class SearchResult(NamedTuple):
    """What follows from tests. Nothing where neither one node nor two explain them: the program, or more nodes, do."""

    faulty: frozenset[NodeName] = frozenset()  # the gang runs without it; two of them hang only together
    to_test: frozenset[NodeName] = frozenset()  # the suspects to run together next, with nodes that are not suspects


def find_faulty_nodes(tests: Sequence[GangTest]) -> SearchResult:
    """Return what follows from the tests so far; at least one must have hung."""
    hung = [one.nodes for one in tests if one.hung]
    if not hung:
        raise ValueError("no test has hung yet, so there are no suspects")
    suspects = frozenset.intersection(*hung)
    good = [one.nodes for one in tests if not one.hung]
    singles, pairs = _possible(suspects, 1, good), _possible(suspects, 2, good)
    if len(singles) == 1:
        (alone,) = singles
        is_proven = all(alone < pair for pair in pairs)
        return SearchResult(faulty=alone) if is_proven else SearchResult(to_test=suspects - alone)
    possible = singles or pairs
    if len(possible) == 1:
        return SearchResult(faulty=possible[0])
    return SearchResult(to_test=_half(possible)) if possible else SearchResult()


def _possible(
    suspects: Iterable[NodeName], size: int, good: Sequence[frozenset[NodeName]]
) -> list[frozenset[NodeName]]:
    """Return the sets of nodes that could be the cause: in every test that hung, and in none that ran."""
    found = (frozenset(some) for some in combinations(sorted(suspects), size))
    return [some for some in found if not any(some <= nodes for nodes in good)]


def _half(possible: Sequence[frozenset[NodeName]]) -> frozenset[NodeName]:
    """Return nodes that contain about half of the possible causes, chosen greedily."""
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
