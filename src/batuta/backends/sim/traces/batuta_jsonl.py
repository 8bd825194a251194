"""Batuta's own workload file: JSON lines, a header and then one job per line; nothing is lost on the way.

    {"batuta_workload": 1, "name": "demo", "notes": []}
    {"id": "a", "submit_s": 0, "size": 4, "min": 1, "max": 8, "work_s": 14400, "curve": [1, 1.9, 2.7, 3.4]}

| field | meaning | when absent |
|---|---|---|
| `id` | unique name | must be there |
| `submit_s` | seconds from the start of the simulation; not shifted by the reader | must be there |
| `size`, `min`, `max` | GPUs that it asked for, and the range that it can run with | min = max = size |
| `sizes` | the only legal GPU counts, ascending from min to max | every count |
| `work_s` | true run time on one GPU of the reference type | must be there |
| `curve` | true speeds on 1, 2, … GPUs relative to one, or `"linear:N"`; see below | linear to max |
| `believed_work_s`, `believed_curve` | what the scheduler is told instead | the truth |
| `gpus_per_replica` | GPUs of one replica; every size is a multiple of it. 0: a CPU-only job, see below | 1 |
| `name`, `user`, `queue`, `application` | who and what | "", "", "default", "" |
| `priority` | higher goes first | 0 |
| `kind` | script, torch-elastic, horovod-elastic, mpi | script |
| `gpu_types` | accepted GPU types with their relative speed: `{"V100": 1.0, "K80": 0.2}` | all at 1 |
| `share` | a part of one GPU: `{"memory_mib": 8192, "compute_percent": 50}` | whole GPUs |
| `topology` | `{"within": "any" / "node" / "rack", "required": false, "single_numa": false}` | anywhere |
| `cpus_milli_per_gpu`, `memory_mib_per_gpu` | what lies beside each GPU | 0: not counted |
| `node_labels`, `tolerations` | `{"pool": "train"}`, `["spot"]` | none |
| `restart_s` | seconds without progress after a start, resize or migration | 30 |
| `checkpoint_interval_s` | seconds between checkpoints; null: when asked | null |
| `restartable` | false: an elastic job that never saves; it keeps its size | true |
| `time_limit_s` | seconds that it may run, over all its starts; then it fails | null: no limit |
| `goodput` | `{"application", "num_replicas", "batch_size"}` for the goodput replay | none |

A CPU-only job (`"gpus_per_replica": 0`) holds no GPU: its `size` counts replicas, each of which takes
`cpus_milli_per_gpu` and `memory_mib_per_gpu` of a node, and its `work_s` is its run time.

Beyond the end of a curve its last speed holds. A curve that knows what it costs to span nodes and racks is
written `{"speeds": …, "across_nodes": 0.9, "across_racks": 0.8}`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from batuta.backends.sim.speed_models import LARGEST_JOB_GPUS
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import ANYWHERE, Job, JobKind, Share, Spread, Topology
from batuta.spec.problem import InputError, Problem, did_you_mean

GOODPUT_FIELDS = ("application", "num_replicas", "batch_size")


# A field's parser raises ValueError with the words that complete "FIELD must be".


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a finite number ≥ 0")
    return float(value)


def _maybe_number(value: object) -> float | None:
    return None if value is None else _number(value)


def _speed(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("numbers")
    return float(value)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number within {low}..{high}")
        return value

    return parse


_gpus = _whole(1, LARGEST_JOB_GPUS)
_amount = _whole(0, 10**15)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _sizes(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("a list of GPU counts")
    return tuple(_gpus(one) for one in value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of texts")
    return tuple(_text(one) for one in value)


def _pairs(parse: Callable[[object], Any], what: str) -> Callable[[object], tuple[tuple[str, Any], ...]]:
    def parse_pairs(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict):
            raise ValueError(f"an object of {what}")
        return tuple((name, parse(one)) for name, one in value.items())

    return parse_pairs


def _curve(value: object) -> SpeedCurve:
    if isinstance(value, dict):
        parts = _parts(value, {"speeds": _speeds, "across_nodes": _speed, "across_racks": _speed})
        try:
            speeds: SpeedCurve = parts.pop("speeds")
            return replace(speeds, **parts)
        except (ValueError, KeyError):
            raise ValueError("an object with speeds, and with spread factors in (0, 1]") from None
    return _speeds(value)


def _speeds(value: object) -> SpeedCurve:
    if isinstance(value, str) and value.startswith("linear:") and value[7:].isdecimal():
        return linear_curve(_gpus(int(value[7:])))
    if not isinstance(value, list) or not value or not {*map(type, value)} <= {int, float}:
        raise ValueError("linear:N or a list of speeds for 1, 2, … GPUs")
    return _curve_of(tuple(value))


@lru_cache(maxsize=65_536)
def _curve_of(speeds: tuple[float, ...]) -> SpeedCurve:
    try:
        return SpeedCurve((0.0, *map(float, speeds)))
    except (ValueError, OverflowError):
        raise ValueError("a list of finite speeds ≥ 0") from None


def _kind(value: object) -> JobKind:
    try:
        return JobKind(value)
    except ValueError:
        raise ValueError(f"one of {', '.join(kind.value for kind in JobKind)}") from None


def _spread(value: object) -> Spread:
    try:
        return Spread(value)
    except ValueError:
        raise ValueError(f"one of {', '.join(spread.value for spread in Spread)}") from None


def _parts(value: object, parsers: dict[str, Callable[[object], Any]]) -> dict[str, Any]:
    """The parts of an object that has a fixed set of fields."""
    if not isinstance(value, dict) or not value.keys() <= parsers.keys():
        raise ValueError(f"an object with {', '.join(parsers)}")
    return {name: parsers[name](one) for name, one in value.items()}


def _share(value: object) -> Share | None:
    if value is None:
        return None
    return Share(**_parts(value, {"memory_mib": _amount, "compute_percent": _amount}))


def _topology(value: object) -> Topology:
    return Topology(**_parts(value, {"within": _spread, "required": _flag, "single_numa": _flag}))


def _goodput(value: object) -> GoodputRequest | None:
    if value is None:
        return None
    parts = _parts(value, {"application": _text, "num_replicas": _gpus, "batch_size": _whole(1, 10**9)})
    if len(parts) != len(GOODPUT_FIELDS):
        raise ValueError(f"an object with all of {', '.join(GOODPUT_FIELDS)}")
    return GoodputRequest(**parts)


PARSERS: dict[str, Callable[[object], Any]] = {
    "id": _text,
    "submit_s": _number,
    "size": _gpus,
    "min": _gpus,
    "max": _gpus,
    "sizes": _sizes,
    "work_s": _number,
    "believed_work_s": _number,
    "curve": _curve,
    "believed_curve": _curve,
    "gpus_per_replica": _whole(0, LARGEST_JOB_GPUS),
    "name": _text,
    "user": _text,
    "queue": _text,
    "priority": _whole(-(10**9), 10**9),
    "application": _text,
    "cpus_milli_per_gpu": _amount,
    "memory_mib_per_gpu": _amount,
    "restart_s": _number,
    "checkpoint_interval_s": _maybe_number,
    "restartable": _flag,
    "time_limit_s": _maybe_number,
    "kind": _kind,
    "gpu_types": _pairs(_speed, "GPU types and their relative speeds"),
    "node_labels": _pairs(_text, "labels and their values"),
    "tolerations": _texts,
    "share": _share,
    "topology": _topology,
    "goodput": _goodput,
}


REQUIRED = ("id", "submit_s", "size", "work_s")
_PLAIN = (
    "gpus_per_replica",
    "name",
    "user",
    "queue",
    "priority",
    "application",
    "cpus_milli_per_gpu",
    "memory_mib_per_gpu",
    "restart_s",
    "checkpoint_interval_s",
    "restartable",
    "time_limit_s",
)
_DEFAULTS = {field.name: field.default for field in fields(Job)}


class Fault(Protocol):
    """Reports one problem of a record."""

    def __call__(self, message: str, fix: str = "") -> None: ...


def encode(own: SimJob) -> dict[str, Any]:
    """The job without what the reader would assume anyway."""
    job = own.job
    record: dict[str, Any] = {"id": job.id, "submit_s": job.submit_s, "size": job.size}
    if job.min != job.size:
        record["min"] = job.min
    if job.max != job.size:
        record["max"] = job.max
    if job.sizes is not None:
        record["sizes"] = list(job.sizes)
    record["work_s"] = own.work_s
    if job.work_s != own.work_s:
        record["believed_work_s"] = job.work_s
    if own.curve != _usual_curve(job.max, job.gpus_per_replica):
        record["curve"] = _encode_curve(own.curve)
    if job.curve != own.curve:
        record["believed_curve"] = _encode_curve(job.curve)
    for name in _PLAIN:
        value = getattr(job, name)
        if value != _DEFAULTS[name]:
            record[name] = value
    if job.kind is not JobKind.SCRIPT:
        record["kind"] = job.kind.value
    for name, pairs in (("gpu_types", job.gpu_types), ("node_labels", job.node_labels)):
        if pairs:
            record[name] = _encode_pairs(job.id, name, pairs)
    if job.tolerations:
        record["tolerations"] = list(job.tolerations)
    return record | _encode_parts(own)


def _usual_curve(largest: int, gpus_per_replica: int | None) -> SpeedCurve:
    """Linear to `max`; a CPU-only job has one speed."""
    return linear_curve(1 if gpus_per_replica == 0 else largest)


def _encode_parts(own: SimJob) -> dict[str, Any]:
    """The fields that are objects themselves."""
    share, topology, record = own.job.share, own.job.topology, dict[str, Any]()
    if share is not None:
        record["share"] = {"memory_mib": share.memory_mib, "compute_percent": share.compute_percent}
    if topology != ANYWHERE:
        record["topology"] = {
            "within": topology.within.value,
            "required": topology.required,
            "single_numa": topology.single_numa,
        }
    if own.goodput is not None:
        record["goodput"] = {name: getattr(own.goodput, name) for name in GOODPUT_FIELDS}
    return record


def _encode_curve(curve: SpeedCurve) -> str | list[float] | dict[str, Any]:
    largest = len(curve.speeds) - 1
    linear = curve.speeds == linear_curve(largest).speeds
    speeds: str | list[float] = f"linear:{largest}" if linear else list(curve.speeds[1:])
    if curve.across_nodes == curve.across_racks == 1.0:
        return speeds
    return {"speeds": speeds, "across_nodes": curve.across_nodes, "across_racks": curve.across_racks}


def _encode_pairs(job_id: str, name: str, pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"job {job_id} cannot be written: {name} names something twice")
    return dict(pairs)


def decode(record: object, fault: Fault) -> SimJob | None:
    """The job, or None after every problem was reported."""
    if not isinstance(record, dict):
        fault("a job must be a JSON object", 'for example {"id": "a", "submit_s": 0, "size": 1, "work_s": 60}')
        return None
    values: dict[str, Any] = {}
    sound = True
    for name, value in record.items():
        parse = PARSERS.get(name)
        if parse is None:
            fault(f"unknown field {name}", did_you_mean(name, list(PARSERS)))
            sound = False
            continue
        try:
            values[name] = parse(value)
        except ValueError as error:
            fault(f"{name} must be {error}, found {_shown(value)}")
            sound = False
    for name in REQUIRED:
        if name not in record:
            fault(f"field {name} is missing")
            sound = False
    return _sim_job(values, fault) if sound else None


def _sim_job(values: dict[str, Any], fault: Fault) -> SimJob | None:
    values.setdefault("min", values["size"])
    values.setdefault("max", values["size"])
    work_s: float = values["work_s"]
    curve: SpeedCurve = values.pop("curve", None) or _usual_curve(values["max"], values.get("gpus_per_replica"))
    goodput: GoodputRequest | None = values.pop("goodput", None)
    values["work_s"] = values.pop("believed_work_s", work_s)
    values["curve"] = values.pop("believed_curve", curve)
    job = Job(**values)
    faults = job.faults()
    if not curve.at(job.size) > 0:
        faults.append(f"the curve gives no speed at size {job.size}: the job would never end")
    for message in faults:
        fault(message)
    return None if faults else SimJob(job, work_s, curve, goodput)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "something deeply nested"
    return text if len(text) <= 60 else text[:59] + "…"


VERSION = 1
_MARK = "batuta_workload"
_HEADER = (_MARK, "name", "notes")


def dump_workload(workload: Workload) -> str:
    """The text of the file. Equal workloads give equal bytes."""
    header = {_MARK: VERSION, "name": workload.name, "notes": list(workload.notes)}
    records: Iterator[dict[str, Any]] = (encode(own) for own in workload.jobs)
    lines = [json.dumps(header), *(json.dumps(record, allow_nan=False) for record in records)]
    return "\n".join(lines) + "\n"


def save_workload(workload: Workload, path: Path, overwrite: bool = False) -> None:
    """Writes the whole file or nothing, also when the process dies half-way."""
    if path.exists():
        if not path.is_file():
            raise InputError.of("is not a regular file", file=str(path), fix="choose another name")
        if not overwrite:
            raise _already_there(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as out:
            out.write(dump_workload(workload))
            out.flush()
            os.fsync(out.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, it fails if someone was faster
    except FileExistsError:
        raise _already_there(path) from None
    except OSError as error:
        raise InputError.of(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_batuta(file: TraceFile, options: TraceOptions) -> Workload:
    """The workload; jobs in submit order, ties as in the file."""
    problems: list[Problem] = []
    header: dict[str, Any] | None = None
    jobs: list[SimJob] = []
    first_line_of: dict[str, int] = {}
    for line, text in enumerate(file.text.split("\n"), start=1):
        if not text.strip():
            continue

        def fault(message: str, fix: str = "", line: int = line) -> None:
            problems.append(Problem(message, file.name, line, fix=fix))

        record = _parse(text, fault)
        if record is _NOT_JSON:
            continue
        if header is None:
            header = _check_header(record, fault)
            continue
        own = decode(record, fault)
        job_id = record.get("id") if isinstance(record, dict) else None
        if isinstance(job_id, str) and job_id:
            first = first_line_of.setdefault(job_id, line)
            if first != line:
                fault(f"id {job_id} is taken by line {first}", "ids must be unique")
        if own is not None:
            jobs.append(own)
    if not jobs and not problems:
        problems.append(Problem("holds no jobs", file.name))
    if problems:
        raise InputError(problems)
    jobs.sort(key=lambda own: own.job.submit_s)
    known = header or {}
    return Workload(known.get("name") or file.title, BATUTA.name, tuple(jobs), tuple(known.get("notes", ())))


_NOT_JSON = object()


def _parse(text: str, fault: Fault) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        fault(f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        fault(f"is not JSON: {error}")
    return _NOT_JSON


def _check_header(record: Any, fault: Fault) -> dict[str, Any]:
    """The header; its problems are reported."""
    if not isinstance(record, dict) or _MARK not in record:
        fault("the header is missing", f'begin the file with {{"{_MARK}": {VERSION}, "name": "…"}}')
        return {}
    version, name, notes = record[_MARK], record.get("name", ""), record.get("notes", [])
    if version != VERSION or isinstance(version, bool):
        fault(f"{_MARK} must be {VERSION}, found {version!r}", "a newer Batuta may read it")
    for key in record:
        if key not in _HEADER:
            fault(f"unknown field {key}", did_you_mean(key, _HEADER))
    if not isinstance(name, str):
        fault(f"name must be a text, found {name!r}")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        fault(f"notes must be a list of texts, found {notes!r}")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` with an option makes one for every line."""


def _already_there(path: Path) -> InputError:
    return InputError.of("exists already", file=str(path), fix="choose another name, or --force to replace it")


def _recognises(first_line: str) -> bool:
    try:
        record = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and _MARK in record


BATUTA = TraceFormat(
    "batuta",
    f'JSON lines that begin with {{"{_MARK}": {VERSION}, …}}',
    _recognises,
    read_batuta,
    rigid=False,
)
