"""How long each step of a start or resize takes, and what a stop loses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

REMEMBERED = 9
"""The median of so many: one slow disk does not count, and a job that has changed is soon known again."""


@dataclass(frozen=True, slots=True)
class TransitionTimes:
    """The usual length of each step. None: it has not happened yet."""

    checkpoint_s: float | None = None
    """From asking for a checkpoint until there is one."""
    stop_s: float | None = None
    """From there (or from asking, when none came) until all processes are gone."""
    start_s: float | None = None
    """From the start of the processes until the training goes on."""
    lost_s: float | None = None
    """Work that is done again, in seconds on one GPU of the reference type."""


class TransitionMeter:
    """Measures each step of a transition as it happens; knows what a restart costs this job.

    Steps may be missing: a crash is a stop without a request, and a checkpoint without a request is no step.
    Times that go backwards are not used. How long a job waits between its stop and its next start is
    the scheduler's doing and no part of it.
    """

    __slots__ = (
        "_asked_s",
        "_checkpoint",
        "_checkpointed_s",
        "_leave",
        "_lost",
        "_start",
        "_started_s",
        "_stop",
    )

    def __init__(self) -> None:
        self._asked_s: float | None = None
        self._checkpointed_s: float | None = None
        self._started_s: float | None = None
        self._checkpoint: deque[float] = deque(maxlen=REMEMBERED)
        self._stop: deque[float] = deque(maxlen=REMEMBERED)
        self._leave: deque[float] = deque(maxlen=REMEMBERED)
        self._start: deque[float] = deque(maxlen=REMEMBERED)
        self._lost: deque[float] = deque(maxlen=REMEMBERED)

    def asked(self, time_s: float) -> None:
        """The job was asked for a checkpoint, because it is to stop."""
        if self._asked_s is None:
            self._asked_s, self._checkpointed_s = time_s, None

    def checkpointed(self, time_s: float) -> None:
        """The checkpoint that was asked for is there."""
        if self._asked_s is not None and self._checkpointed_s is None and time_s >= self._asked_s:
            self._checkpointed_s = time_s
            self._checkpoint.append(time_s - self._asked_s)

    def stopped(self, time_s: float) -> None:
        """All processes are gone."""
        if self._asked_s is not None and time_s >= self._asked_s:
            since_s = self._asked_s if self._checkpointed_s is None else self._checkpointed_s
            self._stop.append(max(0.0, time_s - since_s))
            self._leave.append(time_s - self._asked_s)
        self._asked_s = self._checkpointed_s = self._started_s = None

    def started(self, time_s: float) -> None:
        """The processes of a new run were started."""
        self._asked_s = self._checkpointed_s = None
        self._started_s = time_s

    def progressed(self, time_s: float) -> None:
        """The run that was started last makes progress since then; said once per run."""
        if self._started_s is not None and time_s >= self._started_s:
            self._start.append(time_s - self._started_s)
        self._started_s = None

    def lost(self, work_s: float) -> None:
        """The new run did not go on where the last one ended."""
        self._lost.append(work_s)

    @property
    def restart_s(self) -> float | None:
        """Seconds without progress at a resize: from asking until stopped, from start until progress.

        None until a start was measured; until a stop was asked for, that part counts as nothing.
        """
        if not self._start:
            return None
        return median(self._start) + (median(self._leave) if self._leave else 0.0)

    @property
    def times(self) -> TransitionTimes:
        """All steps one by one, for people."""
        return TransitionTimes(
            *(median(found) if found else None for found in (self._checkpoint, self._stop, self._start, self._lost))
        )
