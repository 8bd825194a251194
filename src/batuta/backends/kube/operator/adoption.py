"""A run that an operator before this one had begun: how much of it can go on, from its pods alone."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.backends.kube.jobtypes.job_type import Change, JobType, Run
from batuta.backends.kube.operator.crew import Crew, place_of, seated
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Placement, Span


@dataclass(frozen=True, slots=True)
class Adopted:
    """A run that goes on, and where its members are or shall be."""

    run: Run
    places: tuple[Span, ...]
    stood: tuple[Span, ...]
    """The places that were taken; not all when the binding was under way."""


def go_on(uj: UnifiedJob, kind: JobType, crew: Crew, planned: Placement | None) -> Adopted | None:
    """What was planned, when the pods are on the way to it; else the part that runs; else None."""
    start = crew.last_start()
    members = crew.members(kind, start)
    if not members:
        return None
    known = uj.status.run
    if known is None or known.start != start:
        # It was killed before it wrote down what it had begun.
        first, ceiling = len(members), uj.spec.replica_spec.largest
    else:
        first, ceiling = known.first_replicas, known.max_replicas
    begun = Run(first, start, first, ceiling)
    stood = seated(members)
    workers = () if planned is None else planned.workers(uj.spec.replica_spec.gpus_per_replica)
    on_its_way = all(
        index < len(workers) and place_of(pod) in (None, workers[index]) for index, pod in members.items()
    )
    if on_its_way and _can_be(uj, kind, begun, len(workers)):
        run = Run(len(workers), start, first, ceiling)
        return Adopted(run, workers, stood if _can_be(uj, kind, begun, len(stood)) else ())
    size = max((n for n in range(1, len(stood) + 1) if _is_legal(uj, n)), default=0)
    if size == 0 or not _can_be(uj, kind, begun, size):
        return None
    return Adopted(Run(size, start, first, ceiling), stood[:size], stood[:size])


def _can_be(uj: UnifiedJob, kind: JobType, begun: Run, size: int) -> bool:
    """Whether a run that was started with some size can have this one now."""
    if size == begun.target:
        return True
    return size > 0 < begun.target and kind.change(uj, begun, size) is Change.IN_PLACE


def _is_legal(uj: UnifiedJob, size: int) -> bool:
    replicas = uj.spec.replica_spec
    return size in replicas.sizes if replicas.sizes else replicas.min_replicas <= size <= replicas.largest
