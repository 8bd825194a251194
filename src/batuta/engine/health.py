"""The events that bring the World in line with the health of GPUs and nodes, and what is shown of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from batuta.core import event as ev
from batuta.core.arrays import bits
from batuta.core.cluster import NodeName
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import BY_HEALTH, WHOLE_NODE, Alert, Cordon, Record, RestartJob, Target
from batuta.core.health_rules import Action, Source
from batuta.core.job import DesiredState, JobId
from batuta.core.job_table import Phase
from batuta.core.world import World

GpuPlace: TypeAlias = tuple[NodeName, int]


def gpus_out(book: HealthStateMachine) -> dict[GpuPlace, str]:
    """All GPUs that jobs may not have, and why: those of a node that is out as a whole too."""
    found: dict[GpuPlace, str] = {}
    for target, reason in sorted(book.out.items(), reverse=True):
        whole = target.gpu == WHOLE_NODE
        gpus = range(book.members[target.node].gpus) if whole else (target.gpu,)
        for gpu in gpus:
            found.setdefault((target.node, gpu), reason)
    return found


def levelling(world: World, out: Mapping[GpuPlace, str], now_s: float) -> Iterator[ev.Event]:
    """Yield the events that bring the World's GPUs to what is wanted, from whatever they are.

    A node that is ill as a whole is one whose GPUs all are: its cordon belongs to people, so the two never
    meet. Jobs that lose a part of their GPUs are made whole elsewhere by the next plan.
    """
    index = world.nodes.index
    for i in sorted({index[node] for node, _ in out if node in index} | {i for i, gpus in world.ill.items() if gpus}):
        node, ill = world.nodes.nodes[i], world.ill.get(i, 0)
        for gpu in range(node.gpus):
            reason = out.get((node.name, gpu))
            if reason is not None and not ill >> gpu & 1:
                yield ev.GpuFailed(now_s, node.name, gpu, reason=reason)
            elif reason is None and ill >> gpu & 1:
                yield ev.GpuRepaired(now_s, node.name, gpu)


def restarts(world: World, orders: Iterable[tuple[RestartJob, float]], now_s: float) -> Iterator[ev.Event]:
    """Yield the events that restart jobs that run since before the reason for it, which `orders` name."""
    jobs, done = world.jobs, set[JobId]()
    for order, found_s in orders:
        if order.job in done or order.job not in jobs:
            continue
        row = jobs.row(order.job)
        runs = jobs.phase_of(row) is Phase.RUNNING and jobs.wish_of(row) is DesiredState.RUN
        begun_s = np.fmax(jobs.last_start_s[row], jobs.last_resize_s[row])
        if runs and begun_s < found_s:
            done.add(order.job)
            yield ev.JobWished(now_s, order.job, DesiredState.EVICT, cause=BY_HEALTH)


def jobs_on(world: World, node: NodeName, gpu: int | None) -> tuple[JobId, ...]:
    """The jobs that have a GPU, or any GPU of a node."""
    return tuple(
        job
        for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
        if placement is not None
        and any(span.node == node and (gpu is None or gpu in span.gpus) for span in placement.spans)
    )


def idle_gpus(world: World) -> set[Target]:
    layout = world.layout
    return {Target(node.name, gpu) for i, node in enumerate(world.nodes.nodes) for gpu in bits(layout.free[i])}


def told_of(book: HealthStateMachine) -> dict[Target, tuple[str, str]]:
    """State and reason of all that people are told of when it changes."""
    alerts = {order.target: order.reason for order in book.standing() if isinstance(order, Alert)}
    return {
        target: ("alert", alerts[target]) if target in alerts else (record.state.value, record.reason)
        for target, record in book.records.items()
        if record.since_s or record.reason
    }


def news(
    before: Mapping[Target, tuple[str, str]], now: Mapping[Target, tuple[str, str]], now_s: float
) -> list[ev.HealthChanged]:
    """What people should hear of: another state, or the same for another reason."""
    return [
        ev.HealthChanged(now_s, target.node, None if target.gpu == WHOLE_NODE else target.gpu, state, reason)
        for target, (state, reason) in sorted(now.items())
        if before.get(target) != (state, reason)
    ]


@dataclass(frozen=True, slots=True)
class HealthSeen:
    """The health of nodes at one moment. Records are copies."""

    records: Mapping[Target, Record] = field(default_factory=dict)
    cordons: Mapping[NodeName, Cordon] = field(default_factory=dict)  # nodes that humans have cordoned
    alerts: Sequence[Alert] = ()
    found: Mapping[tuple[Source, Action], int] = field(default_factory=dict)  # since the start


class NodeHealth(Protocol):
    """Who looks after the health of nodes. May be used from any thread."""

    def seen(self) -> HealthSeen: ...

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        """Note that a human has repaired a node or a GPU. ValueError when it was not broken."""

    def cordoned(self, node: NodeName, who: str) -> None:
        """Note that a human has cordoned a node."""

    def uncordoned(self, node: NodeName, who: str) -> None:
        """Note that a human has uncordoned a node: where no cordon was, that overrules health."""


class NoNodeHealth:
    """For servers that do not look after the health of nodes."""

    def seen(self) -> HealthSeen:
        return HealthSeen()

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        raise ValueError("this server does not look after the health of nodes")

    def cordoned(self, node: NodeName, who: str) -> None:
        pass

    def uncordoned(self, node: NodeName, who: str) -> None:
        pass
