"""How long this process works on its own part of each step, without the time in which it waits for others.

In training that keeps step, all ranks take equally long for a step: the fast ones wait for the slow ones.
What tells a slow rank is the time before that wait.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class OwnTime:
    """The clock of one process: it stands still while the process waits for others."""

    def __init__(self) -> None:
        self.waits_since_s: float | None = None
        """Since when it waits, by `time.perf_counter`; None while it does not."""
        self._depth = 0
        self._step: int | None = None
        """At the last report that named one, …"""
        self._since_s = 0.0
        """… which was then."""
        self._waited_s = 0.0
        """How long of the time since then it has waited."""

    def begin_waiting(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.waits_since_s = time.perf_counter()

    def end_waiting(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self.waits_since_s is not None:
            self._waited_s += time.perf_counter() - self.waits_since_s
            self.waits_since_s = None

    def so_far_s(self) -> float:
        """Own time since the last report that named a step; 0 before the first."""
        if self._step is None:
            return 0.0
        return max(0.0, time.perf_counter() - self._since_s - self._waited_s)

    def take(self, step: Any) -> tuple[float, int] | None:
        """Own time up to a step, and how many steps that were; None where nobody knows."""
        if not isinstance(step, int) or step == self._step:
            return None
        before, own_s = self._step, self.so_far_s()
        self._step, self._since_s, self._waited_s = step, time.perf_counter(), 0.0
        return (own_s, step - before) if before is not None and step > before else None


own_time = OwnTime()


def fields(
    said: Any, taken: tuple[float, int] | None, held: dict[str, Any] | None
) -> dict[str, float | int | list[float]]:
    """What a report says of own time: `said` by the script, or `taken` from the clock.

    That of a report which was held back and is dropped for this one is added.
    """
    seconds, steps = ([], 0) if taken is None else ([taken[0]], taken[1])
    is_list = hasattr(said, "__len__") and getattr(said, "ndim", 1) > 0
    if said is not None:
        seconds, steps = [float(one) for one in said] if is_list else [float(said)], max(steps, 1)
    if held is not None and "own_s" in held:
        before = held["own_s"] if isinstance(held["own_s"], list) else [held["own_s"]]
        if not seconds or len(seconds) == len(before):
            is_list = isinstance(held["own_s"], list)
            seconds = [one + other for one, other in zip(before, seconds or [0.0] * len(before), strict=True)]
            steps += held["own_steps"]
    if not seconds:
        return {}
    short = [float(f"{one:.4g}") for one in seconds]
    return {"own_s": short if is_list else short[0], "own_steps": steps}
