"""What was once found out about a process, for as long as it is that very process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from batuta.gpu.attribution.processes import PROC, read_work

V = TypeVar("V")
_MOST: Final = 4096


class ProcessMemo(Generic[V]):
    """Asks once for each process. Pids are used again: a process is its pid and the time of its start."""

    def __init__(self, ask: Callable[[int], V], proc: Path = PROC) -> None:
        self._ask = ask
        self._proc = proc
        self._known: dict[int, tuple[int, V]] = {}

    def of(self, pid: int) -> V | None:
        """None for a process that has gone."""
        work = read_work(pid, self._proc)
        if work is None:
            self._known.pop(pid, None)
            return None
        known = self._known.get(pid)
        if known is None or known[0] != work.start_ticks:
            if len(self._known) >= _MOST:
                self._known.clear()  # most of them have long ended
            known = self._known[pid] = (work.start_ticks, self._ask(pid))
        return known[1]
