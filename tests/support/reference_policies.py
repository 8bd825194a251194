"""The built-in policies again, as plainly as possible: loops over jobs, one GPU at a time."""

import math
from collections.abc import Callable, Sequence

from batuta.spec.snapshot import SnapshotJob
from tests.support.views import in_order

Allocation = dict[str, int]
Key = tuple[float | str, ...]
Order = Callable[[SnapshotJob], Key]

VERY_LONG = 1e290


def legal_sizes(job: SnapshotJob) -> list[int]:
    return list(job.sizes) if job.sizes else list(range(job.min, job.max + 1, job.gpus_per_replica))


def step_up(job: SnapshotJob, gpus: int) -> int | None:
    """The next legal size above, if any."""
    return next((size for size in legal_sizes(job) if size > gpus), None)


def speed(job: SnapshotJob, gpus: int) -> float:
    return job.speed[min(gpus, len(job.speed) - 1)]


def by_submission(job: SnapshotJob) -> Key:
    return (job.submit_s, job.id)


def by_remaining(job: SnapshotJob) -> Key:
    return (job.remaining_s, job.submit_s, job.id)


def by_tier(job: SnapshotJob) -> Key:
    started = math.inf if math.isnan(job.first_start_s) else job.first_start_s
    return (job.tier, started, job.submit_s, job.id)


def admit(capacity: int, jobs: Sequence[SnapshotJob], asked: str) -> tuple[Allocation, int]:
    """In the given order; also what is left."""
    got = {job.id: 0 for job in jobs}
    for job in jobs:
        if getattr(job, asked) <= capacity:
            got[job.id] = getattr(job, asked)
            capacity -= got[job.id]
    return got, capacity


def rigid(order: Order, asked: str) -> Callable[[int, Sequence[SnapshotJob]], Allocation]:
    return lambda capacity, jobs: admit(capacity, sorted(jobs, key=order), asked)[0]


def elastic(order: Order) -> Callable[[int, Sequence[SnapshotJob]], Allocation]:
    def allocate(capacity: int, jobs: Sequence[SnapshotJob]) -> Allocation:
        queue = sorted(jobs, key=order)
        got, free = admit(capacity, queue, "min")
        given = True
        while given and free:
            given = False
            for job in queue:
                up = step_up(job, got[job.id]) if got[job.id] else None
                if up is not None and up - got[job.id] <= free:
                    free -= up - got[job.id]
                    got[job.id] = up
                    given = True
        return got

    return allocate


def elastic_tiresias(capacity: int, jobs: Sequence[SnapshotJob]) -> Allocation:
    queue = sorted(jobs, key=by_tier)
    got, free = admit(capacity, queue, "size")
    if sum(1 for job in jobs if not got[job.id]) > 10:
        for job in jobs:
            if job.tier >= 1 and got[job.id]:
                free += got[job.id] - job.min
                got[job.id] = job.min
    growing = [job for job in in_order(jobs) if job.min <= free]
    while free:
        best, best_key, best_up = None, (0.0, 0), 0
        for job in growing:
            now = got[job.id]
            up = step_up(job, now)
            if up is None or up - now > free:
                continue
            gain = (speed(job, up) - speed(job, now)) / (up - now)
            if best is None or (-gain, job.tier) < best_key:
                best, best_key, best_up = job, (-gain, job.tier), up
        if best is None or -best_key[0] <= 0:
            break
        free -= best_up - got[best.id]
        got[best.id] = best_up
    return got


def optimus_replay(capacity: int, jobs: Sequence[SnapshotJob]) -> Allocation:
    """Each next step to the job that saves most time per GPU; whose step does not fit drops out."""
    got, free = admit(capacity, in_order(jobs), "min")
    growing = [job for job in in_order(jobs) if got[job.id]]
    while free and growing:
        worth = {job.id: _time_saved(job, got[job.id]) for job in growing}
        best = max(growing, key=lambda job: worth[job.id])
        up = step_up(best, got[best.id])
        if up is None or not worth[best.id] > 0:
            break
        if up - got[best.id] > free:
            growing.remove(best)
            continue
        free -= up - got[best.id]
        got[best.id] = up
    return got


def _time_saved(job: SnapshotJob, gpus: int) -> float:
    """By the next step, per GPU; below all if there is none, or if no number comes out."""
    up = step_up(job, gpus)
    if up is None:
        return -math.inf
    slow, fast = (1 / now if (now := speed(job, n)) else math.inf for n in (gpus, up))
    saved = (slow - fast) * job.remaining_s / (up - gpus)
    return -math.inf if math.isnan(saved) else saved


def ffdl(capacity: int, jobs: Sequence[SnapshotJob]) -> Allocation:
    got = {job.id: 0 for job in jobs}
    taken: list[SnapshotJob] = []
    for job in in_order(jobs):
        if sum(other.min for other in taken) + job.min > capacity:
            break
        taken.append(job)
    best: list[float] = [0.0] * (capacity + 1)
    choices: list[list[int]] = []
    for job in taken:
        table, choice = [-math.inf] * (capacity + 1), [0] * (capacity + 1)
        for total in range(capacity + 1):
            for size in legal_sizes(job):
                if size <= total and best[total - size] + speed(job, size) > table[total]:
                    table[total], choice[total] = best[total - size] + speed(job, size), size
        best = table
        choices.append(choice)
    total = capacity
    for job, choice in zip(reversed(taken), reversed(choices), strict=True):
        got[job.id] = choice[total]
        total -= choice[total]
    return got


def afs_l(capacity: int, jobs: Sequence[SnapshotJob]) -> Allocation:
    """The paper's rule, scanned anew for every GPU. A winner whose step does not fit leaves."""
    got = {job.id: 0 for job in jobs}
    present = in_order(jobs)
    while capacity and present:
        best = present[0]
        for job in present[1:]:
            if _takes_lead(job, best, got):
                best = job
        up = step_up(best, got[best.id])
        if up is None or up - got[best.id] > capacity:
            present.remove(best)
            continue
        capacity -= up - got[best.id]
        got[best.id] = up
        if step_up(best, up) is None:
            present.remove(best)
    return got


def _takes_lead(later: SnapshotJob, leader: SnapshotJob, got: Allocation) -> bool:
    if not got[later.id] and not got[leader.id]:
        return later.remaining_s < leader.remaining_s
    shorter, longer = leader, later
    if _length(later, got) < _length(leader, got):
        shorter, longer = later, leader
    longer_wins = _last(longer, got) > _first(shorter, got)
    return (longer is later) == longer_wins


def _length(job: SnapshotJob, got: Allocation) -> float:
    if not got[job.id]:
        return math.inf
    now = speed(job, got[job.id])
    return min(job.remaining_s / now, VERY_LONG) if now else VERY_LONG


def _gain(job: SnapshotJob, got: Allocation) -> tuple[float, float]:
    """Per GPU of the next step, and the speed after it."""
    now = got[job.id]
    up = step_up(job, now)
    assert up is not None
    return (speed(job, up) - speed(job, now)) / (up - now), speed(job, up)


def _last(job: SnapshotJob, got: Allocation) -> float:
    if not got[job.id]:
        return 1.0
    gain, then = _gain(job, got)
    if not then:
        return -math.inf if gain < 0 else 0.0
    return gain / then


def _first(job: SnapshotJob, got: Allocation) -> float:
    if not got[job.id]:
        return math.inf
    gain, _ = _gain(job, got)
    now = speed(job, got[job.id])
    if not now:
        return math.inf if gain > 0 else 0.0
    return gain / now


REFERENCE: dict[str, Callable[[int, Sequence[SnapshotJob]], Allocation]] = {
    "fifo": rigid(by_submission, "min"),
    "srjf": rigid(by_remaining, "min"),
    "tiresias": rigid(by_tier, "size"),
    "elastic-fifo": elastic(by_submission),
    "elastic-srjf": elastic(by_remaining),
    "elastic-tiresias": elastic_tiresias,
    "ffdl": ffdl,
    "afs-l": afs_l,
    "optimus-replay": optimus_replay,
}
