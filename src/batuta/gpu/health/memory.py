"""What the watch over health remembers, and keeps: the book, and what it was made from, in one write."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from batuta.core.cluster import Node
from batuta.core.health import HealthBook
from batuta.core.health_figures import Seen
from batuta.core.health_memory import from_plain, to_plain
from batuta.core.health_record import RestartJob, Target
from batuta.core.health_rules import Action, HealthRules, Source
from batuta.core.job import JobId

SETTING: Final = "health"
_FORM: Final = 1
_MOST_JOBS: Final = 1_000
"""Of which is remembered how often they were restarted and how far their logs were read, the newest."""
_log = logging.getLogger(__name__)


Ordered: TypeAlias = tuple[RestartJob, float]
"""A job that is to begin again, and the time of what it is to for."""


class Texts(Protocol):
    """Where it is kept: durable when `put` returns."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...


@dataclass(slots=True)
class HealthMemory:
    """All that must be known again after a restart, so that nothing counts twice."""

    book: HealthBook
    last_note: int = 0
    """Notes of the ledger up to this number are in the book."""
    figures: Seen = field(default_factory=dict)
    """What figures of GPUs were when they were last looked at."""
    restarts: dict[JobId, list[float]] = field(default_factory=dict)
    """When jobs were restarted for errors of their own."""
    ordered: list[Ordered] = field(default_factory=list)
    """Restarts that the engine may not know of yet. One that it does know of is not done twice."""
    read: dict[str, int] = field(default_factory=dict)
    """How far logs of jobs were read, by job and rank: `7/0`."""
    found: Counter[tuple[Source, Action]] = field(default_factory=Counter)
    """Findings so far, by what was to be done about them. Not kept: counters may begin anew."""

    def may_restart(self, job: JobId, now_s: float) -> bool:
        """Whether a job may be restarted for an error of its own once more; if so, that counts."""
        limits = self.book.rules.limits
        recent = [time_s for time_s in self.restarts.get(job, ()) if now_s - time_s <= limits.within_s]
        if len(recent) >= limits.restarts:
            return False
        self.restarts.pop(job, None)
        self.restarts[job] = [*recent, now_s]
        return True

    def save(self, texts: Texts) -> None:
        """One write: a reader finds all of it, or all of what was before."""
        plain = {
            "form": _FORM,
            "book": to_plain(self.book),
            "last_note": self.last_note,
            "figures": [[node, gpu, values] for (node, gpu), values in sorted(self.figures.items())],
            "restarts": dict(list(self.restarts.items())[-_MOST_JOBS:]),
            "ordered": [
                [order.job, *order.target, order.reason, time_s]
                for order, time_s in self.ordered[-_MOST_JOBS:]
            ],
            "read": dict(list(self.read.items())[-_MOST_JOBS:]),
        }
        texts.put(SETTING, json.dumps(plain))


def recall(texts: Texts, rules: HealthRules, nodes: Sequence[Node]) -> HealthMemory:
    """What was kept, for the nodes that there are now. What cannot be read is told, and forgotten."""
    memory = HealthMemory(HealthBook(rules))
    text = texts.get(SETTING)
    if text is not None:
        try:
            memory = _memory(rules, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("what was known of the health of nodes is lost: %s", error)
    book, there = memory.book, {node.name for node in nodes}
    for gone in [name for name in book.members if name not in there]:
        book.remove_node(gone)
    for node in nodes:
        book.add_node(node.name, node.gpus, node.gpu_type)
    return memory


def _memory(rules: HealthRules, plain: dict[str, Any]) -> HealthMemory:
    if plain["form"] != _FORM:
        raise ValueError(f"it is of form {plain['form']!r}, known is {_FORM}")
    return HealthMemory(
        from_plain(rules, plain["book"]),
        int(plain["last_note"]),
        {Target(str(node), int(gpu)): dict(values) for node, gpu, values in plain["figures"]},
        {str(job): [float(time_s) for time_s in times] for job, times in plain["restarts"].items()},
        [
            (RestartJob(str(job), Target(str(node), int(gpu)), str(reason)), float(time_s))
            for job, node, gpu, reason, time_s in plain.get("ordered", ())
        ],
        {str(rank): int(offset) for rank, offset in plain["read"].items()},
    )
