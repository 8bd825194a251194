"""The claims that have quota, queue by queue."""

from __future__ import annotations

import math
from collections.abc import Hashable

from batuta.quota.claim import Claim


class Holders(dict[str, dict[Hashable, Claim]]):
    """By queue and key. Where the use of a queue is known without them, they are made when somebody looks."""

    def __missing__(self, queue: str) -> dict[Hashable, Claim]:
        found = self[queue] = self.make(queue)
        return found

    def make(self, queue: str) -> dict[Hashable, Claim]:
        """Those of a queue at whom nobody has looked yet."""
        return {}

    def lowest(self, queue: str) -> float:
        """The lowest priority among those of a queue; infinite if there is nobody."""
        found = self.get(queue)
        if found is None:
            return self.lowest_unseen(queue)
        return min((claim.priority for claim in found.values()), default=math.inf)

    def lowest_unseen(self, queue: str) -> float:
        """The same for a queue at whose claims nobody has looked yet."""
        return math.inf
