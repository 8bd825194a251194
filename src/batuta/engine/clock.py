"""Unix seconds that never go backwards."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """Follows a clock. When that is set back, time goes on from where it was, and stays ahead of it."""

    def __init__(self, clock: Callable[[], float], since_s: float = float("-inf")) -> None:
        """`since_s`: a time that has been already, by a clock that was ahead."""
        self._clock = clock
        self._ahead_s = 0.0
        self._last_s = since_s

    def __call__(self) -> float:
        now_s = self._clock() + self._ahead_s
        if now_s < self._last_s:
            self._ahead_s += self._last_s - now_s
            now_s = self._last_s
        self._last_s = now_s
        return now_s
