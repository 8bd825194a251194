"""From the requests of a rigid trace to a workload: order, time zero, ids, sizes, work."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from batuta.backends.sim.traces.shape import Shaper, shaper_for
from batuta.backends.sim.traces.table import Cells
from batuta.backends.sim.traces.trace_format import TraceFile, TraceOptions
from batuta.backends.sim.workload import SimJob, Workload
from batuta.core.job import ANY_TYPE, Job, Share
from batuta.spec.problem import InputError


class Request(NamedTuple):
    """One job of a rigid trace, as recorded: it ran `duration_s` seconds on `gpus` GPUs."""

    line: int
    id: str
    """Empty where the trace has none: one is made from the format's name and the place in submit order."""
    submit_s: float
    duration_s: float
    gpus: int
    user: str = ""
    application: str = ""
    gpu_types: tuple[tuple[str, float], ...] = ANY_TYPE
    share: Share | None = None
    cpus_milli_per_gpu: int = 0
    memory_mib_per_gpu: int = 0


def assemble(
    file: TraceFile,
    format_name: str,
    requests: list[Request],
    cells: Cells,
    options: TraceOptions,
    notes: Sequence[str] = (),
) -> Workload:
    """The workload, or every problem that was found on the way.

    Jobs are in submit order, ties as in the file; the first is submitted at 0. The true amount of work is
    such that a job takes its recorded time at its recorded size, whatever the curve.
    """
    requests.sort(key=attrgetter("submit_s"))
    note_duplicate_ids(cells, requests)
    if not requests and not cells.problems:
        cells.fault(0, "holds no jobs")
    if cells.problems:
        raise InputError(sorted(cells.problems, key=attrgetter("line")))
    shape = shaper_for(file, options, len(requests))
    width = max(5, len(str(len(requests))))
    start_s = requests[0].submit_s
    jobs = tuple(
        _sim_job(request, request.id or f"{format_name}-{index + 1:0{width}d}", index, start_s, shape)
        for index, request in enumerate(requests)
    )
    return Workload(file.title, format_name, jobs, tuple(notes))


def note_duplicate_ids(cells: Cells, requests: Sequence[Request]) -> None:
    """One problem for every line that repeats an id, naming the first."""
    ids = [request.id for request in requests if request.id]
    if len({*ids}) == len(ids):
        return
    first: dict[str, int] = {}
    for request in sorted(requests, key=attrgetter("line")):
        seen = first.setdefault(request.id, request.line)
        if request.id and seen != request.line:
            cells.fault(request.line, f"id {request.id} is taken by line {seen}", "ids must be unique")


def _sim_job(request: Request, job_id: str, index: int, start_s: float, shape: Shaper) -> SimJob:
    own = shape(index, request.gpus)
    # A part of a GPU cannot grow: such a job stays as it is.
    low, high = (1, 1) if request.share is not None else (own.min, own.max)
    work_s = request.duration_s * own.curve.at(request.gpus)
    job = Job(
        id=job_id,
        submit_s=request.submit_s - start_s,
        size=request.gpus,
        min=low,
        max=high,
        user=request.user,
        application=request.application or own.application,
        gpu_types=request.gpu_types,
        share=request.share,
        cpus_milli_per_gpu=request.cpus_milli_per_gpu,
        memory_mib_per_gpu=request.memory_mib_per_gpu,
        curve=own.curve,
        work_s=work_s,
    )
    return SimJob(job, work_s, own.curve)
