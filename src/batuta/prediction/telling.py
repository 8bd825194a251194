"""What others were told last, and whether there is enough that is new to tell them again."""

from __future__ import annotations

import numpy as np

from batuta.core.curve import SpeedCurve

EVERY_S = 5.0
LEAST_FRACTION = 0.01
LEAST_CURVE = 0.02
LEAST_RESTART = 0.05


def differs(a: SpeedCurve, b: SpeedCurve, tolerance: float) -> bool:
    """Whether any speed of the two differs by more than this share."""
    if len(a.speeds) != len(b.speeds):
        return True
    left = np.array((*a.speeds[1:], a.across_nodes))
    right = np.array((*b.speeds[1:], b.across_nodes))
    return bool(np.any(np.abs(left - right) > tolerance * np.maximum(left, right)))


class Telling:
    """Keeps the journal small: a report a second from a thousand jobs would be all that is in it."""

    __slots__ = ("_at_s", "_fraction", "curve", "restart_s")

    def __init__(self, curve: SpeedCurve, restart_s: float) -> None:
        self.curve = curve
        """The curve that others go by."""
        self.restart_s = restart_s
        self._at_s: float | None = None
        self._fraction: float | None = None

    def new_curve(self, curve: SpeedCurve) -> SpeedCurve | None:
        """The curve, if it differs from what others go by; then they are told of it."""
        if not differs(curve, self.curve, LEAST_CURVE):
            return None
        self.curve = curve
        return curve

    def new_restart_s(self, restart_s: float | None) -> float | None:
        """The same for the cost of a restart."""
        if restart_s is None or abs(restart_s - self.restart_s) <= LEAST_RESTART * self.restart_s:
            return None
        self.restart_s = restart_s
        return restart_s

    def is_due(self, now_s: float, fraction: float | None) -> bool:
        """Whether time or progress alone are reason enough."""
        if self._at_s is None or not 0 <= now_s - self._at_s < EVERY_S:
            return True
        if fraction is None or self._fraction is None:
            return fraction is not self._fraction
        # A report in every hundredth of the whole is meant, not one in most of them.
        return abs(fraction - self._fraction) >= LEAST_FRACTION - 1e-9

    def told(self, now_s: float, fraction: float | None) -> None:
        self._at_s, self._fraction = now_s, fraction
