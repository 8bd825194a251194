"""What jobs of the past say about new ones, as the API asks for it."""

from __future__ import annotations

from typing import Protocol

from batuta.core.job import Job
from batuta.prediction.duration_calibration import Calibration
from batuta.prediction.initial_size import choose_size, settle


class Experience(Protocol):
    """Is asked about every job before it is accepted, in the engine's thread: it answers at once."""

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        """The job with what is known of its speed and its length, and with a size where that is open.

        `open_up_to` are the most GPUs that may be chosen; None where its user said a size. `for_good`: it
        keeps the size that is chosen now.
        """
        ...

    def calibration(self) -> Calibration:
        """Whether what was told of lengths came true."""
        ...


class NoExperience:
    """Knows nothing, and leaves jobs as they are; a size that is open is the smallest."""

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        if open_up_to is None:
            return job
        return settle(job, choose_size(job, None, open_up_to), for_good=for_good)

    def calibration(self) -> Calibration:
        return Calibration()
