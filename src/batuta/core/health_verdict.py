"""Judging a finding by the rules and by what was found before on the same GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batuta.core.health_rules import Action, Finding, HealthLimits, HealthRules, Rule, Scope, Source
from batuta.core.job import JobId


class Incident(NamedTuple):
    """What is remembered of a finding that was not ignored."""

    time_s: float
    source: Source
    code: int
    jobs: tuple[JobId, ...]
    means: str


class Verdict(NamedTuple):
    """What is to be done, and why."""

    action: Action
    scope: Scope
    reason: str
    rule: Rule | None = None
    note: str = ""
    """Why nothing is done about what is not harmless by itself."""

    @property
    def at_idle(self) -> bool:
        return self.rule is not None and self.rule.at_idle

    def incident(self, finding: Finding) -> Incident:
        means = self.rule.means if self.rule is not None else ""
        return Incident(finding.time_s, finding.source, finding.code, finding.jobs, means)


def classify(rules: HealthRules, finding: Finding, history: Sequence[Incident]) -> Verdict:
    """The action that a finding calls for. `history`: the incidents of its GPU, or of its node.

    An application error restarts its job. The same one in several different jobs on one GPU is hardware, and
    so is a suspicion that several jobs share.
    """
    rule = rules.find(finding.source, finding.code, finding.text)
    if rule is None:
        return Verdict(Action.IGNORE, Scope.GPU, f"{finding.name}: no rule knows it")
    scope = Scope.NODE if finding.gpu is None else rule.scope
    has_name = finding.source.has_codes or finding.source is Source.NVML
    reason = f"{finding.name}: {rule.means}" if has_name else rule.means
    if rule.action is Action.IGNORE:
        return Verdict(Action.IGNORE, scope, reason, rule)
    limits = rules.limits
    recent = [one for one in history if abs(finding.time_s - one.time_s) <= limits.incident_s]
    if rule.follows and any((one.source, one.code) != (finding.source, finding.code) for one in recent):
        return Verdict(Action.IGNORE, scope, reason, rule, "it follows another error")
    if rule.action.takes_out:
        return Verdict(rule.action, scope, reason, rule)
    if any(_is_same(rule, finding, one) and set(finding.jobs) <= set(one.jobs) for one in recent):
        return Verdict(Action.IGNORE, scope, reason, rule, "it is the same incident")
    jobs = _different_jobs(rule, finding, history, limits)
    if rule.counts and jobs >= limits.jobs:
        return Verdict(Action.RESET_GPU, scope, f"{reason}, in {jobs} different jobs", rule)
    return Verdict(rule.action, scope, reason, rule)


def _is_same(rule: Rule, finding: Finding, one: Incident) -> bool:
    # Where no code names the error, the rule says whether two are the same.
    same_code = one.code == finding.code or not finding.source.has_codes
    return same_code and (one.source, one.means) == (finding.source, rule.means)


def _different_jobs(rule: Rule, finding: Finding, history: Iterable[Incident], limits: HealthLimits) -> int:
    """In how many jobs this happened, the new one included.

    Who shares a GPU may be hit by somebody else's error: an incident counts once however many jobs it hit,
    and not at all if one of them was counted before.
    """
    same = [
        set(one.jobs)
        for one in history
        if _is_same(rule, finding, one) and finding.time_s - one.time_s <= limits.within_s
    ]
    seen: set[JobId] = set()
    count = 0
    for jobs in (*same, set(finding.jobs)):
        if jobs and not jobs & seen:
            count += 1
        seen |= jobs
    return count
