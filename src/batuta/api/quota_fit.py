"""Whether a job could ever have quota, if nobody else used any; if not, why not."""

from __future__ import annotations

from batuta.core.job import Job
from batuta.core.quota import MILLI, Cell, ClusterQueue, Quota
from batuta.quota.demand import counts_gpus, demand
from batuta.quota.tree import Tree
from batuta.spec.problem import Problem, did_you_mean
from batuta.spec.task_job import DEFAULT_QUEUE


def check_quota(job: Job, quota: Quota) -> list[Problem]:
    """Why the job can never have quota for its smallest size; empty when it can, or needs none."""
    if not quota:
        return []
    way = quota.way(job.namespace, job.queue)
    if way is None:
        if job.queue == DEFAULT_QUEUE:
            return []
        known = sorted({door.name for door in quota.local_queues} | set(quota.queue_of))
        return [Problem(f"there is no queue {job.queue}", fix=did_you_mean(job.queue, known))]
    queue = quota.queue_of.get(way.cluster_queue)
    # A queue that leads nowhere, or whose flavors are not there, may be mended while the job waits.
    if queue is None or any(
        one.flavor not in quota.flavor_of for group in queue.groups for one in group.flavors
    ):
        return []
    return _too_much(job, queue, Tree(quota))


def _too_much(job: Job, queue: ClusterQueue, tree: Tree) -> list[Problem]:
    covered = [resource for group in queue.groups for resource in group.resources]
    if not any(map(counts_gpus, covered)):
        return [Problem(f"queue {queue.name} has no quota for GPUs", fix="another queue")]
    node, found = tree.queues[queue.name], list[Problem]()
    for group in queue.groups:
        for resource in group.resources:
            needs = demand(job, resource, job.min)
            most = max(
                (node.most(tree.cell_of[Cell(one.flavor, resource)]) for one in group.flavors), default=0
            )
            if needs > most:
                what = "GPUs" if counts_gpus(resource) else resource
                message = (
                    f"needs at least {needs / MILLI:g} {what}; queue {queue.name} can have {most / MILLI:g}"
                )
                found.append(Problem(message, fix="fewer nodes, or another queue"))
    return found
