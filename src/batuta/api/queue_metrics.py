"""Queues and cohorts as metrics: quota and what is made of it, who waits, how often jobs come and go.

The number of time series is bounded: queues that were set up have series of their own, up to a number; the
others, which anybody can name, are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.api.picture import Picture
from batuta.api.queue_view import queues_of, whole
from batuta.api.schedule_counts import ScheduleCounts
from batuta.core.quota import Cell
from batuta.quota.use import CellUse, QueueUse
from batuta.spec.task_job import DEFAULT_QUEUE

MOST_QUEUES = 200
MOST_CELLS = 2_000
"""Of all queues together, and of all cohorts."""
OTHERS = "_others"
"""No queue can be called so."""
_CELL = ("flavor", "resource")


def queue_metrics(picture: Picture, counts: ScheduleCounts, now_s: float | None = None) -> Iterator[Metric]:
    """Without a time of the clock, waits are told up to the last event."""
    now_s = picture.now_s if now_s is None else now_s
    uses = queues_of(picture)
    own = _with_series(uses)
    yield from _jobs(uses, own)
    yield from _waits(now_s, uses, own)
    cells = islice(_cells((one.queue.name, one.cells) for one in uses if one.queue.name in own), MOST_CELLS)
    yield from _amounts("queue", list(cells), "its nominal quota")
    needs = {
        (one.queue.name, resource): whole(amount)
        for one in uses
        if one.queue.name in own
        for resource, amount in one.needs
    }
    yield gauge(
        "batuta_queue_needed", "What jobs that wait need at least, by resource.", ["queue", "resource"], needs
    )
    shares = {(one.queue.name,): one.share for one in uses if one.queue.name in own}
    yield gauge("batuta_queue_weighted_share", _SHARE, ["queue"], shares)
    yield from _cohorts(picture)
    yield from _counts(counts, own)


_SHARE = "What is borrowed, in thousandths of what the cohort could lend, divided by the weight."


def _with_series(uses: Iterable[QueueUse]) -> frozenset[str]:
    set_up = (one.queue.name for one in uses if one.set_up or one.queue.name == DEFAULT_QUEUE)
    return frozenset(islice(set_up, MOST_QUEUES))


def _jobs(uses: Iterable[QueueUse], own: frozenset[str]) -> Iterator[Metric]:
    pending, running, gpus = Counter[tuple[str]](), Counter[tuple[str]](), Counter[tuple[str]]()
    for one in uses:
        label = (one.queue.name if one.queue.name in own else OTHERS,)
        pending[label] += len(one.waiting)
        running[label] += one.running
        gpus[label] += one.gpus
    yield gauge("batuta_queue_pending", "Jobs that wait, by queue.", ["queue"], pending)
    yield gauge("batuta_queue_running", "Jobs that have GPUs, by queue.", ["queue"], running)
    yield gauge("batuta_queue_gpus", "GPUs that are used, by queue.", ["queue"], gpus)


def _waits(now_s: float, uses: Iterable[QueueUse], own: frozenset[str]) -> Iterator[Metric]:
    """Of those that wait now: how long the one does that has waited longest."""
    oldest: dict[tuple[str], float] = {}
    for one in uses:
        label = (one.queue.name if one.queue.name in own else OTHERS,)
        since_s = min((job.submit_s for job in one.waiting), default=now_s)
        oldest[label] = max(oldest.get(label, 0.0), now_s - since_s)
    yield gauge(
        "batuta_queue_oldest_wait_seconds",
        "How long the job waits that was submitted first of those that wait, by queue.",
        ["queue"],
        oldest,
    )


def _cells(owners: Iterable[tuple[str, tuple[CellUse, ...]]]) -> Iterator[tuple[str, CellUse]]:
    return ((name, cell) for name, cells in owners for cell in cells)


def _amounts(kind: str, cells: list[tuple[str, CellUse]], quota: str) -> Iterator[Metric]:
    """GPUs, CPUs, bytes, pods."""
    for field, help_ in (
        ("total", f"Quota: {quota}."),
        ("used", "What jobs use."),
        ("reserved", "The part of what jobs use that their minimums take."),
        ("borrowed", "What is used of others."),
        ("lent", "What others use of it."),
    ):
        name = "nominal" if field == "total" else field
        values = {_labels(owner, one.cell): whole(getattr(one, field)) for owner, one in cells}
        yield gauge(f"batuta_{kind}_{name}", help_, [kind, *_CELL], values)


def _labels(owner: str, cell: Cell) -> tuple[str, str, str]:
    return owner, cell.flavor, cell.resource


def _cohorts(picture: Picture) -> Iterator[Metric]:
    uses = picture.use.cohorts[:MOST_QUEUES]
    cells = list(islice(_cells((one.name, one.cells) for one in uses), MOST_CELLS))
    yield from _amounts("cohort", cells, "its own nominal one, and that of all below it")
    yield gauge("batuta_cohort_weighted_share", _SHARE, ["cohort"], {(one.name,): one.share for one in uses})


def _counts(counts: ScheduleCounts, own: frozenset[str]) -> Iterator[Metric]:
    admitted, preempted = Counter[tuple[str]](), Counter[tuple[str, str]]()
    for queue, number in dict(counts.admitted).items():
        admitted[queue if queue in own else OTHERS,] += number
    for (queue, reason), number in dict(counts.preempted).items():
        preempted[queue if queue in own else OTHERS, reason] += number
    yield counter("batuta_queue_admitted", "Jobs that were given GPUs, by queue.", ["queue"], admitted)
    yield counter(
        "batuta_queue_preempted",
        "Jobs that had to give all their GPUs back, by queue and reason.",
        ["queue", "reason"],
        preempted,
    )
