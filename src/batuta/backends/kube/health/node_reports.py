"""Feed the health state machine with what nodes and pods report.

Sources are the agent's notes and figures, cordons and repairs by administrators, node conditions, reboots,
and the termination messages of failed pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.binder.gpu_table import gpus_of_node
from batuta.backends.kube.bounded_text import read_gpus
from batuta.backends.kube.health.annotations import condition_lines, read_figures, read_notes, read_seen, records_on
from batuta.backends.kube.health.state import HealthState
from batuta.backends.kube.health.taints import cordoned_by, cordoned_s, has_removed_taint, mended
from batuta.backends.kube.jobtypes.status import termination_message
from batuta.backends.kube.operator.context import JobReconciler
from batuta.backends.kube.operator.gangs import gang_of
from batuta.backends.kube.operator.nodes import read_node
from batuta.core.cluster import NodeName, Span
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, Order, State, Target
from batuta.core.health_rules import Action, Finding, Source
from batuta.core.health_signals import Figure, Seen, findings_in, news
from batuta.core.job import JobId

_log = logging.getLogger(__name__)
_MOST_HEEDED: Final = 1_000
_LONGEST: Final = 1_000


@dataclass(frozen=True, slots=True)
class JobsOnNodes:
    """The jobs that the reconciler knows, by node. For the engine's thread."""

    _runs: Mapping[JobId, JobReconciler]
    _pods: Mapping[str, objects.Pod]

    def named(self, owners: Iterable[str]) -> tuple[JobId, ...]:
        """The jobs that an agent means by `namespace/job/pod`; unknown ones are left out."""
        found: dict[JobId, None] = {}
        for owner in owners:
            namespace, _, rest = owner.partition("/")
            name, _, pod_name = rest.partition("/")
            pod = self._pods.get(f"{namespace}/{pod_name}")
            gang = str(gang_of(pod)) if pod is not None else ""
            job = next((one for one in (f"{namespace}/{name}", gang) if one in self._runs), None)
            if job is not None:
                found[job] = None
        return tuple(found)

    def owner(self, pod: objects.Pod) -> JobId | None:
        name = pod.metadata.labels.get(names.JOB_NAME, "")
        job = f"{pod.metadata.namespace}/{name}" if name else str(gang_of(pod))
        return job if job in self._runs else None

    def on(self, node: NodeName, gpu: int | None) -> tuple[JobId, ...]:
        """The jobs that have a GPU by the World's word; None: any of the node's."""
        return tuple(
            job
            for job, run in self._runs.items()
            for span in (run.wanted.spans if run.wanted is not None else ())
            if span.node == node and (gpu is None or gpu in span.gpus)
        )

    def on_nodes(self, nodes: Collection[NodeName]) -> Iterator[JobReconciler]:
        """The runs that have a place on one of these nodes, and can have another one."""
        for run in self._runs.values():
            if run.wanted is not None and any(one in nodes for one in run.wanted.nodes) and can_move(run):
                yield run

    def movable(self, job: JobId) -> JobReconciler | None:
        """A job that can begin again; None if it is gone, or if no controller would recreate its pods."""
        run = self._runs.get(job)
        return run if run is not None and can_move(run) else None


def can_move(run: JobReconciler) -> bool:
    """Whether its pods are recreated after deletion: a pod without an owner would just be gone."""
    return all(any(owner.controller for owner in pod.metadata.owner_references) for pod in run.pods().values())


def living_pods(run: JobReconciler, most: int) -> tuple[str, ...]:
    """The uids of pods that go on, and no more of them than are needed to know them again."""
    uids = (pod.metadata.uid for pod in run.pods().values() if not is_over(pod) and not pod.metadata.deletion_timestamp)
    return tuple(sorted(uids)[:most])


@dataclass(frozen=True, slots=True)
class NodeReportReader:
    """Reads nodes as they are now, so it does not matter how often, or what was missed in between."""

    _jobs_on_nodes: JobsOnNodes
    _gpu_resources: Sequence[str]
    _pool_label: str
    _counted: Callable[[Finding], None]  # is told of each finding that goes to the book

    def hear(self, memory: HealthState, node: objects.Node, now_s: float) -> tuple[bool, list[Order]]:
        """Whether anything was news, and what the book orders because of it."""
        if not self._knows(memory, node):
            return False, []
        orders: list[Order] = []
        is_news = False
        for hear in (self._people, self._mended, self._notes, self._figures, self._conditions, self._boot):
            is_news |= hear(memory, node, now_s, orders)
        return is_news, orders

    def _knows(self, memory: HealthState, node: objects.Node) -> bool:
        """Enters a node with GPUs into the book; one that offers none at the moment stays as it was."""
        name, book = node.metadata.name, memory.book
        known, found = book.members.get(name), read_node(node, None, self._gpu_resources)
        if found is None or not found.gpus:
            return known is not None
        pool = node.metadata.labels.get(self._pool_label, "") if self._pool_label else found.gpu_type
        # Capacity counts, and never shrinks: a card that its plugin withholds is still that card.
        gpus = max(len(gpus_of_node(node)), found.gpus, 0 if known is None else known.gpus)
        if known != (gpus, pool):
            book.add_node(name, gpus, pool)
        return True

    def _people(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        name, book = node.metadata.name, memory.book
        is_news = False
        by, known = cordoned_by(node), book.cordons.get(name)
        if by and (known is None or by != known.who):
            book.cordoned(name, by, cordoned_s(node) or now_s)
            is_news = True
        elif known is not None and not by:
            orders += book.uncordoned(name, known.who, now_s)
            is_news = True
        record = book.records.get(Target(name))
        if record is not None and record.is_out and has_removed_taint(node):
            # Their own cordon, should there be one, is another matter and stays.
            cordon = book.cordons.pop(name, None)
            orders += book.uncordoned(name, "kubectl taint", now_s)
            if cordon is not None:
                book.cordons[name] = cordon
            is_news = True
        return is_news

    def _mended(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        said, name = mended(node), node.metadata.name
        if said is None:
            return False
        if said.unclear:
            _log.warning("node %s: %s=%s says nothing: write node, gpu-3 or all", name, names.MENDED, said.unclear)
            return False
        ill = _ill_on(memory.book, name)
        for target in ill:
            if said.everything or target.gpu in said.gpus:
                orders += memory.book.mended(target, now_s, "kubectl annotate")
        return bool(ill)

    def _boot(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """A node that needed a reboot and had one is repaired, whatever caused the reboot."""
        name, boot = node.metadata.name, node.status.node_info.boot_id
        records = memory.book.records
        ill = [one for one in _ill_on(memory.book, name) if records[one].remedy is Action.REBOOT]
        if not ill or not boot:
            return memory.boots.pop(name, None) is not None
        before = memory.boots.get(name)
        if before is None:
            memory.boots[name] = boot
            return True
        if before == boot:
            return False
        del memory.boots[name]
        for target in ill:
            orders += memory.book.mended(target, now_s, "a reboot")
        return True

    def _notes(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        name, annotations = node.metadata.name, node.metadata.annotations
        # What stands on the node was written after it was remembered: should the memory be lost, it holds.
        last = max(memory.seen.get(name, 0), read_seen(annotations.get(names.HEALTH_SEEN, "")))
        notes = [note for note in read_notes(annotations.get(names.HEALTH_NOTES, "")) if note.n > last]
        for note in notes:
            jobs = self._jobs_on_nodes.named(note.owners) or self._jobs_on_nodes.on(name, note.gpu)
            time_s, source = min(note.time, now_s), Source(note.source)
            finding = Finding(time_s, name, source, note.code, note.text, note.gpu, jobs)
            self._counted(finding)
            orders += memory.book.found(finding)
            memory.seen[name] = note.n
        return bool(notes)

    def _figures(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """What NVML says that is new since it was last heard; nothing of it counts twice."""
        name = node.metadata.name
        told = read_figures(node.metadata.annotations.get(names.HEALTH_FIGURES, ""))
        if not told:
            return False
        known = memory.figures.get(name)
        seen: Seen = {Target(name, gpu): dict(values) for gpu, values in (known or {}).items()}
        if known is not None:
            for gpu in told:
                # What is not remembered of a node that is known was 0: errors while no operator led are news.
                seen.setdefault(Target(name, gpu), {}).setdefault(Figure.ECC_UNCORRECTED, 0)
        found = list(news(memory.book.rules, seen, {(name, gpu): told[gpu] for gpu in told}, now_s))
        memory.figures[name] = {target.gpu: values for target, values in seen.items()}
        for one in found:
            finding = replace(one, jobs=self._jobs_on_nodes.on(name, one.gpu))
            self._counted(finding)
            orders += memory.book.found(finding)
        return bool(found) or known is None

    def _conditions(self, memory: HealthState, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """Conditions that a rule knows, each once for as long as it holds."""
        name = node.metadata.name
        known = memory.conditions.get(name, {})
        seen: dict[str, str] = {}
        for kind, since, line in condition_lines(node):
            if memory.book.rules.find(Source.LOG, 0, line) is None:
                continue
            seen[kind] = since
            if known.get(kind) != since:
                jobs = self._jobs_on_nodes.on(name, None)
                finding = Finding(now_s, name, Source.LOG, text=line, jobs=jobs)
                self._counted(finding)
                orders += memory.book.found(finding)
        memory.conditions[name] = seen
        if not seen:
            del memory.conditions[name]
        return seen != known


def _ill_on(book: HealthStateMachine, node: NodeName) -> list[Target]:
    member = book.members.get(node)
    places = (Target(node, gpu) for gpu in range(WHOLE_NODE, 0 if member is None else member.gpus))
    return [one for one in places if one in book.records and book.records[one].state is State.ILL]


def adopt(memory: HealthState, node: objects.Node) -> None:
    for gpu, record in records_on(node.metadata.annotations).items():
        if not record.state.is_in_service:
            memory.book.records.setdefault(Target(node.metadata.name, gpu), record)


@dataclass(slots=True)
class TerminationMessages:
    """Told of pods, it listens once to each that has failed. For the engine's thread.

    A pod is a tenant's and may say anything: it takes no GPU from others.
    """

    _jobs_on_nodes: JobsOnNodes
    _counted: Callable[[Finding], None]  # is told of each finding that goes to the book
    _failed: list[objects.Pod] = field(default_factory=list)

    def see(self, pod: objects.Pod) -> bool:
        speaks = pod.status.phase == "Failed" and bool(pod.spec.node_name) and bool(termination_message(pod))
        if speaks:
            self._failed.append(pod)
        return speaks

    def hear(self, memory: HealthState, now_s: float) -> list[Order]:
        orders: list[Order] = []
        failed, self._failed = self._failed, []
        for pod in failed:
            job, uid = self._jobs_on_nodes.owner(pod), pod.metadata.uid
            if job is None or uid in memory.heeded:
                continue
            worker = Span(pod.spec.node_name, read_gpus(pod.metadata.annotations))
            lines = [line[:_LONGEST] for line in termination_message(pod).splitlines()]
            for finding in findings_in(memory.book.rules, lines, worker, job, now_s, is_hearsay=True):
                memory.heeded[uid] = now_s
                self._counted(finding)
                orders += memory.book.found(finding)
        memory.heeded = dict(list(memory.heeded.items())[-_MOST_HEEDED:])
        return orders
