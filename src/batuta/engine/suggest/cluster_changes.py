"""What could change in the cluster: jobs that end, nodes that come back or are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from batuta.core.bitsets import bits
from batuta.core.cluster import Node
from batuta.core.event import Event, JobEnded, NodeAdded, NodeReturned, NodeUncordoned
from batuta.core.job import JobState
from batuta.engine.suggest.suggestion import Facts, Remedy, Suggestion
from batuta.engine.suggest.trials import Trials, first_that_works

_NEXT = 8
"""So many of those that end next are tried one by one."""
_NODES = 4
_MOST_NODES = 64


def jobs_that_end(trials: Trials) -> Iterator[Suggestion]:
    """The next job whose end makes enough room; if that of none does, as many of the next as it takes."""
    jobs, now_s = trials.world.jobs, trials.now_s
    rows = np.flatnonzero(jobs.i("gpus") > 0)
    if not rows.size:
        return
    rate = jobs.f("rate")[rows]
    elapsed_s = now_s - jobs.f("anchor_s")[rows]
    left_s = np.maximum(jobs.f("remaining_s")[rows] - rate * elapsed_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends_s = np.where(rate > 0, left_s / rate, np.inf)
    order = np.argsort(ends_s, kind="stable")
    ids = [jobs.ids[row] for row in rows[order].tolist()]
    within_s = [float(s) if np.isfinite(s) else None for s in ends_s[order]]
    ended: list[Event] = [JobEnded(now_s, one, JobState.SUCCEEDED, cause="suggestion") for one in ids]
    for n in range(min(_NEXT, len(ids))):
        alone = trials.suggestion(Remedy.JOB_ENDS, (("job", ids[n]),), [ended[n]], within_s[n])
        if alone is not None:
            yield alone
            return

    def try_nth(n: int) -> Suggestion | None:
        facts: Facts = (("jobs", n), ("last", ids[n - 1]))
        return trials.suggestion(Remedy.JOBS_END, facts, ended[:n], within_s[n - 1])

    found = first_that_works(len(ids), try_nth)
    if found is not None:
        yield found


def nodes_back(trials: Trials) -> Iterator[Suggestion]:
    """Nodes that are out of service."""
    world, now_s = trials.world, trials.now_s
    for i in list(bits(world.cordoned | world.lost))[:_NODES]:
        name = world.nodes.nodes[i].name
        events: list[Event] = []
        if world.lost >> i & 1:
            events.append(NodeReturned(now_s, name, cause="suggestion"))
        if world.cordoned >> i & 1:
            events.append(NodeUncordoned(now_s, name, cause="suggestion"))
        found = trials.suggestion(Remedy.NODE_BACK, (("node", name),), events)
        if found is not None:
            yield found


def more_nodes(trials: Trials) -> Iterator[Suggestion]:
    """Nodes like the usual ones; of the type that needs the fewest."""
    kinds = Counter(_kind(node) for node in trials.world.nodes.nodes)
    best: Suggestion | None = None
    for kind, _ in kinds.most_common(_NODES):
        like = next(node for node in trials.world.nodes.nodes if _kind(node) == kind)
        most = min(_MOST_NODES, -(-trials.job.min // like.gpus))
        found = first_that_works(most, lambda n, like=like: _with_nodes(trials, like, n))  # type: ignore[misc]
        if found is not None and (best is None or len(found.events) < len(best.events)):
            best = found
    if best is not None:
        yield best


def _kind(node: Node) -> tuple[str, int, tuple[tuple[str, str], ...], tuple[str, ...]]:
    own = {"kubernetes.io/hostname", node.name}
    labels = tuple((key, value) for key, value in node.labels if key not in own and value not in own)
    return node.gpu_type, node.gpus, labels, node.taints


def _with_nodes(trials: Trials, like: Node, count: int) -> Suggestion | None:
    facts: Facts = (("nodes", count), ("like", like.name))
    events = [
        NodeAdded(trials.now_s, replace(like, name=f"{like.name}+{n}"), cause="suggestion")
        for n in range(1, count + 1)
    ]
    return trials.suggestion(Remedy.MORE_NODES, facts, events)
