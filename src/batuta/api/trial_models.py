"""What is answered about trial runs, as the OpenAPI document has it."""

from __future__ import annotations

from pydantic import BaseModel


class TrialRun(BaseModel):
    """One size that is tried, or was. Null: not known."""

    run: str
    """The id of the job that it is."""
    gpus: int
    state: str
    """planned, waits, runs; then how it went: measured, out of memory, failed, …"""
    gpu_type: str
    nodes: int
    """Two stands for more of them."""
    batch: int | None
    """Samples in a step."""
    steps_per_s: float | None
    units_per_s: float | None
    """Samples, epochs or steps per second."""
    unit: str
    efficiency: float | None
    """Speed for each GPU, relative to that at the smallest size that was measured."""
    memory_mib: int | None
    """The most that was in use on one GPU."""
    utilisation: float | None
    detail: str


class Trial(BaseModel):
    """The trial runs of a job."""

    over: bool
    """Whether the job waits for them no longer, or in vain."""
    only: bool
    """It is tried out and nothing else."""
    budget_s: float
    each_s: float
    runs: list[TrialRun]
    chosen_gpus: int | None
    """What is best asked for; null when too little is known."""
    sentence: str
    """What it comes to; empty as long as it goes on."""
