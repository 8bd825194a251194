"""Why a claim gets no quota, with the numbers that people need."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from batuta.core.quota import MILLI, Cell


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
    """One reason, and the cell that is short where there is one."""

    why: Why
    text: str = ""
    cell: Cell | None = None
    needs: int = 0
    """In thousandths, as all the numbers here."""
    left: int = 0
    """Of the queue's own quota."""
    nominal: int = 0
    more: int = 0
    """What the cohort would lend beyond that."""
    most: int = 0
    """What the queue could have if it were alone."""

    def for_needs(self, needs: int) -> Refusal:
        """The same said to one that needs another amount of the cell."""
        why = Why.EXCEEDS_MAX_QUOTA if needs > self.most else Why.WAITING_FOR_QUOTA
        return Refusal(why, "", self.cell, needs, self.left, self.nominal, self.more, self.most)

    def message(self, queue: str) -> str:
        if self.cell is None:
            return self.text
        kind = f"{self.cell.resource} of {self.cell.flavor}"
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
