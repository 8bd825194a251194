"""Which GPU type each job competes for, and which ones it could have."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import FloatArray, IntArray
from batuta.core.job import Job
from batuta.core.reach import within_reach
from batuta.core.world import World


def assign_types(
    world: World,
    capacity: list[int],
    possible: Mapping[int, Set[int]] | None = None,
    idle: Set[int] = frozenset(),
) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    `possible` has the types of rows that cannot have all; `idle` are rows that do not start whatever is free,
    so they take no room. If they did, others would be sent to other types whenever it comes and goes.
    """
    jobs, types = world.jobs, world.nodes.types
    result = jobs.i("gpu_type").copy()
    held: list[int] = result.tolist()
    low: list[int] = jobs.i("min").tolist()
    room = list(capacity)
    for kind, need in zip(held, low, strict=True):
        if kind >= 0:
            room[kind] -= need
    # What those before have or wait for. It does not change when somebody behind is started or stopped for a
    # job that waits: if it did, the job would be sent to another type, and all would go round in circles.
    ahead = [0] * len(types)
    order = sorted(range(len(types)), key=lambda kind: (-capacity[kind], kind))
    for row, need in enumerate(low):
        kind = held[row]
        if kind < 0:
            accepted = _accepted(jobs.jobs[row], types, order)
            if not accepted:
                continue
            if jobs.narrow or possible:
                most = world.most_for(row)
                allowed = possible.get(row) if possible else None
                within = (
                    [k for k in accepted if most[k] >= need]
                    if allowed is None
                    else [k for k in accepted if k in allowed]
                )
                if not within:
                    # It cannot run, so it takes no room from others.
                    result[row] = accepted[0]
                    continue
                accepted = within
            # With no room anywhere the job queues where the queue is shortest for the size of the pool.
            kind = next(
                (k for k in accepted if room[k] >= need),
                next(
                    (k for k in accepted if capacity[k] - ahead[k] >= need),
                    min(accepted, key=lambda k: (ahead[k] / max(capacity[k], 1), k)),
                ),
            )
            result[row] = kind
            if row in idle:
                continue
            room[kind] -= need
        ahead[kind] += need
    return result


def _accepted(job: Job, types: list[str], order: list[int]) -> list[int]:
    if not job.gpu_types:
        return order
    speeds = dict(job.gpu_types)
    known = [kind for kind in order if types[kind] in speeds]
    return sorted(known, key=lambda kind: -speeds[types[kind]])


class OpenTypes(NamedTuple):
    """What each row could have, by GPU type."""

    speed: FloatArray
    """Speed of one GPU relative to the reference type; 0 where the row may have none of the type."""
    most: IntArray
    """The largest legal size; 0 where the row may have none of the type."""
    preferred: IntArray
    """The type that it has, else the one that it would like best; -1 where it accepts none."""


def open_types(world: World, admitted: Admitted, capacity: list[int]) -> OpenTypes:
    """What each row could have of every type: by its own list, by quota, and by what nodes could give.

    A part of a GPU is not worth a choice: its type is that of `assign_types`, so that parts which lie
    together are known before anybody is asked.
    """
    speed = _relative_speeds(world)
    if admitted.gpu_type is not None:
        _keep_one(speed, np.arange(world.jobs.n), admitted.gpu_type)
    elif shares := _shares(world):
        rows = np.array(shares, dtype=np.int64)
        _keep_one(speed, rows, assign_types(world, capacity)[rows])
    # By speed, then by the size of the pool: what a job would compete for if it had to choose one.
    score = speed + 1e-9 * np.array(capacity) / max(sum(capacity), 1) * (speed > 0)
    low, most = world.jobs.i("min"), _most(world, admitted)
    fits = (speed > 0) & (most >= low[:, None])
    reachable = np.where(fits, score, 0.0)
    preferred: IntArray = np.where(fits.any(axis=1), reachable.argmax(axis=1), score.argmax(axis=1))
    held = world.jobs.i("gpu_type")
    preferred = np.where(held >= 0, held, np.where((speed > 0).any(axis=1), preferred, -1))
    return OpenTypes(np.where(fits, speed, 0.0), np.where(fits, most, 0), preferred)


def _relative_speeds(world: World) -> FloatArray:
    jobs, types = world.jobs, world.nodes.types
    table: FloatArray = np.ones((jobs.n, len(types)))
    if jobs.picky:
        known: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for row, job in enumerate(jobs.jobs):
            if job.gpu_types:
                own = known.get(job.gpu_types)
                if own is None:
                    speeds = dict(job.gpu_types)
                    own = known[job.gpu_types] = [speeds.get(name, 0.0) for name in types]
                table[row] = own
    return table


def _keep_one(speed: FloatArray, rows: IntArray, kinds: IntArray) -> None:
    """Leaves one type to each of these rows, and none to those whose type is -1."""
    left = np.where(kinds >= 0, speed[rows, kinds], 0.0)
    speed[rows] = 0.0
    speed[rows, np.maximum(kinds, 0)] = left


def _shares(world: World) -> list[int]:
    """Rows that take a part of a GPU."""
    jobs = world.jobs
    return [row for row, job in enumerate(jobs.jobs) if job.share is not None] if jobs.picky else []


def _most(world: World, admitted: Admitted) -> IntArray:
    """The largest legal size by row and type."""
    jobs, sizes = world.jobs, world.jobs.legal_sizes()
    columns: list[IntArray] = []
    for kind in range(len(world.nodes.types)):
        kinds = np.full(jobs.n, kind, dtype=np.int64)
        cap, reach = within_reach(world, admitted.cap, kinds, admitted.wishes)
        if cap is not None and reach is not None:
            # What a job has stays its own on the type that it has; of another it gets what nodes could give.
            away = jobs.i("gpu_type")[reach.rows] != kind
            rows = reach.rows[away]
            cap[rows] = np.minimum(cap[rows], reach.most[away])
        columns.append(sizes.max if cap is None else sizes.floor(cap))
    return np.stack(columns, axis=1)
