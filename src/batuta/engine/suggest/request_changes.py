"""What the user of a job could ask for instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from batuta.core.event import JobChanged
from batuta.core.job import ANY_TYPE, ANYWHERE, Job
from batuta.core.node_table import OFFERS_SHARES
from batuta.engine.suggest.suggestion import Facts, Remedy, Suggestion
from batuta.engine.suggest.trials import Trials, first_that_works


def fewer_gpus(trials: Trials) -> Iterator[Suggestion]:
    """The largest size below what was asked for with which it starts."""
    job = trials.job
    below = sorted({*range(job.gpus_per_replica, job.min, job.gpus_per_replica), *_legal_below_size(job)})
    below.reverse()

    def try_nth(n: int) -> Suggestion | None:
        gpus = below[n - 1]
        facts: Facts = (("gpus", gpus), ("asked", job.size))
        return trials.suggestion(Remedy.FEWER_GPUS, facts, [_changed(trials, resized(job, gpus))])

    found = first_that_works(len(below), try_nth)
    if found is not None:
        yield found


def resized(job: Job, gpus: int) -> Job:
    """The same request for this size, and for fewer at least if that is below its `min`."""
    if gpus >= job.min:
        return replace(job, size=gpus)
    sizes = None if job.sizes is None else (gpus, *job.sizes)
    return replace(job, min=gpus, size=gpus, sizes=sizes)


def _legal_below_size(job: Job) -> list[int]:
    legal = job.sizes or range(job.min, job.max + 1, job.gpus_per_replica)
    return [gpus for gpus in legal if gpus < job.size]


def other_types(trials: Trials) -> Iterator[Suggestion]:
    """GPU types that it does not accept; one at a time."""
    job = trials.job
    if job.gpu_types == ANY_TYPE:
        return
    accepted = dict(job.gpu_types)
    for name in trials.world.nodes.types:
        if name in accepted:
            continue
        changed = replace(job, gpu_types=(*job.gpu_types, (name, 1.0)))
        found = trials.suggestion(Remedy.ANOTHER_TYPE, (("gpu_type", name),), [_changed(trials, changed)])
        if found is not None:
            yield found


def without_wishes(trials: Trials) -> Iterator[Suggestion]:
    """Without wishes for where its GPUs are."""
    job = trials.job
    ways: list[tuple[Remedy, Job]] = []
    if job.topology != ANYWHERE:
        ways.append((Remedy.WITHOUT_TOPOLOGY, replace(job, topology=ANYWHERE)))
    needed = tuple(label for label in job.node_labels if label == OFFERS_SHARES)
    if job.node_labels != needed or job.node_terms:
        ways.append((Remedy.WITHOUT_NODE_WISHES, replace(job, node_labels=needed, node_terms=())))
    for remedy, changed in ways:
        found = trials.suggestion(remedy, (), [_changed(trials, changed)])
        if found is not None:
            yield found


def _changed(trials: Trials, job: Job) -> JobChanged:
    return JobChanged(trials.now_s, job, cause="suggestion")
