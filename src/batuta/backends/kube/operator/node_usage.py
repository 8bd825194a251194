"""What the World is told of how busy GPUs are: what the agents write on their nodes, when it is news."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.binder.usage import STALE_S
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId

AGAIN_S: Final = 300.0
"""What stays the same is told again after so long: the World forgets what it has not heard for a while."""
_STEP: Final = 0.1
_IDLE: Final = 0.02
_MOST_GPUS: Final = 1024
_NOBODY: Final[Mapping[JobId, float]] = {}


class UsageTeller:
    """Remembers what it told of each node. An agent writes every 30 s; the journal need not have it all.

    Of a node whose agent has fallen silent it is told that nothing is known any more.
    """

    def __init__(self) -> None:
        self._told: dict[NodeName, ev.GpusUsed] = {}
        self._reported_s: dict[NodeName, float] = {}
        """Nodes of which something is known, and when their agents last reported."""

    def tell(
        self,
        node: NodeName,
        annotations: Mapping[str, str],
        now_s: float,
        sharers: Mapping[JobId, float] = _NOBODY,
    ) -> Iterator[ev.GpusUsed]:
        """The event that a node's annotations are worth; none for what cannot be read or is no news.

        `sharers`: what jobs that share a card had of it. Of the card alone nobody can tell who used it.
        """
        found = _read(annotations.get(names.UTILISATION, ""))
        if found is None or now_s - found.time > STALE_S:
            return
        # A report from the future comes from a clock that is wrong.
        time_s = min(found.time, now_s)
        self._reported_s[node] = time_s
        news = ev.GpusUsed(time_s, node, _by_number(found), tuple(sorted(sharers.items())), cause="agent")
        before = self._told.get(node)
        if before is not None and (
            time_s <= before.time_s or (time_s - before.time_s < AGAIN_S and _same(before, news))
        ):
            return
        self._told[node] = news
        yield news

    def tell_silent(self, now_s: float) -> Iterator[ev.GpusUsed]:
        """What has to be said of nodes whose agents have not reported for too long: that nobody knows."""
        for node in [node for node, time_s in self._reported_s.items() if now_s - time_s > STALE_S]:
            del self._reported_s[node]
            self._told[node] = ev.GpusUsed(now_s, node, (), cause="agent")
            yield self._told[node]

    def silent_s(self) -> float:
        """When the next one will have been silent for too long."""
        first_s = min(self._reported_s.values(), default=math.inf)
        # The bound itself is not beyond it.
        return math.nextafter(first_s + STALE_S, math.inf)

    def forget(self, node: NodeName) -> None:
        self._told.pop(node, None)
        self._reported_s.pop(node, None)


class _Gpu(msgspec.Struct):
    """One GPU of a report."""

    index: int
    utilisation: float | None = None


class _Report(msgspec.Struct):
    """What the agent writes on a node."""

    time: float
    gpus: list[_Gpu] = []


class _Figures(msgspec.Struct):
    """How busy a pod keeps its GPUs."""

    mean: float


class _PodReport(msgspec.Struct):
    """What the agent writes on a pod."""

    utilisation: _Figures | None = None


def pod_use(annotations: Mapping[str, str]) -> float | None:
    """What a pod has of its GPU, by the word of its node's agent; None where that is not known."""
    text = annotations.get(names.POD_USAGE, "")
    try:
        found = msgspec.json.decode(text, type=_PodReport).utilisation if text else None
    except msgspec.MsgspecError:
        return None
    return None if found is None else _bounded(found.mean)


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


def _same(before: ev.GpusUsed, now: ev.GpusUsed) -> bool:
    """Whether nobody would decide otherwise: small steps do not matter, but none at all does."""
    jobs, others = dict(before.jobs), dict(now.jobs)
    return (
        len(before.gpus) == len(now.gpus)
        and jobs.keys() == others.keys()
        and all(map(_alike, before.gpus, now.gpus))
        and all(_alike(used, others[job]) for job, used in jobs.items())
    )


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) < _STEP and (one <= _IDLE) is (other <= _IDLE)
