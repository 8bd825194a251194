"""Refusals of quota as the typed reasons of a plan."""

from __future__ import annotations

from functools import cache

from batuta.core.quota import MILLI, Quota, counts_gpus, rest_of
from batuta.core.reason import Evidence, Reason
from batuta.quota.refusal import Refusal, Why

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
    """Why a job waits; `kept` if what is left is set aside for others, None if it may not overtake."""
    if leaving:
        return Reason.QUEUE_LEAVES, ()
    if refusal is None:
        return Reason.BEHIND_ANOTHER, ()
    if refusal.cell is None:
        return _PLAIN.get(refusal.why, Reason.BEHIND_ANOTHER), ()
    reason, unit = _short_of(refusal.cell.resource)
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


_OF_REST = {
    Reason.EXCEEDS_QUOTA: Reason.EXCEEDS_REST,
    Reason.QUOTA_EXHAUSTED: Reason.REST_EXHAUSTED,
}


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


class Words:
    """Puts refusals into words. Thousands of jobs are refused alike, so each refusal is worded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[Refusal | None, tuple[Reason, Evidence]]] = {}
        """By identity, so each is kept with its refusal: as long as that lives nobody else has its id."""

    def of(self, refusal: Refusal | None, kept: bool = False) -> tuple[Reason, Evidence]:
        key = id(refusal), kept
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = refusal, reason_for(refusal, kept)
        return known[1]
