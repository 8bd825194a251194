"""Pollux: `workload-N.csv` of the OSDI 2021 artifact, for the goodput replay.

`name,time,application,num_replicas,batch_size`; the last two are the rigid request that Tiresias and Optimus
use. How long a job runs follows from the profile of its application, not from this file: `work_s` and the
curve are only what is believed of an unknown application. Times stay as they are, since the replay's rounds
count from 0 of the file. A job may have 1 to 64 GPUs (the authors' cluster), or its request where that is
more.
"""

from __future__ import annotations

from batuta.backends.sim.speed import LARGEST_JOB_GPUS
from batuta.backends.sim.traces.assembly import Request, note_duplicate_ids
from batuta.backends.sim.traces.table import Cells, csv_rows, has_columns
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload
from batuta.core.curve import power_curve
from batuta.core.job import Job
from batuta.spec.problem import InputError

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
CLUSTER_GPUS = 64
_UNKNOWN_WORK_S = 3600.0
_UNKNOWN_EXPONENT = 0.7
_LARGEST_BATCH = 10**9


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    jobs: list[SimJob] = []
    requests: list[Request] = []
    for line, (name, time, application, replicas, batch) in csv_rows(file, cells, COLUMNS):
        request = Request(
            line,
            cells.name(line, "name", name),
            cells.seconds(line, "time", time),
            0.0,
            cells.whole(line, "num_replicas", replicas, 1, LARGEST_JOB_GPUS),
            application=cells.name(line, "application", application),
        )
        requests.append(request)
        jobs.append(_sim_job(request, cells.whole(line, "batch_size", batch, 1, _LARGEST_BATCH)))
    note_duplicate_ids(cells, requests)
    if not jobs and not cells.problems:
        cells.fault(0, "holds no jobs")
    if cells.problems:
        raise InputError(sorted(cells.problems, key=lambda problem: problem.line))
    jobs.sort(key=lambda own: own.job.submit_s)
    return Workload(file.title, FORMAT.name, tuple(jobs))


def _sim_job(request: Request, batch_size: int) -> SimJob:
    largest = max(request.gpus, CLUSTER_GPUS)
    curve = power_curve(largest, _UNKNOWN_EXPONENT)
    job = Job(
        id=request.id,
        submit_s=request.submit_s,
        size=request.gpus,
        min=1,
        max=largest,
        application=request.application,
        curve=curve,
        work_s=_UNKNOWN_WORK_S,
    )
    asked = GoodputRequest(request.application, request.gpus, batch_size)
    return SimJob(job, _UNKNOWN_WORK_S, curve, asked)


FORMAT = TraceFormat(
    "pollux",
    "CSV with name,time,application,num_replicas,batch_size",
    lambda first_line: has_columns(first_line, COLUMNS),
    read,
    rigid=False,
)
