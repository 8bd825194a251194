"""How many jobs have what they have for which reason, without a look at every single one."""

from __future__ import annotations

from collections import Counter

import numpy as np

from batuta.core.plan import Decisions
from batuta.core.reason import Reason


def count_reasons(decisions: Decisions) -> Counter[str]:
    """By the name of the reason; the same as to count `decision.reason` of each decision."""
    n = len(decisions)
    if not n:
        return Counter()
    kind = np.zeros(n, dtype=np.int64) if decisions.kind is None else decisions.kind
    known = kind >= 0
    # Place -1 of these is for jobs that no type is good enough for.
    free = np.where(known, np.array((*decisions.free, 0))[kind], 0)
    capacity = np.where(known, np.array((*decisions.capacity, 0))[kind], 0)
    gpus, low, asked = decisions.gpus, decisions.low, decisions.asked
    needs = np.where((low <= free) & (free < asked), asked, low)
    moving = np.zeros(n, dtype=bool) if decisions.moving is None else decisions.moving
    waits = gpus == 0
    cases = (
        (gpus >= decisions.high, Reason.FULL_SIZE),
        (waits & ~known, Reason.NO_ACCEPTED_TYPE),
        (waits & (low > capacity), Reason.EXCEEDS_CLUSTER),
        (waits & (needs <= free), Reason.HELD_BACK),
        (waits, Reason.WAITING_FOR_GPUS),
        (moving, Reason.IN_TRANSITION),
        (gpus < asked, Reason.SHARES_WITH_OTHERS),
    )
    open_ = np.ones(n, dtype=bool)
    open_[list(decisions.special)] = False
    found = Counter(reason.name for reason, _ in decisions.special.values())
    for applies, reason in cases:
        found[reason.name] += int((open_ & applies).sum())
        open_ &= ~applies
    found[Reason.AT_ASKED_SIZE.name] += int(open_.sum())
    return +found
