"""Report nodes to the World: their presence, what other pods use of them, and how busy their GPUs are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batuta.backends.kube import objects
from batuta.backends.kube.binder.gpu_table import STALE_S
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.nodes import NodeReporter, ill_cards, is_open, is_unhealthy, read_node
from batuta.backends.kube.operator.workqueue import Changed, Written
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId

_MIB = 1 << 20
AGAIN_S: Final = 300.0
"""What stays the same is told again after so long: the World forgets what it has not heard for a while."""
_STEP: Final = 0.1
_IDLE: Final = 0.02
_ALONE: Final[Mapping[JobId, float]] = {}


class Used(NamedTuple):
    """What pods hold of a node that are no jobs of the World."""

    gpus: tuple[int, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0


@dataclass(slots=True, eq=False)
class NodeController:
    """Takes in nodes and reports of their NUMA nodes, for the binder and for the World."""

    context: ReconcileContext
    observed: ObjectCache
    reporter: NodeReporter
    gpu_resources: Sequence[str]
    told: dict[NodeName, Used]  # what the World knows of the use by others
    _doubtful: set[NodeName] = field(init=False)  # nodes of which others may use something else than the World was told

    def __post_init__(self) -> None:
        self._doubtful = set(self.told)

    def doubt(self, *nodes: NodeName) -> None:
        """Something came to nodes or went from them that is no job of the World."""
        self._doubtful.update(nodes)

    def node(self, change: Change[objects.Node], now_s: float) -> None:
        name = self.observed.note(self.observed.nodes, change)
        if change.did is ChangeType.DELETED:
            self.context.cluster.node_gone(name)
        else:
            self.context.cluster.node_set(change.object)
        self._tell(name, now_s)
        self.doubt(name)

    def topology(self, change: Change[objects.NodeResourceTopology], now_s: float) -> None:
        name = self.observed.note(self.observed.topologies, change)
        if change.did is ChangeType.DELETED:
            self.context.cluster.topology_gone(name)
        else:
            self.context.cluster.topology_set(change.object)
        self._tell(name, now_s)

    def finish_first_look(self, now_s: float) -> None:
        """Nodes of the World that were not found are gone."""
        for name in self.reporter.names():
            if name not in self.observed.nodes:
                self._tell(name, now_s)

    def tell_others(self, booked_on: Callable[[NodeName], Collection[str]], now_s: float) -> None:
        """Tells the World what it does not know yet; `booked_on` has the pods of its jobs on a node."""
        while self._doubtful:
            name = self._doubtful.pop()  # first of all: a node that cannot be told of holds up no other
            if name not in self.reporter:
                continue
            held = self.context.cluster.others(name, booked_on(name))
            used = Used(held.gpus, held.cpus_milli, held.memory_bytes // _MIB)
            if self.told.get(name, Used()) != used:
                self.told[name] = used
                self.context.say(ev.OthersUse(now_s, name, *used))

    def _tell(self, name: NodeName, now_s: float) -> None:
        node, was_there = self.observed.nodes.get(name), name in self.reporter
        found = None
        if node is not None:
            found = read_node(node, self.observed.topologies.get(name), self.gpu_resources)
        opened, ill = (False, frozenset[int]()) if node is None else (is_open(node), ill_cards(node))
        cause = "health" if node is not None and is_unhealthy(node) else "cluster"
        for event in self.reporter.tell(name, found, opened, now_s, ill, cause):
            self.context.say(event)
        if name in self.reporter and not was_there:
            self._doubtful.add(name)


class UsageReporter:
    """Remembers what it told of each node. An agent writes every 30 s; the journal need not have it all.

    Of a node whose agent has fallen silent it is told that nothing is known any more.
    """

    def __init__(self) -> None:
        self._told: dict[NodeName, ev.GpusUsed] = {}
        self._reported_s: dict[NodeName, float] = {}
        """Nodes of which something is known, and when their agents last reported."""

    def tell(self, node: objects.Node, now_s: float, sharers: Mapping[JobId, float] = _ALONE) -> Iterator[ev.GpusUsed]:
        """The event that a node's annotations are worth; none for what cannot be read or is no news.

        `sharers`: what jobs that share a card had of it. The card alone does not tell which job used it.
        """
        found, name = objects.read_usage(node), node.metadata.name
        if found is None or now_s - found.time > STALE_S:
            return
        # A report from the future comes from a clock that is wrong.
        time_s = min(found.time, now_s)
        self._reported_s[name] = time_s
        known = {one.index: one.utilisation for one in found.gpus}
        gpus = tuple(known.get(index) for index in range(max(known, default=-1) + 1))
        news = ev.GpusUsed(time_s, name, gpus, tuple(sorted(sharers.items())), cause="agent")
        before = self._told.get(name)
        if before is not None and (
            time_s <= before.time_s or (time_s - before.time_s < AGAIN_S and _same(before, news))
        ):
            return
        self._told[name] = news
        yield news

    def tell_silent(self, now_s: float) -> Iterator[ev.GpusUsed]:
        """What has to be said of nodes whose agents have not reported for too long: usage unknown."""
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


def _same(before: ev.GpusUsed, now: ev.GpusUsed) -> bool:
    """Whether no decision would differ: small steps do not matter, but none at all does."""
    jobs, others = dict(before.jobs), dict(now.jobs)
    return (
        len(before.gpus) == len(now.gpus)
        and jobs.keys() == others.keys()
        and all(map(alike, before.gpus, now.gpus))
        and all(alike(used, others[job]) for job, used in jobs.items())
    )


def alike(one: float | None, other: float | None) -> bool:
    """Whether two utilisations say the same: not where they differ by a tenth, or one of them alone is idle."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < _STEP and (one <= _IDLE) is (other <= _IDLE)


@dataclass(slots=True, eq=False)
class UsageController:
    """Takes in what agents write. For the engine's thread."""

    observed: ObjectCache
    is_told: Callable[[NodeName], bool]  # whether the World knows a node
    sharers: Callable[[NodeName, float], dict[JobId, float]]  # what jobs on a node have of cards that they share
    say: Callable[[ev.Event], None]
    _teller: UsageReporter = field(default_factory=UsageReporter)
    _changed: dict[NodeName, None] = field(default_factory=dict)

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is NODE:
            for change in changed.changes:
                name = change.object.metadata.name
                self._changed[name] = None
                if change.did is ChangeType.DELETED:
                    self._teller.forget(name)

    def heard(self, written: Written, now_s: float) -> None:
        """It writes nothing."""

    def drive(self, now_s: float) -> None:
        """After nodes and jobs had their turn: the World hears of a node before it hears how busy it is."""
        changed, self._changed = self._changed, {}
        for name in changed:
            node = self.observed.nodes.get(name)
            if node is None or not self.is_told(name):
                self._teller.forget(name)
                continue
            for event in self._teller.tell(node, now_s, self.sharers(name, now_s)):
                self.say(event)
        for event in self._teller.tell_silent(now_s):
            self.say(event)

    def next_s(self) -> float:
        return self._teller.silent_s()
