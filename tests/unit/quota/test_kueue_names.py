"""The condition QuotaReserved, with Kueue's words for the reasons."""

import pytest

from batuta.core.plan import Decision
from batuta.core.reason import Reason
from batuta.quota.reasons import kueue_name, quota_reserved

KUEUE = {
    "NoMatchingFlavor",
    "WaitingForQuota",
    "ExceedsMaxQuota",
    "TopologyPlacementFailed",
    "WaitingForPreemptedWorkloads",
    "Misconfigured",
    "Suspended",
    "OnHold",
    "PendingEvaluation",
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_name_that_kueue_knows(reason: Reason) -> None:
    assert kueue_name(reason) in KUEUE


def test_a_job_with_gpus_has_quota() -> None:
    told = quota_reserved(True, Decision("1", 2, Reason.FULL_SIZE, (("gpus", 2),)))
    assert told == (True, "QuotaReserved", "runs at its full size of 2 GPUs")
    assert quota_reserved(True, None).status


def test_a_job_that_waits_says_why_with_numbers() -> None:
    numbers = (("needs", 8), ("quota_left", 5), ("quota", 16), ("lends", 2))
    told = quota_reserved(False, Decision("1", 0, Reason.QUOTA_EXHAUSTED, numbers))
    assert (told.status, told.reason) == (False, "WaitingForQuota")
    assert "needs 8" in told.message


def test_a_job_that_nobody_has_looked_at() -> None:
    assert quota_reserved(False, None).reason == "PendingEvaluation"


def test_a_job_that_is_about_to_start_has_quota() -> None:
    assert quota_reserved(False, Decision("1", 2, Reason.FULL_SIZE, (("gpus", 2),))).status
