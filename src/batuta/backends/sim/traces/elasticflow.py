"""ElasticFlow: jobs of five Microsoft clusters.

`job_id,submission_time,duration,num_gpu`: times in seconds. Throughput tables of the same authors
(`throughputs_T4`, `throughputs_A100`) give jobs measured curves: see `Elasticity`.
Gu et al., "ElasticFlow: An Elastic Serverless Training Platform", ASPLOS 2023.
"""

from __future__ import annotations

from batuta.backends.sim.traces.assembly import Request, assemble
from batuta.backends.sim.traces.table import Cells, csv_rows, has_columns
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    requests = [
        Request(
            line,
            cells.name(line, "job_id", job_id),
            cells.seconds(line, "submission_time", submitted),
            cells.seconds(line, "duration", duration),
            cells.gpus(line, "num_gpu", gpus),
        )
        for line, (job_id, submitted, duration, gpus) in csv_rows(file, cells, COLUMNS)
    ]
    return assemble(file, FORMAT.name, requests, cells, options)


FORMAT = TraceFormat(
    "elasticflow",
    "CSV with job_id,submission_time,duration,num_gpu",
    lambda first_line: has_columns(first_line, COLUMNS),
    read,
)
