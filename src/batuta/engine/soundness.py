"""What must hold of every World: no job is stuck, no GPU or quota is held without a job.

All of it is counted anew from the jobs themselves, so a mistake in what is kept as events come in is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from batuta.core.arrays import bits, mask_of
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.world import World


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Not needed by every installation."""
    WARNING = "warning"
    """Works, but an administrator should look at it."""
    ERROR = "error"
    """Does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what `batuta doctor` says."""

    check: str
    severity: Severity
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Severity.OK, found)


# Every finding comes with what to do about it.


def note(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.NOTE, found, fix)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.WARNING, found, fix)


def error(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Severity.ERROR, found, fix)


def named(names: list[str], most: int = 5) -> str:
    """The first of many, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


STUCK_AFTER_S = 900.0
"""A gang that has its GPUs and does not run after this long keeps them from others. Setup takes minutes."""
_SINCE = {Phase.STARTING: "last_start_s", Phase.RESIZING: "last_resize_s", Phase.STOPPING: "last_stop_s"}
_WORDS = {Phase.STARTING: "starting", Phase.RESIZING: "being resized", Phase.STOPPING: "being stopped"}


def check_world(world: World, now_s: float) -> Iterator[Finding]:
    """All of it."""
    yield from check_gangs(world, now_s)
    yield check_quota(world)
    yield check_reservations(world)


def check_gangs(world: World, now_s: float) -> Iterator[Finding]:
    """Gangs that hold GPUs, or are to leave them, and do not get on with it."""
    stuck = list(stuck_gangs(world, now_s))
    for job, phase, since_s in stuck[:10]:
        gpus = world.jobs.gpus().item(world.jobs.row(job))
        yield warning(
            "stuck gangs",
            f"job {job} has been {_WORDS[phase]} for {_minutes(now_s - since_s)} and holds {_gpus(gpus)}",
            f"batuta logs {job}; batuta cancel {job} if it will not recover",
        )
    if len(stuck) > 10:
        yield warning("stuck gangs", f"{len(stuck) - 10} more", "batuta queue")
    if not stuck:
        yield ok("stuck gangs", "none: every job that has GPUs runs, or is about to")


def stuck_gangs(world: World, now_s: float) -> Iterator[tuple[JobId, Phase, float]]:
    """Jobs that are on their way for too long, what they are about, and since when."""
    jobs = world.jobs
    for row, number in enumerate(jobs.phase.tolist()):
        phase = Phase(number)
        if phase not in _SINCE:
            continue
        since_s = jobs.column(_SINCE[phase]).item(row)
        if math.isfinite(since_s) and now_s - since_s > STUCK_AFTER_S:
            yield jobs.ids[row], phase, since_s


def check_quota(world: World) -> Finding:
    """Quota that counts as used by jobs that are gone, or have no GPUs."""
    jobs = world.jobs
    ghosts = [job for job in world.flavors if job not in jobs or jobs.placements[jobs.row(job)] is None]
    if ghosts:
        return error(
            "leaked quota",
            f"{len(ghosts)} jobs that have no GPUs count against their queues: {named(ghosts)}",
            "start the server anew, which counts from the journal; please report this as a bug",
        )
    return ok("leaked quota", "none: all quota in use belongs to jobs that have GPUs")


def check_reservations(world: World) -> Finding:
    """GPUs that count as taken and belong to no job, or to two."""
    held: dict[int, int] = {}
    twice: list[str] = []
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        for node, gpus in placement.spans if placement is not None else ():
            i, mask = world.nodes.index.get(node, -1), mask_of(gpus)
            if job.share is None and held.get(i, 0) & mask:
                twice.append(f"{node}:{','.join(map(str, bits(held[i] & mask)))}")
            held[i] = held.get(i, 0) | mask
    orphans = [
        f"{node.name}:{gpu}"
        for i, node in enumerate(world.nodes.nodes)
        for gpu in bits(world.layout.healthy[i] & ~world.layout.free[i] & ~held.get(i, 0))
    ]
    if not orphans and not twice:
        return ok("orphan reservations", "none: every GPU that is taken belongs to one job")
    parts = [f"{len(orphans)} GPUs are taken by no job: {named(orphans)}"] if orphans else []
    parts += [f"{len(twice)} GPUs are taken twice: {named(twice)}"] if twice else []
    return error(
        "orphan reservations",
        "; ".join(parts),
        "start the server anew, which counts from the journal; please report this as a bug",
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs" if count else "no GPUs"
