"""Alibaba v2023: pods with whole GPUs or a part of one.

`name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`.
- Submitted at `creation_time`. Runs from `scheduled_time` to `deletion_time`; a pod that was never scheduled
  gets the time from its creation to its deletion, so that the demand stays in the trace (a note counts them).
- `gpu_milli` below 1000 is a share of one GPU: compute in percent, rounded up; its GPU memory is not known.
- `gpu_spec` (`V100M16|V100M32`) lists the accepted GPU types, all at the same speed.
- CPU and memory are per GPU, rounded up. Pods without a GPU are left out (a note counts them).
Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
ATC 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.sim.traces.assembly import Request, assemble
from batuta.backends.sim.traces.table import Cells, csv_rows, has_columns
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload
from batuta.core.job import ANY_TYPE, Share

COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
_WHOLE_GPU_MILLI = 1000
_MOST = 10**12


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    requests: list[Request] = []
    without_gpu = never_scheduled = 0
    for line, row in csv_rows(file, cells, COLUMNS):
        request = _request(cells, line, row)
        if request is None:
            without_gpu += 1
        else:
            requests.append(request)
            never_scheduled += not row[8].strip()
    notes = []
    if without_gpu:
        notes.append(f"{without_gpu} pods without a GPU are left out")
    if never_scheduled:
        notes.append(f"{never_scheduled} pods were never scheduled: they run from creation to deletion")
    return assemble(file, FORMAT.name, requests, cells, options, notes)


def _request(cells: Cells, line: int, row: Sequence[str]) -> Request | None:
    name, cpu, memory, gpus_text, milli_text, spec, created, deleted, scheduled = row
    gpus = cells.gpus(line, "num_gpu", gpus_text, low=0)
    creation_s = cells.seconds(line, "creation_time", created)
    start_s = cells.seconds(line, "scheduled_time", scheduled) if scheduled.strip() else creation_s
    end_s = cells.seconds(line, "deletion_time", deleted)
    cpu_milli = cells.whole(line, "cpu_milli", cpu, 0, _MOST)
    memory_mib = cells.whole(line, "memory_mib", memory, 0, _MOST)
    pod = cells.name(line, "name", name)
    if gpus == 0:
        return None
    if end_s < start_s:
        cells.fault(line, f"deletion_time {deleted} lies before the start at {start_s:g}")
    types = tuple((part.strip(), 1.0) for part in spec.split("|") if part.strip())
    return Request(
        line,
        pod,
        creation_s,
        max(0.0, end_s - start_s),
        gpus,
        gpu_types=types or ANY_TYPE,
        share=_share(cells, line, gpus, milli_text),
        cpus_milli_per_gpu=-(-cpu_milli // gpus),
        memory_mib_per_gpu=-(-memory_mib // gpus),
    )


def _share(cells: Cells, line: int, gpus: int, text: str) -> Share | None:
    milli = cells.whole(line, "gpu_milli", text, 1, _WHOLE_GPU_MILLI)
    if milli == _WHOLE_GPU_MILLI:
        return None
    if gpus > 1:
        cells.fault(line, f"gpu_milli must be 1000 for a pod with {gpus} GPUs, found {milli}")
        return None
    return Share(compute_percent=-(-milli // 10))


FORMAT = TraceFormat(
    "alibaba",
    "CSV with name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,…,creation_time,deletion_time,…",
    lambda first_line: has_columns(first_line, COLUMNS),
    read,
)
