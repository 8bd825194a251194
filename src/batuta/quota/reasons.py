"""Why a workload gets no quota: Kueue's names, the numbers, and the typed reasons of a plan."""

from __future__ import annotations

from enum import Enum
from functools import cache
from itertools import chain
from typing import NamedTuple

from batuta.core.plan import Decision
from batuta.core.quota import MILLI, FlavorResource, Quota, counts_gpus, rest_of
from batuta.core.reason import Evidence, Reason


class Why(Enum):
    """Kueue's names for the reasons of QuotaReserved=False."""

    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    MISCONFIGURED = "Misconfigured"
    SUSPENDED = "Suspended"
    PENDING_EVALUATION = "PendingEvaluation"


class Refusal(NamedTuple):
    """One reason, and the flavor resource that is short where there is one."""

    why: Why
    text: str = ""
    fr: FlavorResource | None = None
    needs: int = 0  # in thousandths, as all the numbers here
    left: int = 0  # of the queue's own quota
    nominal: int = 0
    more: int = 0  # what the cohort would lend beyond that
    most: int = 0  # what the queue could have if it were alone

    def for_needs(self, needs: int) -> Refusal:
        """The same said to one that needs another amount of the flavor resource."""
        why = Why.EXCEEDS_MAX_QUOTA if needs > self.most else Why.WAITING_FOR_QUOTA
        return Refusal(why, "", self.fr, needs, self.left, self.nominal, self.more, self.most)

    def message(self, queue: str) -> str:
        if self.fr is None:
            return self.text
        kind = f"{self.fr.resource} of {self.fr.flavor}"
        if self.why is Why.EXCEEDS_MAX_QUOTA:
            return f"needs {show(self.needs)} {kind}, queue {queue} can have {show(self.most)} at most"
        own = f"queue {queue} has {show(self.left)} of {show(self.nominal)} left"
        lends = f", cohort lends {show(self.more)} more" if self.more > 0 else ""
        return f"needs {show(self.needs)} {kind}, {own}{lends}"


def show(amount: int) -> str:
    """Thousandths as people write them."""
    return f"{amount / MILLI:g}" if abs(amount) < MILLI * 1_000_000 else _large(amount // MILLI)


def _large(whole: int) -> str:
    for power, unit in ((50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi")):
        if abs(whole) >= 1 << power:
            return f"{whole / (1 << power):.4g}{unit}"
    return str(whole)


_GIB = MILLI << 30
_SHORT = {
    "cpu": (Reason.QUOTA_SHORT_OF_CPUS, MILLI),
    "memory": (Reason.QUOTA_SHORT_OF_MEMORY, _GIB),
    "pods": (Reason.QUOTA_SHORT_OF_PODS, MILLI),
}
_PLAIN = {
    Why.NO_MATCHING_FLAVOR: Reason.NO_MATCHING_FLAVOR,
    Why.MISCONFIGURED: Reason.QUEUE_MISSING,
    Why.SUSPENDED: Reason.QUEUE_HELD,
    Why.PENDING_EVALUATION: Reason.BEHIND_ANOTHER,
}


def reason_for(refusal: Refusal | None, kept: bool = False, leaving: bool = False) -> tuple[Reason, Evidence]:
    """Why a job waits; `kept` if what is left is reserved for others, None if it may not overtake."""
    if leaving:
        return Reason.QUEUE_LEAVES, ()
    if refusal is None:
        return Reason.BEHIND_ANOTHER, ()
    if refusal.fr is None:
        return _PLAIN.get(refusal.why, Reason.BEHIND_ANOTHER), ()
    reason, unit = _short_of(refusal.fr.resource)
    numbers: Evidence = (
        ("needs", refusal.needs / unit),
        ("quota_left", refusal.left / unit),
        ("quota", refusal.nominal / unit),
        ("lends", refusal.more / unit),
        ("most", refusal.most / unit),
    )
    if reason is Reason.QUOTA_EXHAUSTED:
        if refusal.why is Why.EXCEEDS_MAX_QUOTA:
            reason = Reason.EXCEEDS_QUOTA
        elif kept:
            reason = Reason.KEPT_FOR_ANOTHER
    return reason, numbers


_OF_REST = {Reason.EXCEEDS_QUOTA: Reason.EXCEEDS_REST, Reason.QUOTA_EXHAUSTED: Reason.REST_EXHAUSTED}


def about_rest(quota: Quota, reason: Reason, evidence: Evidence) -> tuple[Reason, Evidence]:
    """The reason of a job of the queue `default`, which has no quota but what the others leave."""
    if reason not in _OF_REST:
        return reason, evidence
    return _OF_REST[reason], (*evidence, ("cluster", sum(one.gpus for one in rest_of(quota))))


@cache
def _short_of(resource: str) -> tuple[Reason, int]:
    """The reason to wait for more of a resource, and the unit in which people count it."""
    if counts_gpus(resource):
        return Reason.QUOTA_EXHAUSTED, MILLI
    return _SHORT.get(resource, (Reason.NO_MATCHING_FLAVOR, MILLI))


class ReasonTexts:
    """Puts refusals into words. Thousands of jobs are refused alike, so each refusal is worded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[Refusal | None, tuple[Reason, Evidence]]] = {}
        """By identity, so each is kept with its refusal: as long as that lives no other has its id."""

    def of(self, refusal: Refusal | None, kept: bool = False) -> tuple[Reason, Evidence]:
        key = id(refusal), kept
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = refusal, reason_for(refusal, kept)
        return known[1]


RESERVED = "QuotaReserved"  # the reason of a condition that is true, which Kueue names as the condition
NO_PLACE = "TopologyPlacementFailed"
ON_HOLD = "OnHold"

_OF_QUOTA: dict[Why, tuple[Reason, ...]] = {
    Why.WAITING_FOR_QUOTA: (
        *(Reason.QUOTA_EXHAUSTED, Reason.QUOTA_SHORT_OF_CPUS, Reason.QUOTA_SHORT_OF_MEMORY, Reason.QUOTA_SHORT_OF_PODS),
        *(Reason.KEPT_FOR_ANOTHER, Reason.PUSHED_ASIDE, Reason.RECLAIMED, Reason.SHARED_OUT, Reason.QUOTA_CUT),
        Reason.REST_EXHAUSTED,
    ),
    Why.EXCEEDS_MAX_QUOTA: (Reason.EXCEEDS_QUOTA, Reason.EXCEEDS_REST),
    Why.NO_MATCHING_FLAVOR: (Reason.NO_MATCHING_FLAVOR,),
    Why.SUSPENDED: (Reason.QUEUE_HELD, Reason.QUEUE_LEAVES, Reason.QUEUE_DRAINED),
    Why.MISCONFIGURED: (Reason.QUEUE_MISSING,),
    Why.PENDING_EVALUATION: (Reason.BEHIND_ANOTHER,),
}
_OTHERS: dict[str, tuple[Reason, ...]] = {
    # Quota is not in the way, but there is no place: nothing that cannot be placed holds quota.
    NO_PLACE: (
        *(Reason.WAITING_FOR_GPUS, Reason.HELD_BACK, Reason.FRAGMENTED, Reason.TOPOLOGY_UNMET, Reason.LOST_NODE),
        *(Reason.SHORT_OF_CPU_OR_MEMORY, Reason.WAITING_FOR_CPU, Reason.WAITING_FOR_MEMORY),
    ),
    # No quota that is any good is larger than the cluster, or for nodes that it has not.
    Why.EXCEEDS_MAX_QUOTA.value: (Reason.EXCEEDS_CLUSTER, Reason.EXCEEDS_CPU_OR_MEMORY),
    Why.NO_MATCHING_FLAVOR.value: (Reason.NO_ACCEPTED_TYPE, Reason.NO_MATCHING_NODE),
    ON_HOLD: (Reason.PARKED, Reason.CANCELLING),
}
_NAMES = {reason: why.value for why, reasons in _OF_QUOTA.items() for reason in reasons} | {
    reason: name for name, reasons in _OTHERS.items() for reason in reasons
}
OF_QUOTA = frozenset(chain.from_iterable(_OF_QUOTA.values()))
"""The reasons of jobs that would run if it were not for quota."""


class Reserved(NamedTuple):
    """The condition QuotaReserved of one job."""

    status: bool
    reason: str
    message: str


def kueue_name(reason: Reason) -> str:
    """Why a job that waits has no quota, in Kueue's words."""
    return _NAMES.get(reason, Why.PENDING_EVALUATION.value)


def quota_reserved(has_gpus: bool, decision: Decision | None) -> Reserved:
    """Whether a living job has quota; if not, why not. None: no plan has looked at it yet."""
    if has_gpus:
        return Reserved(True, RESERVED, "" if decision is None else str(decision))
    if decision is None:
        return Reserved(False, Why.PENDING_EVALUATION.value, "no plan has looked at it yet")
    if decision.gpus:
        return Reserved(True, RESERVED, str(decision))
    return Reserved(False, kueue_name(decision.reason), str(decision))
