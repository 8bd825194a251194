"""Batuta's own workload file: JSON lines, a header and then one job per line. Nothing is lost on the way.

The fields and their defaults are in docs/reference/simulator.md.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from batuta.backends.sim.speed_models import LARGEST_JOB_GPUS
from batuta.backends.sim.traces.trace_format import CellParser, TraceFile, TraceFormat, TraceOptions, shown
from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import Job, JobKind, Share, Spread, Topology
from batuta.spec.problem import InputError, did_you_mean

FieldParser: TypeAlias = Callable[[object], Any]  # raises ValueError with the words that complete "FIELD must be"


def _checked(kinds: type | tuple[type, ...], what: str) -> FieldParser:
    """Takes a value of these types as it is; true and false are no numbers."""

    def parse(value: object) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ValueError(what)
        return value

    return parse


_text = _checked(str, "a text")
_flag = _checked(bool, "true or false")
_speed = _checked((int, float), "numbers")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a finite number ≥ 0")
    return float(value)


def _whole(low: int, high: int) -> FieldParser:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number within {low}..{high}")
        return value

    return parse


_gpus = _whole(1, LARGEST_JOB_GPUS)
_amount = _whole(0, 10**15)


def _one_of(kind: type[Enum]) -> FieldParser:
    def parse(value: object) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"one of {', '.join(one.value for one in kind)}") from None

    return parse


def _optional(parse: FieldParser) -> FieldParser:
    return lambda value: None if value is None else parse(value)


def _list_of(parse: FieldParser, what: str) -> FieldParser:
    as_list = _checked(list, f"a list of {what}")
    return lambda value: tuple(map(parse, as_list(value)))


def _pairs(parse: FieldParser, what: str) -> FieldParser:
    as_object = _checked(dict, f"an object of {what}")
    return lambda value: tuple((name, parse(one)) for name, one in as_object(value).items())


def _object(make: Callable[..., Any], parsers: dict[str, FieldParser], *, complete: bool = False) -> FieldParser:
    """Makes a value of an object that has a fixed set of fields; `complete`: none may be missing."""

    def parse(value: object) -> Any:
        if not isinstance(value, dict) or not value.keys() <= parsers.keys():
            raise ValueError(f"an object with {', '.join(parsers)}")
        if complete and len(value) != len(parsers):
            raise ValueError(f"an object with all of {', '.join(parsers)}")
        return make(**{name: parsers[name](one) for name, one in value.items()})

    return parse


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


def _spread_curve(**parts: Any) -> SpeedCurve:
    try:
        speeds: SpeedCurve = parts.pop("speeds")
        return replace(speeds, **parts)
    except (ValueError, KeyError):
        raise ValueError("an object with speeds, and with spread factors in (0, 1]") from None


_curve_object = _object(_spread_curve, {"speeds": _speeds, "across_nodes": _speed, "across_racks": _speed})


def _curve(value: object) -> SpeedCurve:
    curve: SpeedCurve = _curve_object(value) if isinstance(value, dict) else _speeds(value)
    return curve


PARSERS: dict[str, FieldParser] = {
    "id": _text,
    "submit_s": _number,
    "size": _gpus,
    "min": _gpus,
    "max": _gpus,
    "sizes": _optional(_list_of(_gpus, "GPU counts")),
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
    "checkpoint_interval_s": _optional(_number),
    "restartable": _flag,
    "time_limit_s": _optional(_number),
    "kind": _one_of(JobKind),
    "gpu_types": _pairs(_speed, "GPU types and their relative speeds"),
    "node_labels": _pairs(_text, "labels and their values"),
    "tolerations": _list_of(_text, "texts"),
    "share": _optional(_object(Share, {"memory_mib": _amount, "compute_percent": _amount})),
    "topology": _object(Topology, {"within": _one_of(Spread), "required": _flag, "single_numa": _flag}),
    "goodput": _optional(
        _object(
            GoodputRequest, {"application": _text, "num_replicas": _gpus, "batch_size": _whole(1, 10**9)}, complete=True
        )
    ),
}
REQUIRED = ("id", "submit_s", "size", "work_s")
_DEFAULTS = {field.name: field.default for field in fields(Job)}
_JOB_FIELDS = [name for name in PARSERS if name in _DEFAULTS]
_job_values = attrgetter(*_JOB_FIELDS)


def encode(own: SimJob) -> dict[str, Any]:
    """The job without what the reader would assume anyway."""
    job = own.job
    truth = {"work_s": own.work_s, "curve": own.curve, "goodput": own.goodput}
    believed = {"believed_work_s": job.work_s, "believed_curve": job.curve}
    values = dict(zip(_JOB_FIELDS, _job_values(job), strict=True)) | truth | believed
    usual = {
        "min": job.size,
        "max": job.size,
        "believed_work_s": own.work_s,
        "curve": _usual_curve(job.max, job.gpus_per_replica),
        "believed_curve": own.curve,
        "goodput": None,
    }
    wanted = [name for name in PARSERS if name in REQUIRED or values[name] != usual.get(name, _DEFAULTS.get(name))]
    try:
        return {name: _ENCODERS.get(name, _plain)(values[name]) for name in wanted}
    except ValueError as error:
        raise ValueError(f"job {job.id} cannot be written: {error}") from None


def _usual_curve(largest: int, gpus_per_replica: int | None) -> SpeedCurve:
    """Linear to `max`; a CPU-only job has one speed."""
    return linear_curve(1 if gpus_per_replica == 0 else largest)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _encode_curve(curve: SpeedCurve) -> str | list[float] | dict[str, Any]:
    largest = len(curve.speeds) - 1
    linear = curve.speeds == linear_curve(largest).speeds
    speeds: str | list[float] = f"linear:{largest}" if linear else list(curve.speeds[1:])
    if curve.across_nodes == curve.across_racks == 1.0:
        return speeds
    return {"speeds": speeds, "across_nodes": curve.across_nodes, "across_racks": curve.across_racks}


def _encode_pairs(name: str, pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"{name} names something twice")
    return dict(pairs)


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    "curve": _encode_curve,
    "believed_curve": _encode_curve,
    "gpu_types": partial(_encode_pairs, "gpu_types"),
    "node_labels": partial(_encode_pairs, "node_labels"),
    "share": lambda share: {"memory_mib": share.memory_mib, "compute_percent": share.compute_percent},
    "topology": lambda topology: {name: _plain(value) for name, value in asdict(topology).items()},
    "goodput": asdict,
}


def decode(record: object, fault: Callable[..., None]) -> SimJob | None:
    """The job, or None after every problem was reported."""
    if not isinstance(record, dict):
        fault("a job must be a JSON object", 'for example {"id": "a", "submit_s": 0, "size": 1, "work_s": 60}')
        return None
    values = _parse_fields(record, PARSERS, fault)
    missing = [name for name in REQUIRED if name not in record]
    for name in missing:
        fault(f"field {name} is missing")
    return None if missing or len(values) != len(record) else _sim_job(values, fault)


def _parse_fields(
    record: dict[str, Any], parsers: dict[str, FieldParser], fault: Callable[..., None]
) -> dict[str, Any]:
    """The values of the fields without fault; what is wrong with the others is reported."""
    values: dict[str, Any] = {}
    for name, value in record.items():
        if name not in parsers:
            fault(f"unknown field {name}", did_you_mean(name, list(parsers)))
            continue
        try:
            values[name] = parsers[name](value)
        except ValueError as error:
            fault(f"{name} must be {error}, found {shown(value)}")
    return values


def _sim_job(values: dict[str, Any], fault: Callable[..., None]) -> SimJob | None:
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


VERSION = 1
_MARK = "batuta_workload"
_HEADER: dict[str, FieldParser] = {_MARK: lambda value: value, "name": _text, "notes": _list_of(_text, "texts")}


def dump_workload(workload: Workload) -> str:
    """The text of the file. Equal workloads give equal bytes."""
    header = {_MARK: VERSION, "name": workload.name, "notes": list(workload.notes)}
    lines = [json.dumps(header), *(json.dumps(encode(own), allow_nan=False) for own in workload.jobs)]
    return "\n".join(lines) + "\n"


def save_workload(workload: Workload, path: Path, overwrite: bool = False) -> None:
    """Writes the whole file or nothing, also when the process dies half-way."""
    already_there = InputError.of("exists already", file=str(path), fix="choose another name, or --force to replace it")
    if path.exists():
        if not path.is_file():
            raise InputError.of("is not a regular file", file=str(path), fix="choose another name")
        if not overwrite:
            raise already_there
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as out:
            out.write(dump_workload(workload))
            out.flush()
            os.fsync(out.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, it fails if another process was faster
    except FileExistsError:
        raise already_there from None
    except OSError as error:
        raise InputError.of(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_batuta(file: TraceFile, options: TraceOptions) -> Workload:
    """The workload; jobs in submit order, ties as in the file."""
    cells = CellParser(file.name)
    header: dict[str, Any] | None = None
    jobs: list[SimJob] = []
    for line, text in enumerate(file.text.split("\n"), start=1):
        if not text.strip():
            continue
        fault = partial(cells.fault, line)
        try:
            record = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            fault(f"is not JSON: {error.msg} at column {error.colno}")
            continue
        except (ValueError, RecursionError) as error:
            fault(f"is not JSON: {error}")
            continue
        if header is None:
            header = _check_header(record, fault)
            continue
        own = decode(record, fault)
        job_id = record.get("id") if isinstance(record, dict) else None
        if isinstance(job_id, str) and job_id:
            cells.claim_id(line, job_id)
        if own is not None:
            jobs.append(own)
    cells.check(jobs)
    jobs.sort(key=lambda own: own.job.submit_s)
    known = header or {}
    return Workload(known.get("name") or file.title, BATUTA.name, tuple(jobs), tuple(known.get("notes", ())))


def _check_header(record: Any, fault: Callable[..., None]) -> dict[str, Any]:
    """The header; its problems are reported."""
    if not isinstance(record, dict) or _MARK not in record:
        fault("the header is missing", f'begin the file with {{"{_MARK}": {VERSION}, "name": "…"}}')
        return {}
    version = record[_MARK]
    if version != VERSION or isinstance(version, bool):
        fault(f"{_MARK} must be {VERSION}, found {version!r}", "a newer Batuta may read it")
    return _parse_fields(record, _HEADER, fault)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` with an option makes one for every line."""


def _recognises(first_line: str) -> bool:
    try:
        record = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and _MARK in record


BATUTA = TraceFormat(
    "batuta", f'JSON lines that begin with {{"{_MARK}": {VERSION}, …}}', _recognises, read_batuta, rigid=False
)
