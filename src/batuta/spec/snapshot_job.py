"""One job of a snapshot: the facts that a policy may look at."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import nan

from batuta.core.job import JobId
from batuta.spec.fields import Fields, Findings, is_number
from batuta.spec.json_place import Path


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


def read_job(value: object, path: Path, findings: Findings) -> SnapshotJob | None:
    """The job; what is wrong with it goes to `findings`, and the job is then not to be used."""
    if not isinstance(value, dict):
        findings.add(path, "must be an object with the keys of a job")
        return None
    fields = Fields(value, path, findings)
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
        first_start_s=fields.moment("first_start_s"),
        tier=fields.count("tier", 0, 0),
        tier_since_s=fields.number("tier_since_s", 0.0),
        gpus=fields.count("gpus", 0, 0),
        attained_gpu_s=fields.number("attained_gpu_s", 0.0),
        service_gpu_s=fields.number("service_gpu_s", 0.0),
        last_start_s=fields.moment("last_start_s"),
        last_stop_s=fields.moment("last_stop_s"),
        last_resize_s=fields.moment("last_resize_s"),
        restart_s=fields.number("restart_s", 0.0),
        priority=_read_priority(fields, value),
        gpu_types=_read_types(fields, value),
    )
    if fields.all_sound("size", "min", "max", "sizes", "gpus_per_replica"):
        _check_sizes(job, fields)
    if fields.all_sound("max", "speed"):
        _check_speed(job, fields)
    return job


def _read_speed(fields: Fields) -> tuple[float, ...]:
    speeds = fields.items("speed")
    for n, speed in enumerate(speeds):
        if not is_number(speed) or speed < 0:
            fields.wrong("speed", f"must be a finite number ≥ 0, found {speed!r}", "", n)
            return (0.0, 1.0)
    return tuple(map(float, speeds))


def _read_sizes(fields: Fields) -> tuple[int, ...]:
    sizes = fields.items("sizes")
    for k, size in enumerate(sizes):
        if not is_number(size) or size != int(size) or size < 1:
            fields.wrong("sizes", f"must be a whole number ≥ 1, found {size!r}", "", k)
            return ()
    return tuple(map(int, sizes))


def _read_priority(fields: Fields, value: dict[str, object]) -> int:
    """The one count that may be negative."""
    priority = value.get("priority")
    if priority is None:
        return 0
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 10**9:
        fields.wrong("priority", f"must be a whole number, found {priority!r}")
        return 0
    return priority


def _read_types(fields: Fields, value: dict[str, object]) -> tuple[str, ...]:
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


def _check_sizes(job: SnapshotJob, fields: Fields) -> None:
    """How the sizes of one job must agree with each other."""
    if job.min > job.max:
        fields.wrong("min", f"must be ≤ max, found min {job.min} and max {job.max}")
        return
    if not job.min <= job.size <= job.max:
        fields.wrong("size", f"must be within min..max, found {job.size} outside {job.min}..{job.max}")
    if job.sizes is not None:
        _check_size_list(job, job.sizes, fields)
    elif (job.max - job.min) % job.gpus_per_replica or (job.size - job.min) % job.gpus_per_replica:
        fields.wrong(
            "gpus_per_replica",
            f"must divide size - min and max - min, found {job.gpus_per_replica} for "
            f"min {job.min}, size {job.size}, max {job.max}",
        )


def _check_speed(job: SnapshotJob, fields: Fields) -> None:
    if len(job.speed) <= job.max:
        fields.wrong(
            "speed", f"must have a value for each of 0..{job.max} GPUs, found {len(job.speed)} values"
        )
    elif job.speed[0] != 0:
        fields.wrong("speed", f"must begin with 0, the speed with 0 GPUs, found {job.speed[0]}")


def _check_size_list(job: SnapshotJob, sizes: tuple[int, ...], fields: Fields) -> None:
    if not sizes or list(sizes) != sorted(set(sizes)):
        fields.wrong("sizes", f"must ascend without repeats, found {list(sizes)}")
    elif sizes[0] != job.min or sizes[-1] != job.max:
        fields.wrong("sizes", f"must begin at min {job.min} and end at max {job.max}, found {list(sizes)}")
    elif job.size not in sizes:
        fields.wrong("size", f"must be one of sizes, found {job.size} and sizes {list(sizes)}")
