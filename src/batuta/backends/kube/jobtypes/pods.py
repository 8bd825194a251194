"""Pods: any pod template, as many times as the target says. A resize starts all of them again."""

from __future__ import annotations

from typing import Final

from batuta.backends.kube.jobtypes.child import Child, ChildKind
from batuta.backends.kube.jobtypes.job_type import Change, FollowUp, JobStatus, Observed, Run
from batuta.backends.kube.jobtypes.pod_parts import member_pods, members_service
from batuta.backends.kube.jobtypes.pod_status import members, replica_by_label, status_of_members
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.unified_job.model import UnifiedJob


class Pods:
    """Equal pods that find each other by name."""

    name: str = "Pods"
    watches: tuple[ChildKind, ...] = ()

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        return Change.BY_RESTART

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [members_service(job, {}), *member_pods(job, run)]

    def follow(self, job: UnifiedJob, run: Run, observed: Observed) -> FollowUp:
        return FollowUp()

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        return status_of_members(members(observed.pods, run), run)

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod)


PODS: Final = Pods()
