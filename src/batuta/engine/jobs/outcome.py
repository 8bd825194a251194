"""How a run of a job has ended, and what that means for the job: the same words for every backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from batuta.core.job import JobState


class RunEnd(Enum):
    """How a run has ended."""

    SUCCEEDED = auto()
    STOPPED = auto()  # because it was told to
    FAILED = auto()  # by its own fault; it may be started again
    FAILED_SETUP = auto()
    TIME_LIMIT = auto()
    PROCESS_LIMIT = auto()  # it had more processes than it may have; it may be started again, as after any failure
    MEMORY_LIMIT = auto()
    CANNOT_START = auto()  # to try again would not help
    LOST = auto()  # by no fault of its own: its runner was killed, its node went away, the machine has no room


FAILURES = frozenset((RunEnd.FAILED, RunEnd.PROCESS_LIMIT, RunEnd.MEMORY_LIMIT))
"""Ends by the job's own fault that count towards the limit on restarts."""
_FINAL = {
    RunEnd.SUCCEEDED: JobState.SUCCEEDED,
    RunEnd.FAILED_SETUP: JobState.FAILED_SETUP,
    RunEnd.TIME_LIMIT: JobState.FAILED,
    RunEnd.CANNOT_START: JobState.FAILED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run has ended, as a code and as a sentence."""

    end: RunEnd
    exit_code: int | None = None  # as a shell would say it: 128 and the signal's number for one that was killed
    detail: str = ""
    limit: float | None = None  # that was reached: a count of processes, or bytes

    @property
    def final_state(self) -> JobState | None:
        """What the job is after it; None when it may be started again."""
        return _FINAL.get(self.end)
