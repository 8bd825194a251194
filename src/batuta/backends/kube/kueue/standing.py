"""How a job stands with quota, in the words of a Workload's status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batuta.backends.kube.kueue.admission import ADMITTED, EVICTED, REQUEUED, RESERVED
from batuta.backends.kube.kueue.condition import Said, find, is_true
from batuta.backends.kube.kueue.workload import MAIN
from batuta.core.job import Job, JobState
from batuta.core.plan import Decision
from batuta.core.world import World
from batuta.quota.demand import demand
from batuta.quota.kueue_names import Reserved, quota_reserved
from batuta.spec.quantity import show_milli

WITHOUT_QUOTA = "WithoutQuota"
"""Why a job has no quota though it runs, or is about to: nobody has set up a queue for it."""
_RUNS = (JobState.RUNNING, JobState.RESIZING)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the World says of a living job."""

    job: Job
    state: JobState
    gpus: int
    reserved: Reserved
    cluster_queue: str = ""
    flavors: tuple[tuple[str, str], ...] = ()

    @property
    def has_quota(self) -> bool:
        return bool(self.gpus and self.cluster_queue)

    def admission(self, pod_sets: tuple[str, ...]) -> dict[str, Any] | None:
        """What it has of which flavor; None while it has nothing, or no queue gives it anything."""
        if not self.has_quota:
            return None
        job = self.job
        main = {
            "name": MAIN,
            "count": self.gpus // job.gpus_per_replica,
            "flavors": dict(self.flavors),
            "resourceUsage": {resource: amount(job, resource, self.gpus) for resource, _ in self.flavors},
        }
        others = [{"name": name, "count": 1} for name in pod_sets if name != MAIN]
        return {"clusterQueue": self.cluster_queue, "podSetAssignments": [main, *others]}

    def statements(self, before: Mapping[str, Any]) -> Iterator[Said]:
        """Its conditions. `before` is the status that the Workload has."""
        has, said = self.has_quota, self.reserved
        if has:
            message = f"Quota reserved in ClusterQueue {self.cluster_queue}"
            yield Said(RESERVED, True, said.reason, message)
            yield Said(ADMITTED, True, "Admitted", message)
        else:
            # Never true without an admission beside it: that a Kueue could not bear.
            yield Said(RESERVED, False, WITHOUT_QUOTA if said.status else said.reason, said.message)
            yield Said(ADMITTED, False, "NoReservation", "The workload has no reservation")
        yield Said("PodsReady", self.state in _RUNS, "Started" if self.state in _RUNS else "WaitForStart")
        if self.state is JobState.PREEMPTED:
            yield Said(EVICTED, True, "Preempted", said.message)
            yield Said(REQUEUED, True, "Preempted", said.message)
        elif has and is_true(before, EVICTED):
            was = find(before, EVICTED).get("message") or ""
            yield Said(EVICTED, False, "QuotaReserved", f"Previously: {was}")


def standing_of(world: World, row: int, decision: Decision | None) -> Standing:
    """Of one row of the job table."""
    job = world.jobs.jobs[row]
    gpus = int(world.jobs.i("gpus")[row])
    way = world.quota.way(job.namespace, job.queue)
    return Standing(
        job,
        world.state_of(row),
        gpus,
        quota_reserved(gpus > 0, decision),
        "" if way is None else way.cluster_queue,
        world.flavors.get(job.id, ()),
    )


def amount(job: Job, resource: str, gpus: int) -> str:
    """What a job uses of a resource, as a quantity."""
    return show_milli(demand(job, resource, gpus), is_bytes=resource == "memory")
