"""Snapshots of a pool in JSON, as `batuta allocate` reads them, turned into what a policy sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batuta.core.arrays import frozen
from batuta.core.curve import CurvePool, Curves, SpeedCurve
from batuta.core.sizes import LegalSizes, SizeSetPool
from batuta.core.view import PoolView
from batuta.spec.fields import Fields, Findings
from batuta.spec.json_place import Path
from batuta.spec.problem import InputError
from batuta.spec.snapshot_job import SnapshotJob, read_job

ANY_TYPE_NAME = "gpu"
"""The name of a GPU type for those who have only one."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """All snapshots of one file, in order."""

    views: tuple[PoolView, ...]
    is_list: bool
    """Whether the file was a list; then the answer is one too."""


def read_snapshots(text: str, file: str = "") -> SnapshotFile:
    """The snapshots in a JSON text: one, or a list. Raises InputError with everything that is wrong."""
    findings = Findings()
    document = _parse(text, file, findings)
    is_list = isinstance(document, list)
    views = [
        _read_snapshot(value, (k,) if is_list else (), findings)
        for k, value in enumerate(document if is_list else [document])
    ]
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

    low, high = column("min", np.int64), column("max", np.int64)
    return PoolView(
        now_s=now_s,
        capacity=capacity,
        ids=tuple(job.id for job in jobs),
        submit_s=column("submit_s", np.float64),
        first_start_s=column("first_start_s", np.float64),
        tier=column("tier", np.int64),
        tier_since_s=column("tier_since_s", np.float64),
        size=column("size", np.int64),
        min=low,
        max=high,
        sizes=LegalSizes.build(low, high, column("gpus_per_replica", np.int64), set_of, sets.matrix),
        remaining_s=column("remaining_s", np.float64),
        speed=Curves(frozen(curves.flat), frozen(places[:, 0]), frozen(places[:, 1])),
        gpus=column("gpus", np.int64),
        attained_gpu_s=column("attained_gpu_s", np.float64),
        service_gpu_s=column("service_gpu_s", np.float64),
        last_start_s=column("last_start_s", np.float64),
        last_stop_s=column("last_stop_s", np.float64),
        last_resize_s=column("last_resize_s", np.float64),
        restart_s=column("restart_s", np.float64),
        priority=column("priority", np.int64),
    )


def _parse(text: str, file: str, findings: Findings) -> Any:
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
        raise InputError.of(
            f"not valid JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from error
    except (RecursionError, ValueError) as error:
        raise InputError.of(f"not readable as JSON: {error}", file=file) from error


def _read_snapshot(value: object, path: Path, findings: Findings) -> PoolView | None:
    if not isinstance(value, dict):
        findings.add(path, 'must be an object with "capacity" and "jobs"')
        return None
    before = len(findings.found)
    fields = Fields(value, path, findings)
    fields.refuse_unknown(("capacity", "now_s", "jobs"))
    gpu_type, capacity = _read_capacity(fields, path, findings)
    now_s = fields.number("now_s", 0.0)
    jobs = [read_job(job, (*path, "jobs", k), findings) for k, job in enumerate(fields.items("jobs"))]
    seen: dict[str, int] = {}
    for k, job in enumerate(jobs):
        if job is None:
            continue
        if job.id and seen.setdefault(job.id, k) != k:
            findings.add((*path, "jobs", k, "id"), f"repeats {job.id!r} of jobs[{seen[job.id]}]")
        if job.gpu_types and gpu_type not in (ANY_TYPE_NAME, *job.gpu_types):
            findings.add((*path, "jobs", k, "gpu_types"), f"does not accept {gpu_type}, the type in capacity")
    if len(findings.found) > before:
        return None
    return build_view(capacity, [job for job in jobs if job is not None], now_s)


def _read_capacity(fields: Fields, path: Path, findings: Findings) -> tuple[str, int]:
    capacity = fields.table("capacity")
    if fields.all_sound("capacity") and len(capacity) != 1:
        names = ", ".join(capacity) or "none"
        fields.wrong(
            "capacity",
            f"must name one GPU type, found {len(capacity)}: {names}",
            'a policy runs on one type at a time; write one snapshot per type, or {"gpu": total}',
        )
        return ANY_TYPE_NAME, 0
    for gpu_type in capacity:
        return gpu_type, Fields(capacity, (*path, "capacity"), findings).count(gpu_type, 0)
    return ANY_TYPE_NAME, 0
