"""What a trial run showed, read from the World and from what was seen of its GPUs and its output."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId, JobState
from batuta.core.progress import Progress
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.core.world import World
from batuta.prediction.application_history import measured, name_of

_OUT_OF_MEMORY = re.compile(
    r"out of memory|out_of_memory|outofmemory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)
"""How CUDA, cuBLAS, PyTorch and JAX say it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The GPUs of a run at one moment. None: not known."""

    memory_mib: int | None = None
    """In use, on the fullest of them."""
    utilisation: float | None = None
    """On the average, 0 to 1."""


@dataclass(slots=True)
class Seen:
    """All looks at the GPUs of one run, summed up."""

    memory_mib: int | None = None
    _busy: float = 0.0
    _looks: int = 0

    def add(self, look: Look) -> None:
        if look.memory_mib is not None:
            self.memory_mib = max(look.memory_mib, self.memory_mib or 0)
        if look.utilisation is not None:
            self._busy += look.utilisation
            self._looks += 1

    @property
    def utilisation(self) -> float | None:
        return round(self._busy / self._looks, 3) if self._looks else None


def speaks_of_memory(output: str) -> bool:
    """Whether the end of a failed run's output says that it ran out of GPU memory."""
    return _OUT_OF_MEMORY.search(output) is not None


def read_run(world: World, run: JobId, seen: Seen, output: str) -> TrialMeasurement:
    """What a run showed that goes on, or has ended. `output` is the end of what it printed."""
    past = world.past.get(run)
    if past is not None:
        outcome, detail = _how_it_ended(past.state, not math.isnan(past.first_start_s), output)
        return _told(world, past.job, past.placement, past.progress, seen, outcome, past.detail or detail)
    row = world.jobs.row(run)
    started_s = world.jobs.f("first_start_s").item(row)
    outcome = TrialOutcome.NOT_RUN if math.isnan(started_s) else TrialOutcome.MEASURED
    job, placement = world.jobs.jobs[row], world.jobs.placements[row]
    return _told(world, job, placement, world.progress.get(run), seen, outcome, "")


def _how_it_ended(state: JobState, has_run: bool, output: str) -> tuple[TrialOutcome, str]:
    if state is JobState.SUCCEEDED:
        return TrialOutcome.MEASURED, "it was done before its time was over"
    if state is JobState.CANCELLED:
        return (TrialOutcome.MEASURED if has_run else TrialOutcome.NOT_RUN), "it was cancelled"
    return (TrialOutcome.OUT_OF_MEMORY if speaks_of_memory(output) else TrialOutcome.FAILED), ""


def _told(
    world: World,
    job: Job,
    placement: Placement | None,
    progress: Progress | None,
    seen: Seen,
    outcome: TrialOutcome,
    detail: str,
) -> TrialMeasurement:
    speed = measured(progress) if progress is not None and outcome is TrialOutcome.MEASURED else None
    if speed is None and outcome is TrialOutcome.MEASURED:
        outcome = TrialOutcome.SILENT
    unit, batch, rate = speed or ("", 0, None)
    nodes, racks, gpu_type = _place(world, placement)
    return TrialMeasurement(
        run=job.id,
        gpus=job.size,
        outcome=outcome,
        application=name_of(job),
        gpu_type=gpu_type,
        nodes=nodes,
        racks=racks,
        unit=unit,
        batch=batch,
        units_per_s=rate,
        step_s=progress.step_s if progress is not None and rate is not None else None,
        memory_mib=seen.memory_mib,
        utilisation=seen.utilisation,
        detail=detail,
    )


def _place(world: World, placement: Placement | None) -> tuple[int, int, str]:
    if placement is None or placement.spans[0].node not in world.nodes.index:
        return 1, 1, ""
    first = world.nodes.nodes[world.nodes.index[placement.spans[0].node]]
    racks = world.nodes.racks(placement) if len(placement.spans) > 1 else 1
    return min(len(placement.nodes), 2), min(racks, 2), first.gpu_type
