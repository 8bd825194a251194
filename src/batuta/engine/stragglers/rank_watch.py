"""Watches the ranks of one job by their reports: which are slower than the others, and whether none goes on.

Every backend that hears reports uses it. Ranks are processes; nodes are found by the replica of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.prediction.hang import HangMeter, HangReport, HangRules
from batuta.prediction.straggler import RankRounds, StragglerDetector, StragglerReport, StragglerRules
from batuta.spec.progress import ProgressReport
from batuta.spec.task_resources import RankSettings


class StragglerAction(StrEnum):
    """What is done about slow ranks: with MOVE they are reported, and the job leaves their node when that pays."""

    MOVE = "move"
    REPORT = "report"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RankRules:
    """When ranks hold a job up, and what follows."""

    action: StragglerAction = StragglerAction.MOVE
    straggler: StragglerRules = field(default_factory=StragglerRules)
    hang: HangRules = field(default_factory=HangRules)

    def for_job(self, wishes: RankSettings) -> RankRules:
        """The same with what a job wants for itself."""
        hang_s = self.hang.after_s if wishes.hang_after_s is None else wishes.hang_after_s
        action = StragglerAction(wishes.stragglers) if wishes.stragglers else self.action
        return replace(self, action=action, hang=replace(self.hang, after_s=hang_s))


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A job is held up on the nodes of its gang."""

    job: JobId
    found: StragglerReport | HangReport
    nodes: tuple[NodeName, ...]  # where the ranks are that are to blame; empty when the cause is unknown
    gang: frozenset[NodeName]
    may_move: bool = True  # whether something may be done about it


class RankWatch:
    """Told of runs and reports, it says what holds the job up. Its state is some numbers per rank."""

    def __init__(self, job: JobId, rules: RankRules) -> None:
        self.is_hung = False  # the run that goes on hangs, as it was told: nothing can be expected of it
        self._job = job
        self._rules = rules
        self._hang = HangMeter(rules.hang)
        self.began((), ())

    def began(self, places: Sequence[NodeName], gang: Iterable[NodeName], run: int | None = None) -> None:
        """A run begins: with the node of each replica, or none where that is not known."""
        self.is_hung = False
        self._places, self._gang, self._run = tuple(places), frozenset(gang), run
        self._rounds, self._stragglers = RankRounds(), StragglerDetector(self._rules.straggler)
        self._replicas: dict[int, int] = {}
        self._slow: list[StragglerReport] = []
        self._hang.began()

    def judge_by(self, rules: RankRules) -> None:
        """Other rules hold from now on; what was added up by the old ones is forgotten."""
        self._rules = rules
        self._stragglers = StragglerDetector(rules.straggler)
        self._hang.rules = rules.hang

    def hear(self, report: ProgressReport, now_s: float) -> None:
        if report.restart not in (None, self._run):
            return  # of a run that is over
        rank = report.rank or 0
        if report.replica is not None:
            self._replicas[rank] = report.replica
        self._hang.heard(now_s, rank, waits=report.is_waiting)
        self._hang.is_done = report.fraction == 1.0 or (self._hang.is_done and report.fraction is None)
        if report.own_s and self._rules.action is not StragglerAction.OFF:
            self._compare(rank, report)

    def _compare(self, rank: int, report: ProgressReport) -> None:
        count = len(report.own_s)
        if count > 1:
            self._replicas |= {one: one * len(self._places) // count for one in range(count)}
            row: FloatArray | None = np.array(report.own_s) / report.own_steps
        else:
            row = self._rounds.add(rank, report.own_s[0], report.own_steps)
        found = None if row is None else self._stragglers.see(row)
        if found is not None:
            self._slow.append(found)

    def look(self, now_s: float) -> list[HeldUp]:
        """What holds the job up, as far as it was not told; a hang once in a run."""
        slow, self._slow = self._slow, []
        may_move = self._rules.action is StragglerAction.MOVE
        told = [self._held_up(one, one.ranks if one.is_clear else (), may_move) for one in slow]
        silence = None if self.is_hung or math.isinf(self._rules.hang.after_s) else self._hang.look(now_s)
        if silence is not None:
            self.is_hung = True
            told.append(self._held_up(silence, silence.ranks, may_move=True))
        return told

    def next_look_s(self, now_s: float) -> float:
        """When to look again even if nothing is heard, for who does not look all the time."""
        return math.inf if self.is_hung else self._hang.next_look_s(now_s)

    def _held_up(self, found: StragglerReport | HangReport, ranks: Iterable[int], may_move: bool) -> HeldUp:
        replicas = {self._replicas.get(rank, rank) for rank in ranks}
        known = all(replica < len(self._places) for replica in replicas)
        nodes = sorted({self._places[replica] for replica in replicas}) if known else []
        return HeldUp(self._job, found, tuple(nodes), self._gang, may_move)
