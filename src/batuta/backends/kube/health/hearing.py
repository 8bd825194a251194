"""Tells the book what a node says: its agent's notes and figures, what people did, conditions, reboots."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.card_facts import cards_of
from batuta.backends.kube.health import people
from batuta.backends.kube.health.condition_lines import condition_lines
from batuta.backends.kube.health.memory import Memory
from batuta.backends.kube.health.notes import NodeNote, read_notes, read_seen
from batuta.backends.kube.health.shown import records_on
from batuta.backends.kube.health.tenants import Tenants
from batuta.backends.kube.health.told_figures import read_figures
from batuta.backends.kube.operator.nodes import read_node
from batuta.core.cluster import NodeName
from batuta.core.health import HealthBook
from batuta.core.health_figures import Figure, Seen, news
from batuta.core.health_record import WHOLE_NODE, Order, State, Target
from batuta.core.health_rules import Action, Finding, Source

_log = logging.getLogger(__name__)


class Hearing:
    """Reads nodes as they are now, so it does not matter how often, or what was missed in between."""

    def __init__(
        self,
        tenants: Tenants,
        gpu_resources: Sequence[str],
        pool_label: str,
        counted: Callable[[Finding], None],
    ) -> None:
        """`counted` is told of each finding that goes to the book."""
        self._tenants = tenants
        self._gpu_resources = tuple(gpu_resources)
        self._pool_label = pool_label
        self._counted = counted

    def hear(self, memory: Memory, node: objects.Node, now_s: float) -> tuple[bool, list[Order]]:
        """Whether anything was news, and what the book orders because of it."""
        if not self._knows(memory, node):
            return False, []
        orders: list[Order] = []
        is_news = self._hear_people(memory, node, now_s, orders)
        is_news |= self._hear_notes(memory, node, now_s, orders)
        is_news |= self._hear_figures(memory, node, now_s, orders)
        is_news |= self._hear_conditions(memory, node, now_s, orders)
        is_news |= self._hear_boot(memory, node, now_s, orders)
        return is_news, orders

    def _knows(self, memory: Memory, node: objects.Node) -> bool:
        """Enters a node with GPUs into the book; one that offers none at the moment stays as it was."""
        name, book = node.metadata.name, memory.book
        known, found = book.members.get(name), read_node(node, None, self._gpu_resources)
        if found is None:
            return known is not None
        pool = node.metadata.labels.get(self._pool_label, "") if self._pool_label else found.gpu_type
        # Capacity counts, and never shrinks: a card that its plugin withholds is still that card.
        gpus = max(len(cards_of(node)), found.gpus, 0 if known is None else known.gpus)
        if known != (gpus, pool):
            book.add_node(name, gpus, pool)
        return True

    # ------------------------------------------------------------------------------------------------ people

    def _hear_people(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        name, book = node.metadata.name, memory.book
        is_news = False
        by, known = people.cordoned_by(node), book.cordons.get(name)
        if by and (known is None or by != known.who):
            book.cordoned(name, by, people.cordoned_s(node) or now_s)
            is_news = True
        elif known is not None and not by:
            orders += book.uncordoned(name, known.who, now_s)
            is_news = True
        record = book.records.get(Target(name))
        if record is not None and record.is_out and people.has_taken_taint_off(node):
            # Their own cordon, should there be one, is another matter and stays.
            cordon = book.cordons.pop(name, None)
            orders += book.uncordoned(name, "kubectl taint", now_s)
            if cordon is not None:
                book.cordons[name] = cordon
            is_news = True
        return self._hear_mended(memory, node, now_s, orders) or is_news

    def _hear_mended(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        said, name = people.mended(node), node.metadata.name
        if said is None:
            return False
        if said.unclear:
            _log.warning(
                "node %s: %s=%s says nothing: write node, gpu-3 or all", name, names.MENDED, said.unclear
            )
            return False
        ill = _ill_on(memory.book, name)
        for target in ill:
            if said.everything or target.gpu in said.gpus:
                orders += memory.book.mended(target, now_s, "kubectl annotate")
        return bool(ill)

    def _hear_boot(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """A node that was to be rebooted and was is mended, whoever did it."""
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

    # ---------------------------------------------------------------------------------------------- findings

    def _hear_notes(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        name, annotations = node.metadata.name, node.metadata.annotations
        # What stands on the node was written after it was remembered: should the memory be lost, it holds.
        last = max(memory.seen.get(name, 0), read_seen(annotations.get(names.HEALTH_SEEN, "")))
        notes = [note for note in read_notes(annotations.get(names.HEALTH_NOTES, "")) if note.n > last]
        for note in notes:
            finding = self._finding(name, note, now_s)
            self._counted(finding)
            orders += memory.book.found(finding)
            memory.seen[name] = note.n
        return bool(notes)

    def _finding(self, node: NodeName, note: NodeNote, now_s: float) -> Finding:
        jobs = self._tenants.named(note.owners) or self._tenants.on(node, note.gpu)
        source = Source(note.source)
        return Finding(min(note.time, now_s), node, source, note.code, note.text, note.gpu, jobs)

    def _hear_figures(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """What NVML says that is new since it was last heard; nothing of it counts twice."""
        name = node.metadata.name
        told = read_figures(node.metadata.annotations.get(names.HEALTH_FIGURES, ""))
        if not told:
            return False
        known = memory.figures.get(name)
        seen: Seen = {Target(name, gpu): dict(values) for gpu, values in (known or {}).items()}
        if known is not None:
            for gpu in told:
                # What is not remembered of a node that is known was 0: errors while nobody led are news.
                seen.setdefault(Target(name, gpu), {}).setdefault(Figure.ECC_UNCORRECTED, 0)
        found = list(news(memory.book.rules, seen, {(name, gpu): told[gpu] for gpu in told}, now_s))
        memory.figures[name] = {target.gpu: values for target, values in seen.items()}
        for one in found:
            finding = replace(one, jobs=self._tenants.on(name, one.gpu))
            self._counted(finding)
            orders += memory.book.found(finding)
        return bool(found) or known is None

    def _hear_conditions(self, memory: Memory, node: objects.Node, now_s: float, orders: list[Order]) -> bool:
        """Conditions that a rule knows, each once for as long as it holds."""
        name = node.metadata.name
        known = memory.conditions.get(name, {})
        seen: dict[str, str] = {}
        for kind, since, line in condition_lines(node):
            if memory.book.rules.find(Source.LOG, 0, line) is None:
                continue
            seen[kind] = since
            if known.get(kind) != since:
                jobs = self._tenants.on(name, None)
                finding = Finding(now_s, name, Source.LOG, text=line, jobs=jobs)
                self._counted(finding)
                orders += memory.book.found(finding)
        if seen == known:
            return False
        if seen:
            memory.conditions[name] = seen
        else:
            memory.conditions.pop(name, None)
        return True


def _ill_on(book: HealthBook, node: NodeName) -> list[Target]:
    member = book.members.get(node)
    places = (Target(node, gpu) for gpu in range(WHOLE_NODE, 0 if member is None else member.gpus))
    return [one for one in places if one in book.records and book.records[one].state is State.ILL]


def adopt(memory: Memory, node: objects.Node) -> None:
    """Takes over from a node what it says of itself, where whoever wrote it left no memory behind."""
    for gpu, record in records_on(node.metadata.annotations).items():
        if not record.state.is_in_service:
            memory.book.records.setdefault(Target(node.metadata.name, gpu), record)
