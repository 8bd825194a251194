"""Prometheus metrics of the scheduler, jobs, nodes and queues, from a snapshot of the World.

The number of series is bounded: only so many jobs, nodes, GPUs and queues have series of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from batuta.api.dependencies import MAX_JOB_SERIES, NodeFacts
from batuta.api.queue_views import queues_of, whole
from batuta.api.scheduler_counters import Histogram, ScheduleCounts, SchedulerCounters
from batuta.api.snapshot import WorldSnapshot
from batuta.api.views import count_gpus
from batuta.core.plan import Decisions
from batuta.core.reason import Reason
from batuta.quota.usage import FlavorUsage, QueueUse
from batuta.spec.task_job import DEFAULT_QUEUE


def gauge(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float] | float) -> Metric:
    """Return a gauge with values by label value, or by a tuple of them; a number where there are no labels."""
    return _filled(GaugeMetricFamily(name, help_, labels=labels), values)


def counter(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float] | float) -> Metric:
    return _filled(CounterMetricFamily(name, help_, labels=labels), values)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float] | float
) -> GaugeMetricFamily | CounterMetricFamily:
    # Copied: the engine's thread may add a key meanwhile.
    for own, value in dict(values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric([own] if isinstance(own, str) else own, value)
    return family


def histogram(name: str, help_: str, times: Histogram | Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, help_, labels=["step"] if isinstance(times, Mapping) else [])
    for labels, one in times.items() if isinstance(times, Mapping) else (((), times),):
        bounds = (*map(str, one.bounds_s), "+Inf")
        # Buckets are cumulative, as Prometheus has them.
        counts = zip(bounds, map(float, accumulate(list(one.buckets))), strict=True)
        family.add_metric([labels] if isinstance(labels, str) else labels, list(counts), one.total_s)
    return family


def count_reasons(decisions: Decisions) -> Counter[str]:
    """Count the decisions by the name of their reason, without a look at every single one."""
    n = len(decisions)
    if not n:
        return Counter()
    kind = np.zeros(n, dtype=np.int64) if decisions.kind is None else decisions.kind
    known = kind >= 0
    # Place -1 of these is for jobs that no type is good enough for.
    free = np.where(known, np.array((*decisions.free, 0))[kind], 0)
    capacity = np.where(known, np.array((*decisions.capacity, 0))[kind], 0)
    gpus, low, asked = decisions.gpus, decisions.low, decisions.asked
    needs = np.where((low <= free) & (free < asked), asked, low)
    moving = np.zeros(n, dtype=bool) if decisions.moving is None else decisions.moving
    waits = gpus == 0
    cases = (
        (gpus >= decisions.high, Reason.FULL_SIZE),
        (waits & ~known, Reason.NO_ACCEPTED_TYPE),
        (waits & (low > capacity), Reason.EXCEEDS_CLUSTER),
        (waits & (needs <= free), Reason.HELD_BACK),
        (waits, Reason.WAITING_FOR_GPUS),
        (moving, Reason.IN_TRANSITION),
        (gpus < asked, Reason.SHARES_WITH_OTHERS),
    )
    open_ = np.ones(n, dtype=bool)
    open_[list(decisions.special)] = False
    found = Counter(reason.name for reason, _ in decisions.special.values())
    for applies, reason in cases:
        found[reason.name] += int((open_ & applies).sum())
        open_ &= ~applies
    found[Reason.AT_ASKED_SIZE.name] += int(open_.sum())
    return +found


def schedule_metrics(snapshot: WorldSnapshot, watch: SchedulerCounters, now_s: float) -> Iterator[Metric]:
    """Yield cycles, decisions, job totals, GPU time and events. `now_s` is by the clock."""
    counts, reasons = watch.schedule, {} if snapshot.plan is None else count_reasons(snapshot.plan.decisions)
    commands = "Commands of plans: start, resize, migrate, preempt and stop, by reason."
    by_reason = "Living jobs, by the reason why they have what they have."
    lengths = "From submit to the end of jobs that succeeded."
    lost = "The part of the used GPU time whose work has to be done again, by what broke it off."
    yield histogram("batuta_cycle_seconds", "Time of one decision and its commands.", watch.times)
    yield histogram("batuta_cycle_step_seconds", "Time of a step of a cycle.", watch.step_times)
    yield counter("batuta_commands", commands, ["kind", "reason"], counts.commands)
    yield counter("batuta_given_gpus", "GPUs that jobs were given, by kind of command.", ["kind"], counts.given_gpus)
    yield gauge("batuta_jobs_by_reason", by_reason, ["reason"], reasons)
    yield counter("batuta_jobs_submitted", "Jobs that came.", [], counts.submitted)
    yield counter("batuta_jobs_ended", "Jobs that are over, by how they ended.", ["state"], counts.ended)
    yield histogram("batuta_job_wait_seconds", "From submit to the first start.", counts.waits)
    yield histogram("batuta_job_completion_seconds", lengths, counts.lengths)
    yield counter("batuta_gpu_seconds", "Where the time of all GPUs goes.", ["use"], watch.gpu_time.at(now_s))
    yield counter("batuta_lost_gpu_seconds", lost, ["cause"], counts.lost_gpu_s)
    yield counter("batuta_events", "Events since the start, by type.", ["type"], watch.events.by_type)
    steps = "Steps of starts, resizes and preemptions."
    yield histogram("batuta_transition_seconds", steps, watch.events.step_times)


_JOB_LABELS = ("job_id", "name")  # not `job`: Prometheus has a label of that name, and would rename ours
_PROGRESS_GAUGES = (
    ("batuta_job_samples_per_second", "Speed, as reported.", "samples_per_s"),
    ("batuta_job_step_seconds", "Time of a step, as reported.", "step_s"),
    ("batuta_job_progress_ratio", "How much of its work is done.", "fraction"),
)


def job_metrics(snapshot: WorldSnapshot, most: int = MAX_JOB_SERIES) -> Iterator[Metric]:
    """Yield the metrics of at most `most` jobs: of jobs with GPUs, the first by submit time."""
    rows = list(islice((row for row, held in enumerate(snapshot.placements) if held is not None), most))
    labels = {row: (snapshot.jobs[row].id, snapshot.jobs[row].name) for row in rows}
    yield from _job_gpus(snapshot, labels)
    reported = {own: snapshot.progress[own[0]] for own in labels.values() if own[0] in snapshot.progress}
    for name, help_, field in _PROGRESS_GAUGES:
        values = {own: getattr(progress, field) for own, progress in reported.items()}
        known = {own: value for own, value in values.items() if value is not None}
        yield gauge(name, help_, _JOB_LABELS, known)
    idle = "How long a job holds GPUs without using them, of those for which that is too long."
    yield gauge("batuta_job_idle_seconds", idle, _JOB_LABELS, dict(islice(_idle_jobs(snapshot), most)))


def _job_gpus(snapshot: WorldSnapshot, labels: dict[int, tuple[str, str]]) -> Iterator[Metric]:
    columns = snapshot.columns
    gpus, restarts = columns.held, columns.restarts
    # Progress and service are booked when something changes; what has come since follows from the rate.
    since_s = np.maximum(snapshot.now_s - columns.anchor_s, 0.0)
    held_gpu_s, worked_s = columns.attained_gpu_s + gpus * since_s, columns.done_s + columns.rate * since_s
    goodput = "Work done for each GPU-second held: 1 when it scales perfectly and nothing was lost."
    ratios = {own: worked_s[row] / held_gpu_s[row] for row, own in labels.items() if held_gpu_s[row] > 0}
    held = {own: float(held_gpu_s[row]) for row, own in labels.items()}
    moves = {own: int(restarts[row]) for row, own in labels.items()}
    yield gauge("batuta_job_gpus", "GPUs of a job.", _JOB_LABELS, {own: int(gpus[row]) for row, own in labels.items()})
    yield counter("batuta_job_gpu_seconds", "GPU-seconds that a job has held.", _JOB_LABELS, held)
    yield gauge("batuta_job_goodput_ratio", goodput, _JOB_LABELS, ratios)
    yield counter("batuta_job_restarts", "How often a job lost its GPUs or was given others.", _JOB_LABELS, moves)


def _idle_jobs(snapshot: WorldSnapshot) -> Iterator[tuple[tuple[str, str], float]]:
    decisions = () if snapshot.plan is None else snapshot.plan.decisions.special.items()
    for row, (reason, evidence) in decisions:
        if reason is Reason.IDLE and snapshot.plan is not None:
            job = snapshot.plan.decisions.ids[row]
            living = snapshot.row_of(job)
            if living is not None:
                yield (job, snapshot.jobs[living].name), dict(evidence)["idle_s"]


MAX_NODE_SERIES = 2_000  # nodes that have series of their own, in the order in which they came
MAX_GPU_SERIES = 8_000
NODE_STATES = ("ready", "cordoned", "lost")


def node_metrics(snapshot: WorldSnapshot, facts: NodeFacts) -> Iterator[Metric]:
    yield gauge("batuta_gpus", "GPUs: total is the sum of the others.", ["state"], count_gpus(snapshot))
    lost, cordoned = snapshot.lost, snapshot.cordoned
    numbers = range(len(snapshot.nodes))
    states = ["lost" if lost >> i & 1 else "cordoned" if cordoned >> i & 1 else "ready" for i in numbers]
    counts = {state: states.count(state) for state in NODE_STATES}
    yield gauge("batuta_nodes", "Nodes by state.", ["state"], counts)
    yield from _single_nodes(snapshot, states[:MAX_NODE_SERIES])
    yield from _gpu_utilisation(snapshot, facts)
    yield from _placement(snapshot)


def _single_nodes(snapshot: WorldSnapshot, states: list[str]) -> Iterator[Metric]:
    values: dict[tuple[str, str], int] = {}
    for node, healthy, free in zip(snapshot.nodes[: len(states)], snapshot.healthy, snapshot.free, strict=False):
        works, unused = healthy.bit_count(), (healthy & free).bit_count()
        values[node.name, "used"] = works - unused
        values[node.name, "free"] = unused
        values[node.name, "unhealthy"] = node.gpus - works
    yield gauge("batuta_node_gpus", "GPUs of a node.", ["node", "state"], values)
    names = (node.name for node in snapshot.nodes)
    serves = {name: int(state == "ready") for name, state in zip(names, states, strict=False)}
    help_ = "1 when a node may get new jobs, 0 when it is cordoned or lost."
    yield gauge("batuta_node_ready", help_, ["node"], serves)


def _gpu_utilisation(snapshot: WorldSnapshot, facts: NodeFacts) -> Iterator[Metric]:
    values: dict[tuple[str, str], float] = {}
    for node in snapshot.nodes[:MAX_NODE_SERIES]:
        if len(values) + node.gpus > MAX_GPU_SERIES:
            break
        values |= {(node.name, str(gpu)): share for gpu, share in facts.utilisation(node.name).items()}
    yield gauge("batuta_gpu_utilisation_ratio", "How busy a GPU is, as measured.", ["node", "gpu"], values)


def _placement(snapshot: WorldSnapshot) -> Iterator[Metric]:
    """Yield fragmentation: parts of nodes are of little use, and jobs across nodes are slower."""
    free = [(own & ok).bit_count() for own, ok in zip(snapshot.free, snapshot.healthy, strict=True)]
    pieces = sum(own for own, node in zip(free, snapshot.nodes, strict=True) if own < node.gpus)
    total = sum(free)
    fragments = "Share of the free GPUs that lie on nodes of which others are in use."
    largest = "Free GPUs of the node that has most of them."
    across = "Jobs on more than one node, by whether one node would be enough for them."
    widest = max((node.gpus for node in snapshot.nodes), default=0)
    spread = [held.size for held in snapshot.placements if held is not None and len(held.spans) > 1 and held.size]
    fits = sum(size <= widest for size in spread)
    yield gauge("batuta_fragmentation_ratio", fragments, [], pieces / total if total else 0.0)
    yield gauge("batuta_largest_free_block_gpus", largest, [], max(free, default=0))
    yield gauge("batuta_cross_node_jobs", across, ["fits_one_node"], {"yes": fits, "no": len(spread) - fits})


MAX_QUEUE_SERIES = 200
MAX_QUOTA_SERIES = 2_000  # of all queues together, and of all cohorts
OTHERS = "_others"  # no queue can be called so


def queue_metrics(snapshot: WorldSnapshot, counts: ScheduleCounts, now_s: float | None = None) -> Iterator[Metric]:
    """Yield the metrics of queues and cohorts; without `now_s`, waits count up to the last event."""
    now_s = snapshot.now_s if now_s is None else now_s
    uses = queues_of(snapshot)
    set_up = (one.queue.name for one in uses if one.set_up or one.queue.name == DEFAULT_QUEUE)
    own = frozenset(islice(set_up, MAX_QUEUE_SERIES))
    yield from _queue_jobs(uses, own, now_s)
    cells = islice(_cells((one.queue.name, one.flavors) for one in uses if one.queue.name in own), MAX_QUOTA_SERIES)
    yield from _amounts("queue", list(cells), "its nominal quota")
    needs = {
        (one.queue.name, resource): whole(amount)
        for one in uses
        if one.queue.name in own
        for resource, amount in one.needs
    }
    yield gauge("batuta_queue_needed", "What jobs that wait need at least, by resource.", ["queue", "resource"], needs)
    shares = {one.queue.name: one.share for one in uses if one.queue.name in own}
    yield gauge("batuta_queue_weighted_share", _SHARE, ["queue"], shares)
    yield from _cohorts(snapshot)
    yield from _queue_totals(counts, own)


_SHARE = "What is borrowed, in thousandths of what the cohort could lend, divided by the weight."


def _queue_jobs(uses: Iterable[QueueUse], own: frozenset[str], now_s: float) -> Iterator[Metric]:
    pending, running, gpus, oldest_s = Counter[str](), Counter[str](), Counter[str](), dict[str, float]()
    for one in uses:
        label = one.queue.name if one.queue.name in own else OTHERS
        pending[label] += len(one.waiting)
        running[label] += one.running
        gpus[label] += one.gpus
        since_s = min((job.submit_s for job in one.waiting), default=now_s)
        oldest_s[label] = max(oldest_s.get(label, 0.0), now_s - since_s)
    longest = "How long the job waits that was submitted first of those that wait, by queue."
    yield gauge("batuta_queue_pending", "Jobs that wait, by queue.", ["queue"], pending)
    yield gauge("batuta_queue_running", "Jobs that have GPUs, by queue.", ["queue"], running)
    yield gauge("batuta_queue_gpus", "GPUs that are used, by queue.", ["queue"], gpus)
    yield gauge("batuta_queue_oldest_wait_seconds", longest, ["queue"], oldest_s)


def _cells(owners: Iterable[tuple[str, tuple[FlavorUsage, ...]]]) -> Iterator[tuple[str, FlavorUsage]]:
    return ((name, cell) for name, cells in owners for cell in cells)


def _amounts(kind: str, cells: list[tuple[str, FlavorUsage]], quota: str) -> Iterator[Metric]:
    for field, help_ in (
        ("total", f"Quota: {quota}."),
        ("used", "What jobs use."),
        ("reserved", "The part of what jobs use that their minimums take."),
        ("borrowed", "What is used of others."),
        ("lent", "What others use of it."),
    ):
        name = "nominal" if field == "total" else field
        values = {(owner, *one.flavor_resource): whole(getattr(one, field)) for owner, one in cells}
        yield gauge(f"batuta_{kind}_{name}", help_, [kind, "flavor", "resource"], values)


def _cohorts(snapshot: WorldSnapshot) -> Iterator[Metric]:
    uses = snapshot.use.cohorts[:MAX_QUEUE_SERIES]
    cells = list(islice(_cells((one.name, one.flavors) for one in uses), MAX_QUOTA_SERIES))
    yield from _amounts("cohort", cells, "its own nominal one, and that of all below it")
    yield gauge("batuta_cohort_weighted_share", _SHARE, ["cohort"], {one.name: one.share for one in uses})


def _queue_totals(counts: ScheduleCounts, own: frozenset[str]) -> Iterator[Metric]:
    admitted, preempted = Counter[str](), Counter[tuple[str, str]]()
    for queue, number in dict(counts.admitted).items():
        admitted[queue if queue in own else OTHERS] += number
    for (queue, reason), number in dict(counts.preempted).items():
        preempted[queue if queue in own else OTHERS, reason] += number
    given_back = "Jobs that had to give all their GPUs back, by queue and reason."
    yield counter("batuta_queue_admitted", "Jobs that were given GPUs, by queue.", ["queue"], admitted)
    yield counter("batuta_queue_preempted", given_back, ["queue", "reason"], preempted)
