"""Philly: jobs of a Microsoft cluster in 2017, as prepared by the authors of Pollux.

`timestamp,duration,num_gpus,gpu_time,cluster`: submit time (`2017-10-09 07:01:55`), seconds, GPUs, their
product, the virtual cluster. There are no ids and no users: ids are made in submit order, the virtual cluster
(a team) stands for the user. Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters", ATC 2019.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from batuta.backends.sim.traces.assembly import Request, assemble
from batuta.backends.sim.traces.table import Cells, csv_rows, has_columns
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_ZERO = datetime(1970, 1, 1)  # noqa: DTZ001 - the trace's times name no zone; only differences are used
_SECOND = timedelta(seconds=1)


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    seconds, gpus = cells.seconds, cells.gpus
    requests = [
        Request(
            line,
            "",
            _seconds_of(cells, line, timestamp),
            seconds(line, "duration", duration),
            gpus(line, "num_gpus", size),
            cluster,
        )
        for line, (timestamp, duration, size, cluster) in csv_rows(file, cells, COLUMNS)
    ]
    return assemble(file, FORMAT.name, requests, cells, options)


def _seconds_of(cells: Cells, line: int, text: str) -> float:
    try:
        return (datetime.fromisoformat(text) - _ZERO) / _SECOND
    except (ValueError, TypeError):  # TypeError: the time names a zone
        cells.fault(line, f"timestamp must be like 2017-10-09 07:01:55, found {text!r}")
        return 0.0


FORMAT = TraceFormat(
    "philly",
    "CSV with timestamp,duration,num_gpus,gpu_time,cluster",
    lambda first_line: has_columns(first_line, COLUMNS),
    read,
)
