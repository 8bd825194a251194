"""Rules tried on a log: what would be done about each line, without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from batuta.core.health import HealthBook
from batuta.core.health_record import WHOLE_NODE, BurnIn, Mend, Order, RestartJob, TakeOut, Target
from batuta.core.health_rules import Action, Finding, HealthRules, Source
from batuta.core.health_verdict import Verdict, classify
from batuta.gpu.health.kernel_line import LONGEST, parse_line, stamp_s

_NODE = "node"


@dataclass(frozen=True, slots=True)
class Tried:
    """One line that a rule knows, or that tells of an error that none knows."""

    line: int
    what: str
    """`Xid 79`"""
    where: str
    """The address of the GPU or switch; empty: not known."""
    means: str
    action: Action
    done: str
    """What would be done, in words."""


def try_rules(rules: HealthRules, lines: Iterable[str]) -> Iterator[Tried]:
    """Follows a log from its beginning, as if it were of one node on which nobody mends anything.

    A process counts as a job of its own, for logs know no jobs. The guard rail is open: one node says nothing
    about its pool. Lines without a time count as written when the one before was.
    """
    run = _DryRun(replace(rules, limits=replace(rules.limits, share=1.0)))
    for number, line in enumerate(lines, start=1):
        tried = run.see(number, line.rstrip("\r\n")[:LONGEST])
        if tried is not None:
            yield tried


class _DryRun:
    def __init__(self, rules: HealthRules) -> None:
        self._rules, self._book = rules, HealthBook(rules)
        self._gpus: dict[str, int] = {}
        self._now_s = 0.0

    def see(self, number: int, line: str) -> Tried | None:
        stamp = stamp_s(line)
        self._now_s = self._now_s if stamp is None else stamp
        finding, where = self._finding(line)
        if finding.source is Source.LOG and self._rules.find(Source.LOG, 0, line) is None:
            return None
        self._book.add_node(_NODE, max(1, len(self._gpus)))
        here = Target(_NODE, WHOLE_NODE if finding.gpu is None else finding.gpu)
        verdict = classify(self._rules, finding, self._book.look(here).incidents)
        orders = self._book.found(finding)
        rule = verdict.rule
        means = rule.means if rule is not None else "no rule knows it"
        done = _in_words(verdict, orders, where)
        return Tried(number, finding.name, where, means, verdict.action, done)

    def _finding(self, line: str) -> tuple[Finding, str]:
        error = parse_line(line)
        if error is None:
            return Finding(self._now_s, _NODE, Source.LOG, text=line), ""
        # A switch is no GPU: what it tells is about the node.
        is_gpu = error.source is Source.XID
        gpu = self._gpus.setdefault(error.pci, len(self._gpus)) if is_gpu else None
        jobs = (f"pid {error.pid}",) if error.pid is not None else ()
        return Finding(self._now_s, _NODE, error.source, error.code, error.text, gpu, jobs), error.pci


def _in_words(verdict: Verdict, orders: list[Order], where: str) -> str:
    words = [part for order in orders if (part := _word(order, where))]
    if words:
        return ", ".join(words)
    if verdict.action is Action.IGNORE:
        return f"nothing: {verdict.note}" if verdict.note else "nothing"
    if verdict.action is Action.RESTART_JOB:
        return "restart the job that has it"
    if verdict.at_idle:
        return f"{verdict.action} when no job has it"
    return "nothing more: it is out of service"


def _word(order: Order, where: str) -> str:
    match order:
        case RestartJob(job=job):
            return f"restart the job of {job}"
        case TakeOut(target=target):
            return "take the node out" if target.gpu == WHOLE_NODE else f"take GPU {where} out"
        case Mend(remedy=remedy):
            return f"{remedy}" if remedy is not Action.REPLACE else "have somebody look"
        case BurnIn():
            return "burn in"
        case _:
            return ""
