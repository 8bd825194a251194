"""Another request for a job that is there already: size, priority, queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.api.asked import JobPatch
from batuta.api.problems import bad_input
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job
from batuta.spec.problem import InputError, Problem
from batuta.spec.task_job import LONGEST_CURVE, PRIOR_EXPONENT


def resized(job: Job, patch: JobPatch, legal_nodes: Sequence[int] | None) -> Job:
    """The job with what the patch says. `legal_nodes` are the only sizes that its task can have."""
    changed = replace(
        job,
        priority=job.priority if patch.priority is None else patch.priority,
        queue=patch.queue or job.queue,
    )
    if patch.nodes is None and patch.min_nodes is None and patch.max_nodes is None:
        return changed
    low, size, high = _range(job, patch, legal_nodes)
    each = job.gpus_per_replica
    legal = None if legal_nodes is None else tuple(n * each for n in legal_nodes if low <= n <= high)
    changed = replace(
        changed,
        min=low * each,
        size=size * each,
        max=high * each,
        sizes=legal,
        curve=_extended(job.curve, min(high * each, LONGEST_CURVE)),
    )
    faults = changed.faults()
    if faults:
        raise InputError([Problem(fault) for fault in faults])
    return changed


def _extended(curve: SpeedCurve, largest: int) -> SpeedCurve:
    """The same as far as it is known, then the prior."""
    known = len(curve.speeds) - 1
    more = (curve.speeds[-1] * (n / known) ** PRIOR_EXPONENT for n in range(known + 1, largest + 1))
    return replace(curve, speeds=(*curve.speeds, *more))


def _range(job: Job, patch: JobPatch, legal: Sequence[int] | None) -> tuple[int, int, int]:
    """Nodes at least, asked for, at most."""
    each = job.gpus_per_replica
    if patch.nodes is not None and patch.min_nodes is None and patch.max_nodes is None:
        low = size = high = patch.nodes
    else:
        low, high = patch.min_nodes or job.min // each, patch.max_nodes or job.max // each
        size = patch.nodes or min(max(job.size // each, low), high)
        if patch.nodes is None and legal is not None and size not in legal:
            size = max((n for n in legal if low <= n <= size), default=low)
    if not low <= size <= high:
        raise bad_input(f"nodes must be within min_nodes..max_nodes, found {size} outside {low}..{high}")
    for nodes in sorted({low, size, high}):
        if legal is not None and nodes not in legal:
            raise bad_input(
                f"{nodes} nodes is no size of this task", f"one of {', '.join(map(str, legal[:32]))}"
            )
    return low, size, high
