"""How long a job takes, from the most alike of the earlier ones: robust, and right from the first few on.

Jobs are alike when they have the same user and name; fewer of them, the same name; and so on down to all.
The most specific group with enough jobs speaks; the fewer it has, the more the next wider one is heard too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.prediction.duration import survival_quantiles
from batuta.prediction.duration_history import Facts, Outcome

ENOUGH = 5
"""Jobs with which a group speaks for itself."""
NEWEST = 1_000
"""Jobs of a group that count, the newest ones: what people run changes."""
WIDER = 4.0
"""The wider group is heard as if it were so many jobs of the group's own."""

KINDS: tuple[tuple[str, Callable[[Facts], Hashable]], ...] = (
    ("the same user, name and size", lambda f: (f.user, f.name, f.gpus)),
    ("the same user and name", lambda f: (f.user, f.name)),
    ("the same name", lambda f: f.name),
    ("the same user and size", lambda f: (f.user, f.gpus)),
    ("the same user", lambda f: f.user),
    ("the same queue and size", lambda f: (f.queue, f.gpus)),
    ("the same queue", lambda f: f.queue),
    ("all jobs", lambda _: ()),
)
"""From the most specific to the widest."""
ALL = len(KINDS) - 1
_WIDER_KIND = (1, 2, ALL, 4, ALL, 6, ALL)
"""By kind: the next wider one of which every such group is a part."""


class Groups:
    """The newest jobs of every group, by kind: log seconds, and whether each is over."""

    def __init__(self) -> None:
        self.rows: list[dict[Hashable, deque[tuple[float, bool]]]] = [{} for _ in KINDS]

    def add(self, outcome: Outcome) -> None:
        entry = (float(np.log(outcome.work_s)), outcome.ended)
        for (_, key_of), rows in zip(KINDS, self.rows, strict=True):
            key = key_of(outcome.facts)
            own = rows.get(key)
            if own is None:
                own = rows[key] = deque(maxlen=NEWEST)
            own.append(entry)

    def of(self, kind: int, facts: Facts) -> deque[tuple[float, bool]] | None:
        return self.rows[kind].get(KINDS[kind][1](facts))


class GroupModel:
    """Quantiles in log seconds. What a group says is worked out when it is asked for, and kept."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._groups = Groups()
        for outcome in outcomes:
            self._groups.add(outcome)
        self._known: dict[tuple[int, Hashable], FloatArray] = {}

    def kind_of(self, facts: Facts) -> int:
        """The most specific kind of group with enough jobs that are over; for want of one, all jobs."""
        for kind in range(ALL):
            own = self._groups.of(kind, facts)
            if own is not None and len(own) >= ENOUGH and sum(ended for _, ended in own) >= ENOUGH:
                return kind
        return ALL

    def jobs(self, kind: int, facts: Facts) -> int:
        """How many jobs the group has that are over."""
        return sum(ended for _, ended in self._groups.of(kind, facts) or ())

    def predict_all(self, facts: Sequence[Facts]) -> FloatArray:
        """The same for many."""
        return np.array([self.predict(one) for one in facts])

    def predict(self, facts: Facts, kind: int | None = None) -> FloatArray:
        """Log seconds at each level. There has to be a job, in all."""
        kind = self.kind_of(facts) if kind is None else kind
        key = (kind, KINDS[kind][1](facts))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._work_out(kind, facts)
        return known

    def _work_out(self, kind: int, facts: Facts) -> FloatArray:
        own = self._groups.of(kind, facts) or ()
        values = np.array([value for value, _ in own])
        found = survival_quantiles(values, np.array([ended for _, ended in own], bool))
        if kind == ALL:
            return found
        wider = self.predict(facts, _WIDER_KIND[kind])
        mixed: FloatArray = (len(values) * found + WIDER * wider) / (len(values) + WIDER)
        return mixed
