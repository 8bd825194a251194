"""The health of one GPU or node, and how a finding is classified by the rules and by earlier findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from batuta.core.cluster import NodeName
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
    note: str = ""  # why nothing is done about what is not harmless by itself

    @property
    def at_idle(self) -> bool:
        return self.rule is not None and self.rule.at_idle

    def incident(self, finding: Finding) -> Incident:
        means = self.rule.means if self.rule is not None else ""
        return Incident(finding.time_s, finding.source, finding.code, finding.jobs, means)


def classify(rules: HealthRules, finding: Finding, history: Sequence[Incident]) -> Verdict:
    """The action that a finding calls for. `history`: the incidents of its GPU, or of its node.

    An application error restarts its job. The same one in several different jobs on one GPU is hardware, and
    so is a suspicion that several jobs share. Jobs that are not believed have to be of as many namespaces: one user's
    could say anything.
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
    if rule.action.takes_out and not finding.is_hearsay:
        return Verdict(rule.action, scope, reason, rule)
    if any(_is_same(rule, finding, one) and set(finding.jobs) <= set(one.jobs) for one in recent):
        return Verdict(Action.IGNORE, scope, reason, rule, "it is the same incident")
    witnesses = _witnesses(rule, finding, history, limits)
    if rule.counts and witnesses >= limits.jobs:
        whose = f"jobs of {witnesses} namespaces" if finding.is_hearsay else f"{witnesses} different jobs"
        return Verdict(Action.RESET_GPU, scope, f"{reason}, in {whose}", rule)
    if finding.is_hearsay:
        action = Action.RESTART_JOB if rule.action is Action.RESTART_JOB else Action.SUSPECT
        return Verdict(action, scope, reason, rule, "jobs say so alone")
    return Verdict(rule.action, scope, reason, rule)


def _is_same(rule: Rule, finding: Finding, one: Incident) -> bool:
    # Where no code names the error, the rule says whether two are the same.
    same_code = one.code == finding.code or not finding.source.has_codes
    return same_code and (one.source, one.means) == (finding.source, rule.means)


def _witnesses(rule: Rule, finding: Finding, history: Iterable[Incident], limits: HealthLimits) -> int:
    """In how many jobs this happened, the new one included; of how many namespaces, where jobs are not believed.

    A job that shares a GPU may be hit by another job's error: an incident counts once for all jobs it hit,
    and not at all if one of them was counted before.
    """

    def witnesses(jobs: Iterable[JobId]) -> set[str]:
        return {job.rpartition("/")[0] for job in jobs} if finding.is_hearsay else set(jobs)

    same = [
        witnesses(one.jobs)
        for one in history
        if _is_same(rule, finding, one) and finding.time_s - one.time_s <= limits.within_s
    ]
    seen: set[str] = set()
    count = 0
    for jobs in (*same, witnesses(finding.jobs)):
        if jobs and not jobs & seen:
            count += 1
        seen |= jobs
    return count


WHOLE_NODE: Final = -1
BY_HEALTH: Final = "health"  # who did it, where no human did


class State(StrEnum):
    """How a GPU or node is. The first two are in service."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"  # something was found that alone is no reason to act, or that waits for its jobs to end
    ILL = "ill"
    BURN_IN = "burn-in"
    PROBATION = "probation"

    @property
    def is_in_service(self) -> bool:
        return self in {State.HEALTHY, State.SUSPECT}


class Target(NamedTuple):
    """A GPU, or a whole node."""

    node: NodeName
    gpu: int = WHOLE_NODE

    def __str__(self) -> str:
        return self.node if self.gpu == WHOLE_NODE else f"{self.node} GPU {self.gpu}"


class Cordon(NamedTuple):
    """A human's own word that nothing new shall start on a node."""

    who: str = ""  # empty where it is unknown
    since_s: float = 0.0  # 0 where it is unknown


@dataclass(slots=True)
class Record:
    """The health of one target."""

    state: State = State.HEALTHY
    since_s: float = 0.0  # when it came into this state
    reason: str = ""
    who: str = ""  # who brought it into this state: `health`, or a human's name
    remedy: Action = Action.IGNORE  # what has to be done about it, while that is not done
    held: bool = False  # it is ill and yet in service: taking it out would take too much of its pool
    ends_s: float = 0.0  # when its probation is over
    flaps: int = 0  # how many returns in a row did not last
    returned_s: float | None = None  # when it last came back into service
    incidents: list[Incident] = field(default_factory=list)

    @property
    def is_out(self) -> bool:
        """Whether it is out of service because of its health."""
        return not self.state.is_in_service and not self.held

    def enter(self, state: State, now_s: float, reason: str, who: str = BY_HEALTH) -> None:
        self.state, self.since_s, self.reason, self.who = state, now_s, reason, who


@dataclass(frozen=True, slots=True)
class RestartJob:
    """A job is to begin again from its last checkpoint. Of all orders only this is not to be done twice."""

    job: JobId
    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class TakeOut:
    """Jobs leave with their progress, and nothing new comes."""

    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Mend:
    """An administrator, or a program, is to do this and then to say so."""

    target: Target
    remedy: Action
    reason: str


@dataclass(frozen=True, slots=True)
class BurnIn:
    """It is to be tested; the tester reports the outcome."""

    target: Target


@dataclass(frozen=True, slots=True)
class PutBack:
    """Jobs may come again."""

    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Alert:
    """People have to look: no more is taken out of this pool."""

    pool: str
    target: Target
    reason: str


Order: TypeAlias = RestartJob | TakeOut | Mend | BurnIn | PutBack | Alert
