"""How old things are by time that has really passed, whatever the clock was set to meanwhile.

What is kept for some days is removed by its age: jobs with their checkpoints, events, keys of submits. A clock
that jumps a year ahead (a wrong battery, a wrong time server, a machine that was restored) would make all of it
old at once. So jumps are noted and taken out of ages: while the process runs, time passes as the machine's
steady clock says, which counts also while the machine is suspended; between two processes at most a day passes.
What is noted outlives the process.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable

from batuta.engine.ports import Settings

_log = logging.getLogger(__name__)
SETTING = "observed-time"
TOLERANCE_S = 60.0  # corrections up to this are no jump: they make nothing old
LONGEST_GAP_S = 86_400.0  # the most that counts of a time in which no process was there to see it
_MOST_JUMPS = 64


def steady_s() -> float:
    """Return seconds since the machine was started, suspended or not; no program can set them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ObservedTime:
    """Turns ages into times of the clock. Any thread may ask; `look` is to be called now and then."""

    def __init__(
        self,
        settings: Settings,
        last_s: float = 0.0,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_s,
    ) -> None:
        """`last_s`: a time that was observed already, the last event's say, where the settings have none; 0: none."""
        self._settings, self.clock, self.steady = settings, clock, steady
        self._lock = threading.Lock()
        self._jumps: list[
            tuple[float, float]
        ] = []  # when the clock had jumped ahead, and the seconds that never passed
        self._behind_s = 0.0  # how far it was set back: a jump ahead by as much only puts it right again
        now_s = clock()
        self._offset_s = now_s - steady()
        seen_s = self._recall() or last_s or now_s
        unseen_s = now_s - seen_s - LONGEST_GAP_S
        if unseen_s > TOLERANCE_S:
            self._note(now_s, unseen_s)
        self._forget_later_than(now_s)

    def look(self) -> bool:
        """Note a jump of the clock since the last look; return whether there was one."""
        with self._lock:
            now_s, steady = self.clock(), self.steady()
            jumped_s = now_s - steady - self._offset_s
            if abs(jumped_s) <= TOLERANCE_S:
                return False
            self._offset_s = now_s - steady
            if jumped_s > 0:
                skipped_s = max(0.0, jumped_s - self._behind_s)
                self._behind_s -= jumped_s - skipped_s
                if skipped_s > TOLERANCE_S:
                    self._note(now_s, skipped_s)
            else:
                self._behind_s += max(0.0, -jumped_s - self._forget_later_than(now_s))
        _log.warning("the clock has jumped by %.0f s; nothing gets older by it", jumped_s)
        return True

    def before_s(self, age_s: float) -> float:
        """Return the time before which things are older than an age."""
        self.look()
        with self._lock:
            place_s, left_s = self.clock(), age_s
            for at_s, skipped_s in reversed(self._jumps):
                if place_s - at_s >= left_s:
                    break
                left_s -= max(0.0, place_s - at_s)
                place_s = min(place_s, at_s - skipped_s)
            return place_s - left_s

    def save(self) -> None:
        """Keep what was observed for the next process."""
        with self._lock:
            text = json.dumps({"seen_s": self.clock(), "jumps": self._jumps, "behind_s": self._behind_s})
        self._settings.put(SETTING, text)

    def _note(self, at_s: float, skipped_s: float) -> None:
        self._jumps.append((at_s, skipped_s))
        if len(self._jumps) > _MOST_JUMPS:
            # Too much is taken out rather than too little.
            (_, first_s), (at_s, second_s), *rest = self._jumps
            self._jumps = [(at_s, first_s + second_s), *rest]

    def _forget_later_than(self, now_s: float) -> float:
        """The clock was set back before these jumps: they are undone. Return their seconds."""
        undone_s = sum(skipped_s for at_s, skipped_s in self._jumps if at_s > now_s)
        self._jumps = [jump for jump in self._jumps if jump[0] <= now_s]
        return undone_s

    def _recall(self) -> float:
        try:
            data = json.loads(self._settings.get(SETTING) or "{}")
            jumps = sorted((float(at_s), float(skipped_s)) for at_s, skipped_s in data.get("jumps", ()))
            seen_s, behind_s = float(data.get("seen_s", 0.0)), float(data.get("behind_s", 0.0))
        except (ValueError, TypeError, AttributeError):
            return 0.0
        if not all(map(math.isfinite, (seen_s, behind_s, *(value for jump in jumps for value in jump)))):
            return 0.0
        self._jumps, self._behind_s = jumps, behind_s
        return seen_s
