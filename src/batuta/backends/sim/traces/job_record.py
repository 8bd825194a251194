"""One job as one JSON object and back, without loss. `batuta_jsonl` documents the fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Protocol

from batuta.backends.sim.traces.record_fields import GOODPUT_FIELDS, PARSERS
from batuta.backends.sim.workload import GoodputRequest, SimJob
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import ANYWHERE, Job, JobKind
from batuta.spec.problem import did_you_mean

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
)
_DEFAULTS = {field.name: field.default for field in fields(Job)}


class Fault(Protocol):
    """Is told of one thing that is wrong."""

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
    if own.curve != linear_curve(job.max):
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
    """The job, or None after every fault has been told."""
    if not isinstance(record, dict):
        fault(
            "a job must be a JSON object", 'for example {"id": "a", "submit_s": 0, "size": 1, "work_s": 60}'
        )
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
    curve: SpeedCurve = values.pop("curve", None) or linear_curve(values["max"])
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
