"""What a scheduler is told about jobs of the goodput model: from its own runs to the whole truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.job import BatchMode, GoodputJob
from batuta.core.curve import SpeedCurve
from batuta.core.job import JobId
from batuta.core.outlook import Outlook

UNMEASURED_EXPONENT = 0.7
"""Speed by GPU count where nothing was measured: n to this power."""
LEAST_S = 1.0
"""No job is believed to have less left."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What the scheduler believes of a job now."""

    curve: SpeedCurve
    remaining_s: float
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A job as the backend sees it."""

    id: JobId
    model: GoodputJob
    batch_size: int
    most_gpus: int

    @property
    def application(self) -> str:
        return self.model.application.name


class Knowledge(Protocol):
    """Tells jobs how to choose their batch size, learns from what they do, and says what it believes."""

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        """`batch_size` is that of the job's request, or the largest where jobs may tune it."""
        ...

    def round_over(self, jobs: Sequence[Observed]) -> None:
        """These jobs are still there after a round."""
        ...

    def ended(self, job: Observed) -> None: ...

    def belief(self, job: Observed) -> Belief: ...
