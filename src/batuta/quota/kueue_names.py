"""What Kueue calls our reasons, for whoever reads conditions with its tools."""

from __future__ import annotations

from typing import NamedTuple

from batuta.core.plan import Decision
from batuta.core.reason import Reason
from batuta.quota.refusal import Why

RESERVED = "QuotaReserved"
"""The reason of a condition that is true, which Kueue names as the condition."""
NO_PLACE = "TopologyPlacementFailed"
ON_HOLD = "OnHold"

_QUOTA: dict[Reason, Why] = {
    Reason.QUOTA_EXHAUSTED: Why.WAITING_FOR_QUOTA,
    Reason.QUOTA_SHORT_OF_CPUS: Why.WAITING_FOR_QUOTA,
    Reason.QUOTA_SHORT_OF_MEMORY: Why.WAITING_FOR_QUOTA,
    Reason.QUOTA_SHORT_OF_PODS: Why.WAITING_FOR_QUOTA,
    Reason.KEPT_FOR_ANOTHER: Why.WAITING_FOR_QUOTA,
    Reason.PUSHED_ASIDE: Why.WAITING_FOR_QUOTA,
    Reason.RECLAIMED: Why.WAITING_FOR_QUOTA,
    Reason.SHARED_OUT: Why.WAITING_FOR_QUOTA,
    Reason.QUOTA_CUT: Why.WAITING_FOR_QUOTA,
    Reason.REST_EXHAUSTED: Why.WAITING_FOR_QUOTA,
    Reason.EXCEEDS_QUOTA: Why.EXCEEDS_MAX_QUOTA,
    Reason.EXCEEDS_REST: Why.EXCEEDS_MAX_QUOTA,
    Reason.NO_MATCHING_FLAVOR: Why.NO_MATCHING_FLAVOR,
    Reason.QUEUE_HELD: Why.SUSPENDED,
    Reason.QUEUE_LEAVES: Why.SUSPENDED,
    Reason.QUEUE_DRAINED: Why.SUSPENDED,
    Reason.QUEUE_MISSING: Why.MISCONFIGURED,
    Reason.BEHIND_ANOTHER: Why.PENDING_EVALUATION,
}
_OTHERS: dict[Reason, str] = {
    # Quota is not in the way, but there is no place: nothing that cannot be placed holds quota.
    Reason.WAITING_FOR_GPUS: NO_PLACE,
    Reason.HELD_BACK: NO_PLACE,
    Reason.FRAGMENTED: NO_PLACE,
    Reason.TOPOLOGY_UNMET: NO_PLACE,
    Reason.SHORT_OF_CPU_OR_MEMORY: NO_PLACE,
    Reason.WAITING_FOR_CPU: NO_PLACE,
    Reason.WAITING_FOR_MEMORY: NO_PLACE,
    Reason.LOST_NODE: NO_PLACE,
    # No quota that is any good is larger than the cluster, or for nodes that it has not.
    Reason.EXCEEDS_CLUSTER: Why.EXCEEDS_MAX_QUOTA.value,
    Reason.EXCEEDS_CPU_OR_MEMORY: Why.EXCEEDS_MAX_QUOTA.value,
    Reason.NO_ACCEPTED_TYPE: Why.NO_MATCHING_FLAVOR.value,
    Reason.NO_MATCHING_NODE: Why.NO_MATCHING_FLAVOR.value,
    Reason.PARKED: ON_HOLD,
    Reason.CANCELLING: ON_HOLD,
}
_NAMES = {reason: why.value for reason, why in _QUOTA.items()} | _OTHERS
OF_QUOTA = frozenset(_QUOTA)
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
    """Whether a living job has quota; if not, why not. None: nobody has looked at it yet."""
    if has_gpus:
        return Reserved(True, RESERVED, "" if decision is None else str(decision))
    if decision is None:
        return Reserved(False, Why.PENDING_EVALUATION.value, "no plan has looked at it yet")
    if decision.gpus:
        return Reserved(True, RESERVED, str(decision))
    return Reserved(False, kueue_name(decision.reason), str(decision))
