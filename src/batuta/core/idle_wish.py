"""What a queue wants done about jobs that leave their GPUs idle."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class IdleAction(Enum):
    """What is done about a job that leaves its GPUs idle, beside telling so."""

    REPORT = "report"
    SHRINK = "shrink"
    """It is made as small as it may be."""
    PARK = "park"
    """It makes a checkpoint and waits until somebody starts it again."""


class IdleWish(NamedTuple):
    """What a queue says of it; None: nothing."""

    action: IdleAction | None = None
    after_s: float | None = None

    def or_else(self, other: IdleWish) -> IdleWish:
        """What this one says, and the other where this says nothing."""
        return IdleWish(self.action or other.action, self.after_s or other.after_s)


NO_WISH = IdleWish()
