"""The ports of each node that pods hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from batuta.backends.kube.binder.node_table import Flags, Rows
from batuta.backends.kube.binder.requests import HostPort


class PortTable:
    """Host ports in use: few pods have any, so only their nodes are kept."""

    def __init__(self) -> None:
        self.by_row: dict[int, Counter[HostPort]] = {}

    def take(self, row: int, ports: Iterable[HostPort], sign: int) -> None:
        """Takes ports (`sign` 1), or gives them back (-1)."""
        for port in ports:
            held = self.by_row.setdefault(row, Counter())
            held[port] += sign
            if not held[port]:
                del held[port]
            if not held:
                del self.by_row[row]

    def clash(self, row: int, wanted: Iterable[HostPort]) -> HostPort | None:
        """The first wanted port that is not free."""
        held = self.by_row.get(row)
        if held is None:
            return None
        return next((port for port in wanted if any(port.clashes(other) for other in held)), None)

    def free(self, rows: Rows, wanted: tuple[HostPort, ...]) -> Flags:
        """Which of the rows have all wanted ports free."""
        return np.fromiter((self.clash(int(row), wanted) is None for row in rows), np.bool_, len(rows))
