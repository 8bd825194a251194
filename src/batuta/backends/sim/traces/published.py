"""Readers of the published traces: Philly, ElasticFlow, Muri, Gavel, Alibaba and Pollux."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from batuta.backends.sim.traces.trace_format import (
    CellParser,
    TraceFile,
    TraceFormat,
    TraceOptions,
    csv_rows,
    has_columns,
)
from batuta.backends.sim.traces.trace_jobs import TraceRequest, assemble
from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload
from batuta.core.curve import power_curve
from batuta.core.job import ANY_TYPE, Job, Share
from batuta.spec.problem import InputError, did_you_mean, read_text

_ZERO = datetime(1970, 1, 1)  # noqa: DTZ001 - the trace's times name no zone; only differences are used
_SECOND = timedelta(seconds=1)
_MS_PER_S = 1000.0

RequestParser = Callable[[CellParser, int, Sequence[str]], TraceRequest]
"""Makes a request of a row's line number and cells."""


def _csv_format(
    name: str, looks: str, columns: Sequence[str], request: RequestParser, notes: Sequence[str] = ()
) -> TraceFormat:
    """A CSV file in which every row is a job."""

    def read(file: TraceFile, options: TraceOptions) -> Workload:
        cells = CellParser(file.name)
        requests = [request(cells, line, row) for line, row in csv_rows(file.text, cells, columns)]
        return assemble(file, name, requests, cells, options, notes)

    return TraceFormat(name, looks, lambda first_line: has_columns(first_line, columns), read)


def _philly_request(cells: CellParser, line: int, row: Sequence[str]) -> TraceRequest:
    """Philly: jobs of a Microsoft cluster in 2017, as prepared by the authors of Pollux.

    `timestamp,duration,num_gpus,gpu_time,cluster`: submit time (`2017-10-09 07:01:55`), seconds, GPUs, their product,
    the virtual cluster. There are no ids and no users: ids are made in submit order, the virtual cluster (a team)
    stands for the user. Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters", ATC 2019.
    """
    timestamp, duration, gpus, cluster = row
    submit_s = 0.0
    try:
        submit_s = (datetime.fromisoformat(timestamp) - _ZERO) / _SECOND
    except (ValueError, TypeError):  # TypeError: the time names a zone
        cells.fault(line, f"timestamp must be like 2017-10-09 07:01:55, found {timestamp!r}")
    duration_s = cells.seconds(line, "duration", duration)
    return TraceRequest(line, "", submit_s, duration_s, cells.gpus(line, "num_gpus", gpus), cluster)


def _elasticflow_request(cells: CellParser, line: int, row: Sequence[str]) -> TraceRequest:
    """ElasticFlow: jobs of five Microsoft clusters.

    `job_id,submission_time,duration,num_gpu`: times in seconds. Throughput tables of the same authors
    (`throughputs_T4`, `throughputs_A100`) give jobs measured curves: see `Elasticity`.
    Gu et al., "ElasticFlow: An Elastic Serverless Training Platform", ASPLOS 2023.
    """
    job_id, submitted, duration, gpus = row
    return TraceRequest(
        line,
        cells.unique_id(line, "job_id", job_id),
        cells.seconds(line, "submission_time", submitted),
        cells.seconds(line, "duration", duration),
        cells.gpus(line, "num_gpu", gpus),
    )


def _muri_request(cells: CellParser, line: int, row: Sequence[str]) -> TraceRequest:
    """Muri: Philly-derived jobs with a model, iterations and per-stage times; all times in milliseconds.

    `job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0…2,
    priority`. The stage times serve interleaving, which Batuta does not do. `priority` (0 or 1) is not
    carried over: it would let one half of the jobs preempt the other. Zhao et al., "Multi-Resource
    Interleaving for Deep Learning Training", SIGCOMM 2022.
    """
    job_id, gpus, submitted_ms, model, duration_ms = row
    return TraceRequest(
        line,
        cells.unique_id(line, "job_id", job_id),
        cells.seconds(line, "submit_time", submitted_ms) / _MS_PER_S,
        cells.seconds(line, "duration", duration_ms) / _MS_PER_S,
        cells.gpus(line, "num_gpu", gpus),
        application=model.strip(),
    )


PHILLY = _csv_format(
    "philly",
    "CSV with timestamp,duration,num_gpus,gpu_time,cluster",
    ("timestamp", "duration", "num_gpus", "cluster"),
    _philly_request,
)
ELASTICFLOW = _csv_format(
    "elasticflow",
    "CSV with job_id,submission_time,duration,num_gpu",
    ("job_id", "submission_time", "duration", "num_gpu"),
    _elasticflow_request,
)
MURI = _csv_format(
    "muri",
    "CSV with job_id,num_gpu,submit_time,iterations,model_name,…,duration,… (times in ms)",
    ("job_id", "num_gpu", "submit_time", "model_name", "duration"),
    _muri_request,
    notes=("the column priority is not used",),
)


THROUGHPUTS = "simulation_throughputs.json"
GPU_TYPES = ("v100", "p100", "k80")  # the first that a job can run on is its reference
_COLUMNS = 10
_MOST_STEPS = 10**15

Throughputs = dict[tuple[str, int], dict[str, float]]
"""Steps/s by (job type, scale factor), then GPU type; a type that the job cannot run on is absent."""


def read_gavel(file: TraceFile, options: TraceOptions) -> Workload:
    """Gavel: jobs with a number of steps, and their throughput on K80, P100 and V100.

    A `.trace` has ten columns between tabs and no header: job type, command, working directory, name of the
    steps argument, whether it needs data, total steps, scale factor (GPUs), priority weight, SLO (-1: none),
    arrival time in seconds. `simulation_throughputs.json` beside it (or in `--profiles`) gives steps/s by GPU
    type, job type and scale factor. The reference type is V100: a job's run time is its steps over that
    throughput, and its speed on the other types is measured. Weights and SLOs are not carried over. Narayanan
    et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
    """
    cells = CellParser(file.name)
    throughputs = _read_throughputs(file, options)
    requests: list[TraceRequest] = []
    other_weights = 0
    for line, text in enumerate(file.text.split("\n"), start=1):
        if not text.strip():
            continue
        fields = text.rstrip("\r").split("\t")
        if len(fields) != _COLUMNS:
            cells.fault(line, f"{len(fields)} columns between tabs, expected {_COLUMNS}")
            continue
        request = _gavel_request(cells, line, fields, throughputs)
        other_weights += fields[7].strip() not in ("1", "1.0")
        if request is not None:
            requests.append(request)
    notes = ["run times are steps over the throughput on V100; jobs run on K80, P100 and V100 only"]
    if other_weights:
        notes.append(f"{other_weights} jobs have a priority weight other than 1, which is not used")
    return assemble(file, GAVEL.name, requests, cells, options, notes)


def _gavel_request(cells: CellParser, line: int, fields: list[str], throughputs: Throughputs) -> TraceRequest | None:
    job_type = fields[0].strip()
    steps = cells.whole(line, "total steps", fields[5], 0, _MOST_STEPS)
    gpus = cells.gpus(line, "scale factor", fields[6])
    arrival_s = cells.seconds(line, "arrival time", fields[9])
    speeds = throughputs.get((job_type, gpus))
    if not speeds:
        cells.fault(line, f"no throughput of {job_type} on {gpus} GPUs", _nearest(job_type, throughputs))
        return None
    reference = next(iter(speeds.values()))
    gpu_types = tuple((name.upper(), speed / reference) for name, speed in speeds.items())
    duration_s = steps / reference
    return TraceRequest(line, "", arrival_s, duration_s, gpus, application=job_type, gpu_types=gpu_types)


def _nearest(job_type: str, throughputs: Throughputs) -> str:
    counts = sorted(gpus for name, gpus in throughputs if name == job_type)
    if counts:
        return f"measured on {', '.join(map(str, counts))}"
    return did_you_mean(job_type, sorted({name for name, _ in throughputs}))


def _read_throughputs(file: TraceFile, options: TraceOptions) -> Throughputs:
    path = (options.profiles if options.profiles is not None else file.path.parent) / THROUGHPUTS
    if not path.exists():
        raise InputError.of(
            f"a Gavel trace counts steps: {THROUGHPUTS} is needed to turn them into seconds",
            file=file.name,
            fix=f"put it into {path.parent}, or name its folder with --profiles",
        )
    try:
        return _throughputs(json.loads(read_text(path)))
    except json.JSONDecodeError as error:
        raise InputError.of(f"is not JSON: {error.msg}", file=str(path), line=error.lineno) from None
    except (ValueError, TypeError, AttributeError, KeyError, SyntaxError, RecursionError) as error:
        message = f"is not a table of throughputs by {', '.join(GPU_TYPES)}: {type(error).__name__}: {error}"
        raise InputError.of(message, file=str(path)) from None


def _throughputs(tables: dict[str, dict[str, dict[str, Any]]]) -> Throughputs:
    found: Throughputs = {}
    for gpu_type in GPU_TYPES:
        for key, alone_and_paired in tables[gpu_type].items():
            job_type, gpus = ast.literal_eval(key)
            speed = float(alone_and_paired["null"])
            if 0 < speed < float("inf"):
                found.setdefault((str(job_type), int(gpus)), {})[gpu_type] = speed
    return found


def _is_gavel(first_line: str) -> bool:
    fields = first_line.split("\t")
    return len(fields) == _COLUMNS and fields[5].strip().isdecimal() and fields[6].strip().isdecimal()


GAVEL = TraceFormat(
    "gavel",
    "ten columns between tabs without a header (job type, command, …, steps, scale factor, …, arrival)",
    _is_gavel,
    read_gavel,
)


_ALIBABA_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
_WHOLE_GPU_MILLI = 1000
_MAX_CELL = 10**12


def read_alibaba(file: TraceFile, options: TraceOptions) -> Workload:
    """Alibaba v2023: pods with whole GPUs or a part of one.

    `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`.
    - Submitted at `creation_time`. Runs from `scheduled_time` to `deletion_time`; a pod that was never
      scheduled gets the time from its creation to its deletion, so that the demand stays in the trace (a note
      counts them).
    - `gpu_milli` below 1000 is a share of one GPU: compute in percent, rounded up; its GPU memory is not
      known.
    - `gpu_spec` (`V100M16|V100M32`) lists the accepted GPU types, all at the same speed.
    - CPU and memory are per GPU, rounded up. Pods without a GPU are left out (a note counts them).
    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
    Descent", ATC 2023.
    """
    cells = CellParser(file.name)
    requests: list[TraceRequest] = []
    without_gpu = never_scheduled = 0
    for line, row in csv_rows(file.text, cells, _ALIBABA_COLUMNS):
        request = _alibaba_request(cells, line, row)
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
    return assemble(file, ALIBABA.name, requests, cells, options, notes)


def _alibaba_request(cells: CellParser, line: int, row: Sequence[str]) -> TraceRequest | None:
    name, cpu, memory, gpus_text, milli_text, spec, created, deleted, scheduled = row
    gpus = cells.gpus(line, "num_gpu", gpus_text, low=0)
    creation_s = cells.seconds(line, "creation_time", created)
    start_s = cells.seconds(line, "scheduled_time", scheduled) if scheduled.strip() else creation_s
    end_s = cells.seconds(line, "deletion_time", deleted)
    cpu_milli = cells.whole(line, "cpu_milli", cpu, 0, _MAX_CELL)
    memory_mib = cells.whole(line, "memory_mib", memory, 0, _MAX_CELL)
    if gpus == 0:
        cells.name(line, "name", name)
        return None
    pod = cells.unique_id(line, "name", name)
    if end_s < start_s:
        cells.fault(line, f"deletion_time {deleted} lies before the start at {start_s:g}")
    types = tuple((part.strip(), 1.0) for part in spec.split("|") if part.strip())
    return TraceRequest(
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


def _share(cells: CellParser, line: int, gpus: int, text: str) -> Share | None:
    milli = cells.whole(line, "gpu_milli", text, 1, _WHOLE_GPU_MILLI)
    if milli == _WHOLE_GPU_MILLI:
        return None
    if gpus > 1:
        cells.fault(line, f"gpu_milli must be 1000 for a pod with {gpus} GPUs, found {milli}")
        return None
    return Share(compute_percent=-(-milli // 10))


ALIBABA = TraceFormat(
    "alibaba",
    "CSV with name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,…,creation_time,deletion_time,…",
    lambda first_line: has_columns(first_line, _ALIBABA_COLUMNS),
    read_alibaba,
)


_POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
CLUSTER_GPUS = 64
_UNKNOWN_WORK_S = 3600.0
_UNKNOWN_EXPONENT = 0.7
_LARGEST_BATCH = 10**9


def read_pollux(file: TraceFile, options: TraceOptions) -> Workload:
    """Pollux: `workload-N.csv` of the OSDI 2021 artifact, for the goodput replay.

    `name,time,application,num_replicas,batch_size`; the last two are the rigid request that Tiresias and Optimus use.
    How long a job runs follows from the profile of its application, not from this file: `work_s` and the curve are only
    the estimates for an unknown application. Times stay as they are, since the replay's rounds count from 0 of the
    file. A job may have 1 to 64 GPUs (the authors' cluster), or its request where that is more.
    """
    cells = CellParser(file.name)
    jobs = [_pollux_job(cells, line, row) for line, row in csv_rows(file.text, cells, _POLLUX_COLUMNS)]
    cells.check(jobs)
    jobs.sort(key=lambda own: own.job.submit_s)
    return Workload(file.title, POLLUX.name, tuple(jobs))


def _pollux_job(cells: CellParser, line: int, row: Sequence[str]) -> SimJob:
    name, time, application, replicas, batch = row
    request = GoodputRequest(
        cells.name(line, "application", application),
        cells.gpus(line, "num_replicas", replicas),
        cells.whole(line, "batch_size", batch, 1, _LARGEST_BATCH),
    )
    largest = max(request.num_replicas, CLUSTER_GPUS)
    curve = power_curve(largest, _UNKNOWN_EXPONENT)
    job = Job(
        id=cells.unique_id(line, "name", name),
        submit_s=cells.seconds(line, "time", time),
        size=request.num_replicas,
        min=1,
        max=largest,
        application=request.application,
        curve=curve,
        work_s=_UNKNOWN_WORK_S,
    )
    return SimJob(job, _UNKNOWN_WORK_S, curve, request)


POLLUX = TraceFormat(
    "pollux",
    "CSV with name,time,application,num_replicas,batch_size",
    lambda first_line: has_columns(first_line, _POLLUX_COLUMNS),
    read_pollux,
    rigid=False,
)
