"""Trial runs as values: at which sizes a job is to be tried out before it is queued, and what that showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class TrialOutcome(Enum):
    """How a trial run went, as people read it."""

    MEASURED = "measured"
    SILENT = "reported no speed"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    NOT_RUN = "got no GPUs in time"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What is to be tried out before a job is queued. Kept with the job, so that a replay tries the same."""

    sizes: tuple[int, ...]  # GPUs, ascending
    budget_s: float  # seconds after its submit a job is tried out no longer, whatever is measured by then
    each_s: float  # seconds that it runs at each size
    priority: int = 0  # of the trial runs
    only: bool = False  # the job is over when it is tried out: its user only wanted to know
    open_up_to: int | None = None  # the most GPUs that may be chosen for it; None where its user said a size
    for_good: bool = False  # it keeps the size that is chosen


@dataclass(frozen=True, slots=True)
class TrialMeasurement:
    """What one trial run showed. None: not known."""

    run: str  # the id of the job that it was
    gpus: int
    outcome: TrialOutcome
    application: str = ""
    gpu_type: str = ""
    nodes: int = 1  # two stands for more of them; so it does for racks
    racks: int = 1
    unit: str = ""  # what its speed counts: samples, epochs or steps
    batch: int = 0  # samples in a step; 0 when it is not known
    units_per_s: float | None = None
    step_s: float | None = None
    memory_mib: int | None = None  # the most that was in use on one of its GPUs
    utilisation: float | None = None  # of its GPUs on the average, 0 to 1
    detail: str = ""

    @property
    def sentence(self) -> str:
        """All of it that people want to read."""
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        if self.units_per_s is None:
            return f"with {gpus}: {self.outcome.value}{f' ({self.detail})' if self.detail else ''}"
        said = [f"{self.units_per_s:.3g} {self.unit}/s"]
        if self.memory_mib is not None:
            said.append(f"{self.memory_mib} MiB of a GPU's memory")
        if self.utilisation is not None:
            said.append(f"GPUs {100 * self.utilisation:.0f} % busy")
        return f"with {gpus}: {', '.join(said)}"


def run_id(job: str, gpus: int) -> str:
    """The id of a job's trial run at a size: the same again after a restart, so that none is made twice."""
    return f"{job}-t{gpus}"


def never_fits(measured: Sequence[TrialMeasurement], sizes: Sequence[int]) -> bool:
    """Whether a job ran out of memory at every size that was to be tried."""
    failed = {one.gpus for one in measured if one.outcome is TrialOutcome.OUT_OF_MEMORY}
    return failed.issuperset(sizes)
