"""Quota scenarios from a seed: trees of cohorts, jobs that come and go, and what `admit` says to each."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.job import DesiredState
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Preemption,
    Preference,
    Quota,
    Reclaim,
    ResourceGroup,
    Search,
    StopPolicy,
    Strategy,
    Within,
)
from tests.support.quota_stories import Cluster

PATIENCE_S = 30.0
STEPS = 6
GPU, CPU = "nvidia.com/gpu", "cpu"


def answers(admitted: Admitted) -> dict[str, Any]:
    """Everything that `admit` says, as JSON has it."""

    def listed(column: Any) -> Any:
        return None if column is None else np.asarray(column).tolist()

    return {
        "cap": listed(admitted.cap),
        "refused": {
            str(row): [reason.name, [list(one) for one in evidence]]
            for row, (reason, evidence) in sorted((admitted.refused or {}).items())
        },
        "gpu_type": listed(admitted.gpu_type),
        "budgets": [
            [listed(one.rows), one.gpus, [[listed(each), most] for each, most in one.beside]]
            for one in admitted.budgets
        ],
        "flavors": [[row, [list(one) for one in own]] for row, own in admitted.flavors.items()],
        "preempted": {str(row): reason.name for row, reason in sorted(admitted.losers.items())},
        "contested": sorted(admitted.contested),
    }


def play(seed: int) -> list[dict[str, Any]]:
    """What `admit` says in each step of the scenario of a seed."""
    rng = random.Random(seed)
    cluster = Cluster(_quota(rng), (8, 4, 4), patience_s=PATIENCE_S)
    said = []
    for step in range(STEPS):
        for number in range(rng.randint(0, 6)):
            _submit(cluster, rng, f"j{step}.{number}")
        cluster.passes(rng.choice((1.0, 1.0, PATIENCE_S)))
        rows = range(cluster.world.jobs.n)
        without = frozenset(row for row in rows if rng.random() < 0.1) if rng.random() < 0.3 else frozenset()
        said.append(answers(cluster.rules.admission.admit(cluster.world, cluster.now_s, without)))
        if rng.random() < 0.8:
            cluster.cycle(checked=False)
        _happen(cluster, rng)
    return said


def _submit(cluster: Cluster, rng: random.Random, name: str) -> None:
    queue = rng.choice([one.name for one in cluster.world.quota.cluster_queues])
    low = rng.randint(1, 4)
    cluster.submit(
        name,
        queue,
        low,
        min=low,
        max=low * rng.choice((1, 2, 4)),
        priority=rng.choice((0, 0, 1, 2)),
        work_s=rng.choice((5.0, 50.0, 500.0)),
        cpus_milli_per_gpu=rng.choice((0, 0, 1000)),
    )


def _happen(cluster: Cluster, rng: random.Random) -> None:
    """Something small, as between two cycles."""
    names = cluster.world.jobs.ids
    match rng.choice(["nothing", "lose", "return", "quota", *["end", "end", "end", "park", "run"] * bool(names)]):
        case "lose":
            cluster.loses("n0")
        case "return":
            cluster.happens(ev.NodeReturned(cluster.now_s, "n0"))
        case "quota":
            cluster.quota_is(_changed(cluster.world.quota, rng))
        case "end":
            cluster.ends(rng.choice(names))
        case "park":
            cluster.happens(ev.JobWished(cluster.now_s, rng.choice(names), DesiredState.PARK))
        case "run":
            cluster.happens(ev.JobWished(cluster.now_s, rng.choice(names), DesiredState.RUN))


def _quota(rng: random.Random) -> Quota:
    """Half of them flat cohorts of queues with GPUs of one flavor, half of them anything."""
    simple = rng.random() < 0.5
    flavors = ("x",) if simple else ("x", "y")[: rng.randint(1, 2)]
    resources = (GPU,) if simple or rng.random() < 0.6 else (GPU, CPU)
    cohorts: list[Cohort] = []
    if not simple:
        for number in range(rng.randint(0, 3)):
            parent = rng.choice(("", "named", *(one.name for one in cohorts)))
            groups = _groups(rng, bool(parent), flavors, resources) if rng.random() < 0.5 else ()
            cohorts.append(Cohort(f"c{number}", parent, groups, rng.choice((1.0, 2.0, 0.5, 0.0))))
    anywhere = ("named", "named", "") if simple else ("", "named", *(one.name for one in cohorts))
    queues = []
    for name in "abcd"[: rng.randint(1, 4)]:
        cohort = rng.choice(anywhere)
        groups = (
            (ResourceGroup((GPU,), (FlavorQuota("x", (_limits(rng, bool(cohort), lends=False),)),)),)
            if simple
            else _groups(rng, bool(cohort), flavors, resources)
        )
        queues.append(
            ClusterQueue(
                name,
                cohort,
                groups,
                rng.choice([Strategy.BEST_EFFORT_FIFO] * 3 + [Strategy.STRICT_FIFO]),
                _preemption(rng, simple),
                Fungibility(rng.choice(list(Search)), rng.choice(list(Search)), rng.choice(list(Preference))),
                weight=rng.choice((1.0, 2.0, 0.5, 0.0)),
            )
        )
    return Quota(
        tuple(Flavor(name) for name in flavors),
        tuple(cohorts),
        tuple(queues),
        tuple(LocalQueue(queue.name, queue.name) for queue in queues),
        fair_sharing=not simple and rng.random() < 0.4,
    )


def _preemption(rng: random.Random, simple: bool) -> Preemption:
    within, reclaim = rng.choice(list(Within)), rng.choice(list(Reclaim))
    if simple or reclaim is Reclaim.NEVER or rng.random() < 0.5:
        return Preemption(within, reclaim)
    return Preemption(within, reclaim, True, rng.choice((None, 0)))


def _groups(
    rng: random.Random, in_cohort: bool, flavors: tuple[str, ...], resources: tuple[str, ...]
) -> tuple[ResourceGroup, ...]:
    order = list(flavors)
    rng.shuffle(order)
    own = (FlavorQuota(name, tuple(_limits(rng, in_cohort) for _ in resources)) for name in order)
    return (ResourceGroup(resources, tuple(own)),)


def _limits(rng: random.Random, in_cohort: bool, lends: bool = True) -> Limits:
    nominal = rng.randint(0, 6)
    borrowing = rng.choice((None, None, 0, 1, 3)) if in_cohort else None
    lending = rng.choice((None, None, 0, 1, 3)) if in_cohort and lends else None
    return Limits(
        nominal * MILLI,
        None if borrowing is None else borrowing * MILLI,
        None if lending is None else min(lending, nominal) * MILLI,
    )


def _changed(quota: Quota, rng: random.Random) -> Quota:
    """One queue gets other quota, is held, drained or released."""
    queue = rng.choice(quota.cluster_queues)
    others = tuple(one for one in quota.cluster_queues if one is not queue)
    flavors = tuple(one.flavor for one in queue.groups[0].flavors)
    again = replace(
        queue,
        stop=rng.choice((StopPolicy.NONE, StopPolicy.NONE, *StopPolicy)),
        groups=_groups(rng, False, flavors, queue.groups[0].resources),
    )
    return replace(quota, cluster_queues=(*others, again))
