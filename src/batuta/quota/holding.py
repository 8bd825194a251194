"""Whose quota the jobs that have GPUs use."""

from __future__ import annotations

import numpy as np

from batuta.core.job import JobId
from batuta.core.quota import Flavors
from batuta.core.world import World
from batuta.quota.asks import Asks
from batuta.quota.tree import Tree


def flavors_held(world: World) -> dict[JobId, Flavors]:
    """By job that has GPUs: the flavors that it was given, or those of its nodes if it came before quota."""
    quota, jobs = world.effective_quota, world.jobs
    if not quota:
        return {}
    found, rows = dict(world.flavors), np.flatnonzero(jobs.held).tolist()
    if len(rows) <= len(found):
        return found
    asks = Asks(world, Tree(quota))
    for row in rows:
        job = jobs.jobs[row]
        if job.id not in found:
            way = quota.way(job.namespace, job.queue)
            if way is not None and way.cluster_queue in quota.queue_of:
                found[job.id] = asks.found(row, way.cluster_queue)
    return found
