"""What all jobs of one machine share: GPU occupancy, ports, timing, and the callbacks to the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from batuta.backends.local.addresses import PortReservations
from batuta.backends.local.files import DirectoryPool
from batuta.backends.local.processes import RunningReplica
from batuta.backends.local.replica_plan import Machine
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.event import Event
from batuta.core.job import JobId
from batuta.engine.jobs.backoff import Backoff
from batuta.engine.stragglers.rank_watch import HeldUp, RankRules
from batuta.spec.task import Task


@dataclass(frozen=True, slots=True)
class Timing:
    """How often to look, and how long to wait."""

    poll_s: float = 0.25  # between looks at the progress files of jobs that run
    poll_asked_s: float = 0.05  # the same while a checkpoint is waited for
    retry_s: float = 0.5  # until a job that could not be looked at is looked at again
    look_s: float = 5.0  # between looks at all replicas, should news of one have been lost
    cancel_grace_s: float = 10.0  # a job that is cancelled gets its own grace, but not more than this
    unseen_grace_s: float = 10.0
    """So does one that is asked for a checkpoint and was never seen to save: likely it has no handler."""
    restartable_grace_s: float = 0.5
    """The same for one of which its task says that a restart loses nothing: others do not wait for it."""
    peer_grace_s: float = 5.0  # so do the replicas that are left when one has failed
    release_s: float = 5.0  # a job that changes its workers by itself has left a GPU so long after it was told to
    overdue_s: float = 20.0  # how long after its time a runner may take before it is killed itself
    back_off_s: float = 1.0
    """Before the first restart after an end that was not planned; doubled with each that follows."""
    longest_back_off_s: float = 300.0

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.back_off_s, self.longest_back_off_s)

    def unseen_grace(self, task: Task) -> float:
        """Return how long a job has for the checkpoint that it is asked for, if it was never seen to save."""
        if task.elastic.is_restartable(task.run):
            return self.restartable_grace_s
        return self.unseen_grace_s if task.elastic.keeps_size_until_saved(task.run) else math.inf


class GpuOccupancy:
    """Which runs are on which GPUs: physically, so until the last process of a run is gone."""

    def __init__(self) -> None:
        self._on: dict[tuple[NodeName, int], set[JobId]] = {}
        self._of: dict[JobId, Placement] = {}

    def take(self, job: JobId, placement: Placement) -> None:
        """From now on a job is on these GPUs and no others."""
        self.release(job)
        self._of[job] = placement
        for gpu in gpus_of(placement):
            self._on.setdefault(gpu, set()).add(job)

    def release(self, job: JobId) -> None:
        for gpu in gpus_of(self._of.pop(job, Placement(()))):
            self._on[gpu].discard(job)

    def on(self, placement: Placement) -> set[JobId]:
        """Jobs that have processes on any of these GPUs."""
        return {job for gpu in gpus_of(placement) for job in self._on.get(gpu, ())}


def gpus_of(placement: Placement) -> set[tuple[NodeName, int]]:
    return {(span.node, gpu) for span in placement.spans for gpu in span.gpus}


@dataclass(slots=True)
class JobContext:
    """Handed to each job; all in the engine's thread."""

    machine: Machine
    ports: PortReservations
    timing: Timing
    occupancy: GpuOccupancy
    emit: Callable[[Event], None]
    watch: Callable[[RunningReplica, JobId, int], None]  # has news of a replica brought to its job: by job and rank
    later: Callable[[Callable[[], None]], None]  # does something once all that was said so far is durable
    on_result: Callable[[JobId, str], None] | None = None
    directory_pool: DirectoryPool | None = None
    excuse: Callable[[JobId, Sequence[Span], float], str] = lambda job, workers, since_s: ""
    """Why a job that has failed is not to blame, or shall have another try; empty: it has failed. It gets to know
    where the job's ranks ran, and since when."""
    held_up: Callable[[HeldUp], None] = lambda found: None
    """Is told of jobs that some of their ranks hold up, or that hang."""
    ranks: RankRules = field(default_factory=RankRules)
