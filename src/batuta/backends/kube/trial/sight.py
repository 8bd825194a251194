"""What a cluster shows of a trial run beside its speed: how its GPUs are used, and its last words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import msgspec

from batuta.backends.kube import names, objects
from batuta.core.cluster import NodeName, Placement
from batuta.engine.trials.reading import Look, Seen


class _Gpu(msgspec.Struct, rename="camel"):
    """One GPU of an agent's report."""

    index: int
    utilisation: float | None = None
    memory_used_mib: float | None = None


class _Report(msgspec.Struct):
    """What an agent writes on its node."""

    time: float
    gpus: list[_Gpu] = []


class RunSight:
    """All that was seen of one run. An operator that comes later sees what comes later."""

    def __init__(self, since_s: float) -> None:
        """Reports of a time before `since_s` are about whoever had the GPUs then, or about its loading."""
        self.seen = Seen()
        self._since_s = since_s
        self._last_s: dict[NodeName, float] = {}
        """Of the last report of each node that was taken in: agents report when they like."""

    def look(self, placement: Placement, nodes: Mapping[str, objects.Node]) -> None:
        """Takes in what the agents of its nodes have reported since the last look."""
        reports = {node: _report(nodes.get(node)) for node in placement.nodes}
        new = {
            node: report
            for node, report in reports.items()
            if report is not None and report.time > self._last_s.get(node, self._since_s)
        }
        if not new:
            return
        self._last_s |= {node: report.time for node, report in new.items()}
        spans = (span for span in placement.spans if span.node in new)
        self.seen.add(_summed(gpu for span in spans for gpu in new[span.node].gpus if gpu.index in span.gpus))


def _summed(figures: Iterable[_Gpu]) -> Look:
    figures = tuple(figures)
    memory = [one.memory_used_mib for one in figures if one.memory_used_mib is not None]
    busy = [min(max(one.utilisation, 0.0), 1.0) for one in figures if one.utilisation is not None]
    return Look(round(max(memory)) if memory else None, fmean(busy) if busy else None)


def _report(node: objects.Node | None) -> _Report | None:
    text = "" if node is None else node.metadata.annotations.get(names.UTILISATION, "")
    try:
        return msgspec.json.decode(text, type=_Report) if text else None
    except msgspec.MsgspecError:
        return None
