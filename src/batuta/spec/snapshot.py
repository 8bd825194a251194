"""Snapshots of a pool in JSON, as `batuta allocate` reads them, turned into what a policy sees."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from batuta.core.arrays import frozen
from batuta.core.curve import CurvePool, Curves, LegalSizes, SizeSetPool, SpeedCurve
from batuta.core.job import JobId
from batuta.core.view import PoolView
from batuta.spec.json_reader import JsonObject, JsonPath, JsonProblems, is_number
from batuta.spec.problem import InputError

ANY_TYPE_NAME = "gpu"  # the name of the GPU type in a snapshot that does not distinguish types


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """As in the JSON; NaN stands for a time that never was."""

    id: JobId
    submit_s: float
    size: int
    min: int
    max: int
    remaining_s: float
    speed: tuple[float, ...]
    sizes: tuple[int, ...] | None = None
    gpus_per_replica: int = 1
    first_start_s: float = nan
    tier: int = 0
    tier_since_s: float = 0.0
    gpus: int = 0
    attained_gpu_s: float = 0.0
    service_gpu_s: float = 0.0
    last_start_s: float = nan
    last_stop_s: float = nan
    last_resize_s: float = nan
    restart_s: float = 0.0
    priority: int = 0
    gpu_types: tuple[str, ...] = ()


_KEYS = tuple(field.name for field in dataclasses.fields(SnapshotJob))
_COUNTS = ("tier", "size", "min", "max", "gpus", "priority")
_AMOUNTS = ("tier_since_s", "attained_gpu_s", "service_gpu_s", "restart_s")
_MOMENTS = ("first_start_s", "last_start_s", "last_stop_s", "last_resize_s")
_TIMES = ("submit_s", "remaining_s", *_AMOUNTS, *_MOMENTS)


def read_job(value: object, path: JsonPath, findings: JsonProblems) -> SnapshotJob | None:
    """The job; what is wrong with it goes to `findings`, and the job is then not to be used."""
    if not isinstance(value, dict):
        findings.add(path, "must be an object with the keys of a job")
        return None
    fields = JsonObject(value, path, findings)
    fields.refuse_unknown(_KEYS)
    job = SnapshotJob(
        id=fields.text("id"),
        submit_s=fields.number("submit_s"),
        size=fields.count("size", 1),
        min=fields.count("min", 1),
        max=fields.count("max", 1),
        remaining_s=fields.number("remaining_s"),
        speed=_read_speed(fields),
        sizes=_read_sizes(fields) if fields.has("sizes") else None,
        gpus_per_replica=fields.count("gpus_per_replica", 1, 1),
        tier=fields.count("tier", 0, 0),
        gpus=fields.count("gpus", 0, 0),
        **{name: fields.number(name, 0.0) for name in _AMOUNTS},
        **{name: fields.moment(name) for name in _MOMENTS},
        priority=_read_priority(fields, value),
        gpu_types=_read_types(fields, value),
    )
    if fields.all_sound("size", "min", "max", "sizes", "gpus_per_replica"):
        _check_sizes(job, fields)
    if fields.all_sound("max", "speed"):
        _check_speed(job, fields)
    return job


def _read_speed(fields: JsonObject) -> tuple[float, ...]:
    speeds = fields.items("speed")
    for n, speed in enumerate(speeds):
        if not is_number(speed) or speed < 0:
            fields.wrong("speed", f"must be a finite number ≥ 0, found {speed!r}", "", n)
            return (0.0, 1.0)
    return tuple(map(float, speeds))


def _read_sizes(fields: JsonObject) -> tuple[int, ...]:
    sizes = fields.items("sizes")
    for k, size in enumerate(sizes):
        if not is_number(size) or size != int(size) or size < 1:
            fields.wrong("sizes", f"must be a whole number ≥ 1, found {size!r}", "", k)
            return ()
    return tuple(map(int, sizes))


def _read_priority(fields: JsonObject, value: dict[str, object]) -> int:
    """The one count that may be negative."""
    priority = value.get("priority")
    if priority is None:
        return 0
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 10**9:
        fields.wrong("priority", f"must be a whole number, found {priority!r}")
        return 0
    return priority


def _read_types(fields: JsonObject, value: dict[str, object]) -> tuple[str, ...]:
    """Names alone, or names with their relative speed; the speed in the snapshot is for the type at hand."""
    types = value.get("gpu_types")
    if types is None:
        return ()
    if isinstance(types, dict) and all(is_number(speed) and speed > 0 for speed in types.values()):
        return tuple(types)
    if isinstance(types, list) and all(isinstance(name, str) and name for name in types):
        return tuple(types)
    fields.wrong("gpu_types", "must be a list of names, or an object of names with relative speeds > 0")
    return ()


def _check_sizes(job: SnapshotJob, fields: JsonObject) -> None:
    if job.min > job.max:
        fields.wrong("min", f"must be ≤ max, found min {job.min} and max {job.max}")
        return
    if not job.min <= job.size <= job.max:
        fields.wrong("size", f"must be within min..max, found {job.size} outside {job.min}..{job.max}")
    if job.sizes is not None:
        _check_size_list(job, job.sizes, fields)
    elif (job.max - job.min) % job.gpus_per_replica or (job.size - job.min) % job.gpus_per_replica:
        found = f"{job.gpus_per_replica} for min {job.min}, size {job.size}, max {job.max}"
        fields.wrong("gpus_per_replica", f"must divide size - min and max - min, found {found}")


def _check_speed(job: SnapshotJob, fields: JsonObject) -> None:
    if len(job.speed) <= job.max:
        fields.wrong("speed", f"must have a value for each of 0..{job.max} GPUs, found {len(job.speed)} values")
    elif job.speed[0] != 0:
        fields.wrong("speed", f"must begin with 0, the speed with 0 GPUs, found {job.speed[0]}")


def _check_size_list(job: SnapshotJob, sizes: tuple[int, ...], fields: JsonObject) -> None:
    if not sizes or list(sizes) != sorted(set(sizes)):
        fields.wrong("sizes", f"must ascend without repeats, found {list(sizes)}")
    elif sizes[0] != job.min or sizes[-1] != job.max:
        fields.wrong("sizes", f"must begin at min {job.min} and end at max {job.max}, found {list(sizes)}")
    elif job.size not in sizes:
        fields.wrong("size", f"must be one of sizes, found {job.size} and sizes {list(sizes)}")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """All snapshots of one file, in order."""

    views: tuple[PoolView, ...]
    is_list: bool  # whether the file was a list; then the answer is one too


def read_snapshots(text: str, file: str = "") -> SnapshotFile:
    """The snapshots in a JSON text: one, or a list. Raises InputError with everything that is wrong."""
    findings = JsonProblems()
    document = _parse(text, file, findings)
    is_list = isinstance(document, list)
    values: list[object] = document if is_list else [document]
    views = [_read_snapshot(value, (k,) if is_list else (), findings) for k, value in enumerate(values)]
    if findings.found:
        raise InputError(findings.problems(text, file))
    return SnapshotFile(tuple(view for view in views if view is not None), is_list)


def build_view(capacity: int, jobs: Sequence[SnapshotJob], now_s: float = 0.0) -> PoolView:
    """The view of sound jobs, whatever order they come in."""
    jobs = sorted(jobs, key=lambda job: (job.submit_s, job.id))
    curves, sets = CurvePool(), SizeSetPool()
    places = np.array([curves.add(SpeedCurve(job.speed)) for job in jobs], dtype=np.int64).reshape(-1, 2)
    set_of = np.array([sets.add(job.sizes) for job in jobs], dtype=np.int64)

    def column(name: str, kind: type) -> Any:
        return frozen(np.array([getattr(job, name) for job in jobs], dtype=kind))

    columns = {name: column(name, np.int64) for name in _COUNTS} | {name: column(name, np.float64) for name in _TIMES}
    per_replica = column("gpus_per_replica", np.int64)
    return PoolView(
        now_s=now_s,
        capacity=capacity,
        ids=tuple(job.id for job in jobs),
        sizes=LegalSizes.build(columns["min"], columns["max"], per_replica, set_of, sets.matrix),
        speed=Curves(frozen(curves.flat), frozen(places[:, 0]), frozen(places[:, 1])),
        **columns,
    )


def _parse(text: str, file: str, findings: JsonProblems) -> Any:
    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [key for key, _ in pairs]
            twice = sorted({key for key in names if names.count(key) > 1})
            findings.add((), f"key {', '.join(map(repr, twice))} is given more than once in one object")
        return values

    try:
        return json.loads(text, object_pairs_hook=refuse_repeats)
    except json.JSONDecodeError as error:
        raise InputError.of(f"not valid JSON: {error.msg}", file=file, line=error.lineno, column=error.colno) from error
    except (RecursionError, ValueError) as error:
        raise InputError.of(f"not readable as JSON: {error}", file=file) from error


def _read_snapshot(value: object, path: JsonPath, findings: JsonProblems) -> PoolView | None:
    if not isinstance(value, dict):
        findings.add(path, 'must be an object with "capacity" and "jobs"')
        return None
    before = len(findings.found)
    fields = JsonObject(value, path, findings)
    fields.refuse_unknown(("capacity", "now_s", "jobs"))
    gpu_type, capacity = _read_capacity(fields, path, findings)
    now_s = fields.number("now_s", 0.0)
    read = [read_job(job, (*path, "jobs", k), findings) for k, job in enumerate(fields.items("jobs"))]
    seen: dict[str, int] = {}
    jobs = {k: job for k, job in enumerate(read) if job is not None}
    for k, job in jobs.items():
        if job.id and seen.setdefault(job.id, k) != k:
            findings.add((*path, "jobs", k, "id"), f"repeats {job.id!r} of jobs[{seen[job.id]}]")
        if job.gpu_types and gpu_type not in (ANY_TYPE_NAME, *job.gpu_types):
            findings.add((*path, "jobs", k, "gpu_types"), f"does not accept {gpu_type}, the type in capacity")
    if len(findings.found) > before:
        return None
    return build_view(capacity, list(jobs.values()), now_s)


def _read_capacity(fields: JsonObject, path: JsonPath, findings: JsonProblems) -> tuple[str, int]:
    capacity = fields.table("capacity")
    if fields.all_sound("capacity") and len(capacity) != 1:
        message = f"must name one GPU type, found {len(capacity)}: {', '.join(capacity) or 'none'}"
        fix = 'a policy runs on one type at a time; write one snapshot per type, or {"gpu": total}'
        fields.wrong("capacity", message, fix)
        return ANY_TYPE_NAME, 0
    for gpu_type in capacity:
        return gpu_type, JsonObject(capacity, (*path, "capacity"), findings).count(gpu_type, 0)
    return ANY_TYPE_NAME, 0
