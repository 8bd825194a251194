"""What the World is told of how busy GPUs are: what the agents write on their nodes, when it is news."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from batuta.backends.kube import names
from batuta.core import event as ev
from batuta.core.cluster import NodeName

AGAIN_S: Final = 300.0
"""What stays the same is told again after so long: the World forgets what it has not heard for a while."""
_STEP: Final = 0.1
_IDLE: Final = 0.02
_MOST_GPUS: Final = 1024


class UsageTeller:
    """Remembers what it told of each node. An agent writes every 30 s; the journal need not have it all."""

    def __init__(self) -> None:
        self._told: dict[NodeName, ev.GpusUsed] = {}

    def tell(self, node: NodeName, annotations: Mapping[str, str], now_s: float) -> Iterator[ev.GpusUsed]:
        """The event that a node's annotations are worth; none for what cannot be read or is no news."""
        found = _read(annotations.get(names.UTILISATION, ""))
        if found is None:
            return
        before = self._told.get(node)
        # A report from the future comes from a clock that is wrong.
        time_s = min(found.time, now_s)
        news = ev.GpusUsed(time_s, node, _by_number(found), cause="agent")
        if before is not None and (
            time_s <= before.time_s or (time_s - before.time_s < AGAIN_S and _same(before.gpus, news.gpus))
        ):
            return
        self._told[node] = news
        yield news

    def forget(self, node: NodeName) -> None:
        self._told.pop(node, None)


class _Gpu(msgspec.Struct):
    """One GPU of a report."""

    index: int
    utilisation: float | None = None


class _Report(msgspec.Struct):
    """What the agent writes."""

    time: float
    gpus: list[_Gpu] = []


def _read(text: str) -> _Report | None:
    try:
        return msgspec.json.decode(text, type=_Report) if text else None
    except msgspec.MsgspecError:
        return None


def _by_number(report: _Report) -> tuple[float | None, ...]:
    known = {one.index: one.utilisation for one in report.gpus if 0 <= one.index < _MOST_GPUS}
    return tuple(_bounded(known.get(index)) for index in range(max(known, default=-1) + 1))


def _bounded(value: float | None) -> float | None:
    return None if value is None else min(max(value, 0.0), 1.0)


def _same(before: tuple[float | None, ...], now: tuple[float | None, ...]) -> bool:
    """Whether nobody would decide otherwise: small steps do not matter, but none at all does."""
    return len(before) == len(now) and all(map(_alike, before, now))


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) < _STEP and (one <= _IDLE) is (other <= _IDLE)
