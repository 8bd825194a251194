"""The health of all GPUs and nodes: healthy → suspect → ill → burn-in → probation → healthy.

Findings, repairs and what people say come in, orders go out. Nothing here reads a clock or touches a
machine, so that the same inputs always give the same orders. A guard rail limits how much of a pool may be
out of service without a human's word. `to_plain` and `from_plain` turn the state machine into plain values
and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from batuta.core.cluster import NodeName
from batuta.core.health_record import (
    BY_HEALTH,
    WHOLE_NODE,
    Alert,
    BurnIn,
    Cordon,
    Incident,
    Mend,
    Order,
    PutBack,
    Record,
    RestartJob,
    State,
    TakeOut,
    Target,
    Verdict,
    classify,
)
from batuta.core.health_rules import REMEDIES, Action, Finding, HealthRules, Scope, Source
from batuta.core.job import JobId


class Member(NamedTuple):
    """A node, as far as its pool is concerned."""

    gpus: int
    pool: str


def gpus_out(members: Mapping[NodeName, Member], out: Iterable[Target], pool: str) -> int:
    """How many GPUs of a pool these targets are; one of a node that is out as a whole counts once."""
    found: set[tuple[NodeName, int]] = set()
    for target in out:
        member = members[target.node]
        if member.pool == pool:
            gpus = range(member.gpus) if target.gpu == WHOLE_NODE else (target.gpu,)
            found.update((target.node, gpu) for gpu in gpus)
    return len(found)


def has_room(members: Mapping[NodeName, Member], out: Iterable[Target], target: Target, share: float) -> bool:
    """Whether a target may be taken out as well. One always may, unless the share is 0: pools may be small."""
    if share <= 0.0:
        return False
    pool, out = members[target.node].pool, tuple(out)
    before, after = gpus_out(members, out, pool), gpus_out(members, (*out, target), pool)
    total = sum(member.gpus for member in members.values() if member.pool == pool)
    # The tiny part more: 0.3 of 10 GPUs are 3, whatever binary fractions say.
    return before in {0, after} or after <= share * total + 1e-9


MOST_INCIDENTS = 64  # remembered of one GPU; a card that reports thousands of errors needs no better proof


class HealthStateMachine:
    """Keeps the records. Its one owner tells it what happens, in the order of time, and obeys."""

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.members: dict[NodeName, Member] = {}
        self.records: dict[Target, Record] = {}
        self.cordons: dict[NodeName, Cordon] = {}  # nodes that humans have cordoned. They are never undone here.

    def add_node(self, name: NodeName, gpus: int, pool: str = "") -> None:
        """A node is there, or is another one than before."""
        self.members[name] = Member(gpus, pool)
        for target in [one for one in self.records if one.node == name and one.gpu >= gpus]:
            del self.records[target]

    def remove_node(self, name: NodeName) -> None:
        """A node is gone for good, and all that was known of it. One that is only lost stays known."""
        self.members.pop(name, None)
        self.cordons.pop(name, None)
        for target in [one for one in self.records if one.node == name]:
            del self.records[target]

    @property
    def out(self) -> Mapping[Target, str]:
        """What is out of service because of its health, and why."""
        found = {target: record.reason for target, record in self.records.items() if record.is_out}
        return MappingProxyType(found)

    def look(self, target: Target) -> Record:
        """A copy of what is known."""
        record = self.records.get(target, Record())
        return replace(record, incidents=list(record.incidents))

    def standing(self) -> list[Order]:
        """All that is ordered and not known to be done, as after a restart. Doing it twice does no harm."""
        orders: list[Order] = []
        for target, record in sorted(self.records.items()):
            if record.held:
                orders.append(self._alert(target, record))
            elif record.is_out:
                orders.append(TakeOut(target, record.reason))
                if record.state is State.ILL:
                    orders.append(Mend(target, record.remedy, record.reason))
                elif record.state is State.BURN_IN:
                    orders.append(BurnIn(target))
        return orders

    def verdict_on(self, finding: Finding) -> Verdict:
        """What the rules make of it, given what was found before at the same place. It changes nothing."""
        record = self.records.get(_place(finding))
        return classify(self.rules, finding, () if record is None else record.incidents)

    def found(self, finding: Finding) -> list[Order]:
        """Something was noticed. Nodes and GPUs that are not known are ignored."""
        member = self.members.get(finding.node)
        if member is None or not -1 < (finding.gpu or 0) < member.gpus:
            return []
        here, verdict = _place(finding), self.verdict_on(finding)
        if verdict.action is Action.IGNORE:
            return []
        noted = self._record(here)
        noted.incidents = [*noted.incidents, verdict.incident(finding)][-MOST_INCIDENTS:]
        target = here if verdict.scope is Scope.GPU else Target(finding.node)
        if not verdict.action.takes_out:
            if noted.state is State.HEALTHY:
                noted.enter(State.SUSPECT, finding.time_s, verdict.reason)
            hit = finding.jobs if verdict.action is Action.RESTART_JOB else ()
            return _restarts(here, hit, verdict.reason)
        return self._accuse(target, verdict, finding)

    def _accuse(self, target: Target, verdict: Verdict, finding: Finding) -> list[Order]:
        """It is the hardware."""
        record, now_s = self._record(target), finding.time_s
        remedy = _stronger(record.remedy, verdict.action)
        if record.state.is_in_service:
            record.remedy = remedy
            if verdict.at_idle:
                record.enter(State.SUSPECT, now_s, verdict.reason)
                return []
            return self._fall_ill(target, verdict.reason, now_s, finding.jobs)
        if record.state is State.ILL:
            stronger = remedy is not record.remedy
            if stronger or self._is_better_named(record, verdict, finding):
                record.remedy, record.reason = remedy, verdict.reason
            if record.held:
                return _restarts(target, finding.jobs, verdict.reason)
            return [Mend(target, remedy, verdict.reason)] if stronger else []
        if now_s < record.since_s:
            # An old line that was read late: what it tells was mended since.
            return []
        record.flaps += record.state is State.PROBATION
        record.remedy = remedy
        record.enter(State.ILL, now_s, verdict.reason)
        return [Mend(target, remedy, verdict.reason)]

    def _is_better_named(self, record: Record, verdict: Verdict, finding: Finding) -> bool:
        """Whether the driver says what it is that a figure has only shown the consequence of.

        Both tell of the same moment, and either may be heard first; what people read is not left to chance.
        """
        before = self._record(_place(finding)).incidents[:-1]
        is_same_moment = abs(finding.time_s - record.since_s) <= self.rules.limits.incident_s
        is_first_word = finding.source.has_codes and not any(one.source.has_codes for one in before)
        return is_first_word and is_same_moment and verdict.action is record.remedy

    def _fall_ill(self, target: Target, reason: str, now_s: float, jobs: tuple[JobId, ...]) -> list[Order]:
        record, limits = self._record(target), self.rules.limits
        lasted_s = now_s - record.returned_s if record.returned_s is not None else limits.calm_s
        record.flaps = record.flaps + 1 if lasted_s < limits.calm_s else 0
        record.enter(State.ILL, now_s, reason)
        record.held = not has_room(self.members, self._out_but(target), target, limits.share)
        if record.held:
            return [self._alert(target, record), *_restarts(target, jobs, reason)]
        return [TakeOut(target, reason), Mend(target, record.remedy, reason)]

    def mended(self, target: Target, now_s: float, who: str = BY_HEALTH) -> list[Order]:
        """What was ordered is done: it has to prove itself now."""
        record = self.records.get(target)
        if record is None or record.state is not State.ILL:
            return []
        if record.held:
            record.remedy = Action.IGNORE
            return []
        record.enter(State.BURN_IN, now_s, record.reason, who)
        return [BurnIn(target)]

    def burnt_in(self, target: Target, passed: bool, detail: str, now_s: float) -> list[Order]:
        """The outcome of a burn-in. After one that failed the next stronger remedy is tried."""
        record = self.records.get(target)
        if record is None or record.state is not State.BURN_IN:
            return []
        if not passed:
            record.remedy = _next(record.remedy)
            record.enter(State.ILL, now_s, f"the burn-in failed: {detail}")
            return [Mend(target, record.remedy, record.reason)]
        record.remedy = Action.IGNORE
        record.ends_s = now_s + self.rules.limits.probation_after_s(record.flaps)
        record.enter(State.PROBATION, now_s, record.reason)
        return []

    def cordoned(self, node: NodeName, who: str, now_s: float) -> None:
        """A human has cordoned a node. Who says so again changes nothing."""
        before = self.cordons.get(node)
        if node in self.members and (before is None or before.who != who):
            self.cordons[node] = Cordon(who, now_s)

    def uncordoned(self, node: NodeName, who: str, now_s: float) -> list[Order]:
        """A human has uncordoned a node: first their own cordon ends, else the node is well by their word."""
        target = Target(node)
        record = self.records.get(target)
        if self.cordons.pop(node, None) is not None:
            return [TakeOut(target, record.reason)] if record is not None and record.is_out else []
        if record is not None and not record.state.is_in_service:
            self._return(record, now_s, "a human said so", who)
        return []

    def passes(self, now_s: float, idle: Iterable[Target] = ()) -> list[Order]:
        """Probations end, suspicions are forgotten, what waited is taken out. `idle`: GPUs without a job."""
        orders: list[Order] = []
        idle = frozenset(idle)
        for target, record in sorted(self.records.items()):
            horizon_s = now_s - self.rules.limits.within_s
            record.incidents = [one for one in record.incidents if one.time_s >= horizon_s]
            if record.state is State.PROBATION and now_s >= record.ends_s:
                self._return(record, now_s, "passed burn-in and probation")
                if target.gpu != WHOLE_NODE or target.node not in self.cordons:
                    orders.append(PutBack(target, record.reason))
            elif record.state is State.SUSPECT and record.remedy is Action.IGNORE and not record.incidents:
                record.enter(State.HEALTHY, now_s, "")
        for target, record in sorted(self.records.items()):
            if record.state is State.SUSPECT and record.remedy.takes_out and target in idle:
                orders += self._fall_ill(target, record.reason, now_s, ())
        return orders + self._release(now_s)

    def _release(self, now_s: float) -> list[Order]:
        """Takes out what the guard rail held, the oldest first, as far as there is room now."""
        orders: list[Order] = []
        held = [(record.since_s, target) for target, record in self.records.items() if record.held]
        for _, target in sorted(held):
            record = self.records[target]
            if not has_room(self.members, self._out_but(target), target, self.rules.limits.share):
                continue
            record.held = False
            orders.append(TakeOut(target, record.reason))
            if record.remedy.takes_out:
                orders.append(Mend(target, record.remedy, record.reason))
            else:
                # It was mended where it stood.
                record.enter(State.BURN_IN, now_s, record.reason)
                orders.append(BurnIn(target))
        return orders

    def _return(self, record: Record, now_s: float, reason: str, who: str = BY_HEALTH) -> None:
        record.remedy, record.held, record.returned_s = Action.IGNORE, False, now_s
        record.incidents = []
        record.enter(State.HEALTHY, now_s, reason, who)

    def _record(self, target: Target) -> Record:
        return self.records.setdefault(target, Record())

    def _out_but(self, target: Target) -> list[Target]:
        return [one for one, record in self.records.items() if record.is_out and one != target]

    def _alert(self, target: Target, record: Record) -> Alert:
        share = self.rules.limits.share
        reason = f"{record.reason}; no more than {share:.0%} of its pool may be taken out"
        return Alert(self.members[target.node].pool, target, reason)


def _place(finding: Finding) -> Target:
    return Target(finding.node, WHOLE_NODE if finding.gpu is None else finding.gpu)


def _restarts(target: Target, jobs: Iterable[JobId], reason: str) -> list[Order]:
    return [RestartJob(job, target, reason) for job in jobs]


_STRENGTH = {action: rank for rank, action in enumerate(Action)}


def _stronger(one: Action, other: Action) -> Action:
    return max(one, other, key=_STRENGTH.__getitem__)


def _next(remedy: Action) -> Action:
    """What is tried after this did not help."""
    if remedy not in REMEDIES:
        return REMEDIES[0]
    return REMEDIES[min(REMEDIES.index(remedy) + 1, len(REMEDIES) - 1)]


FORM = 1  # the form of the values; one that is unknown is refused


def to_plain(book: HealthStateMachine) -> dict[str, Any]:
    """Numbers, texts, lists and mappings that JSON can hold. Rules are not among them: they may change."""
    return {
        "form": FORM,
        "nodes": {name: [member.gpus, member.pool] for name, member in sorted(book.members.items())},
        "cordons": {node: [*cordon] for node, cordon in sorted(book.cordons.items())},
        "records": [
            [target.node, target.gpu, _plain_record(record)]
            for target, record in sorted(book.records.items())
            if record != Record()
        ],
    }


def from_plain(rules: HealthRules, plain: dict[str, Any]) -> HealthStateMachine:
    """The same book under these rules. Values of another form, or with parts missing, are a ValueError."""
    if plain.get("form") != FORM:
        raise ValueError(f"health records of form {plain.get('form')!r}, known is {FORM}")
    book = HealthStateMachine(rules)
    try:
        book.members = {name: Member(int(gpus), str(pool)) for name, (gpus, pool) in plain["nodes"].items()}
        book.cordons = {str(node): _cordon(cordon) for node, cordon in plain["cordons"].items()}
        for node, gpu, values in plain["records"]:
            book.records[Target(str(node), int(gpu))] = _record(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"health records are damaged: {error!r}") from error
    return book


def _cordon(plain: Any) -> Cordon:
    """The first books knew only who."""
    who, since_s = (plain, 0.0) if isinstance(plain, str) else plain
    return Cordon(str(who), float(since_s))


def _plain_record(record: Record) -> dict[str, Any]:
    plain = {one.name: getattr(record, one.name) for one in fields(record)}
    incidents = [[one.time_s, one.source.value, one.code, [*one.jobs], one.means] for one in record.incidents]
    return plain | {"state": record.state.value, "remedy": record.remedy.value, "incidents": incidents}


def _record(values: dict[str, Any]) -> Record:
    incidents = [
        Incident(float(time_s), Source(source), int(code), tuple(jobs), str(means))
        for time_s, source, code, jobs, means in values["incidents"]
    ]
    known = {**values, "state": State(values["state"]), "remedy": Action(values["remedy"])}
    return Record(**{**known, "incidents": incidents})
