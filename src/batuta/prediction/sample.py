"""What goes into a meter, and what comes out when it is worth an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from batuta.core.curve import SpeedCurve
from batuta.core.progress import Progress


class Sample(NamedTuple):
    """One report of a training script. None: not said.

    A tuple and not a dataclass, because a server that starts again makes them by the hundred thousand.
    """

    time_s: float
    """By the clock of the process that reports; the time of reading where the report has none."""
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    """Epochs finished so far."""
    total_epochs: float | None = None
    samples: float | None = None
    loss: float | None = None
    rank: int | None = None
    noise_scale: float | None = None
    """Samples in a step from which on more of them bring little: the gradient noise scale."""


@dataclass(frozen=True, slots=True)
class News(Progress):
    """Where a job is and how fast. None: not known; a `curve` or `restart_s` of None has not changed."""

    remaining_s: float | None = None
    """Seconds left on one GPU of the reference type; None: no better estimate than the World's own."""
    curve: SpeedCurve | None = None
    restart_s: float | None = None
