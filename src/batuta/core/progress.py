"""How far a job is, in the words of its own reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The last that was heard; None where the job does not say."""

    fraction: float | None = None
    """Of all its work, 0 to 1."""
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
