"""Muri: Philly-derived jobs with a model, iterations and per-stage times; all times in milliseconds.

`job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0…2,
priority`. The stage times serve interleaving, which Batuta does not do. `priority` (0 or 1) is not carried
over: it would let one half of the jobs preempt the other. Zhao et al., "Multi-Resource Interleaving for Deep
Learning Training", SIGCOMM 2022.
"""

from __future__ import annotations

from batuta.backends.sim.traces.assembly import Request, assemble
from batuta.backends.sim.traces.table import Cells, csv_rows, has_columns
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload

COLUMNS = ("job_id", "num_gpu", "submit_time", "model_name", "duration")
_MS_PER_S = 1000.0


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    requests = [
        Request(
            line,
            cells.name(line, "job_id", job_id),
            cells.seconds(line, "submit_time", submitted_ms) / _MS_PER_S,
            cells.seconds(line, "duration", duration_ms) / _MS_PER_S,
            cells.gpus(line, "num_gpu", gpus),
            application=model.strip(),
        )
        for line, (job_id, gpus, submitted_ms, model, duration_ms) in csv_rows(file, cells, COLUMNS)
    ]
    notes = ("the column priority is not used",)
    return assemble(file, FORMAT.name, requests, cells, options, notes)


FORMAT = TraceFormat(
    "muri",
    "CSV with job_id,num_gpu,submit_time,iterations,model_name,…,duration,… (times in ms)",
    lambda first_line: has_columns(first_line, COLUMNS),
    read,
)
