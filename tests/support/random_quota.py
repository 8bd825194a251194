"""Quota of any shape: trees of cohorts with and without limits, some of them there by name alone."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

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
from batuta.quota.tree import Node, QuotaTree
from batuta.quota.workload import PodSet

GPU, CPU = "nvidia.com/gpu", "cpu"
FLAVORS = ("x", "y")
QUEUES = ("a", "b", "c", "d")
WEIGHTS = (1.0, 1.0, 2.0, 0.5, 0.0)

_few = st.integers(0, 4)
_limit = st.one_of(st.none(), st.none(), st.integers(0, 3))


def _milli(amount: int | None) -> int | None:
    return None if amount is None else amount * MILLI


@st.composite
def limits(draw: Any, in_cohort: bool, most: int = 4) -> Limits:
    nominal = draw(st.integers(0, most))
    if not in_cohort:
        return Limits(nominal * MILLI)
    borrowing, lending = draw(_limit), draw(_limit)
    lending = None if lending is None else min(lending, nominal)
    return Limits(nominal * MILLI, _milli(borrowing), _milli(lending))


@st.composite
def groups(draw: Any, in_cohort: bool, flavors: tuple[str, ...], cpu: bool) -> tuple[ResourceGroup, ...]:
    resources = (GPU, CPU) if cpu else (GPU,)
    return (
        ResourceGroup(
            resources,
            tuple(
                FlavorQuota(name, tuple(draw(limits(in_cohort)) for _ in resources))
                for name in draw(st.permutations(flavors))
            ),
        ),
    )


preemptions = st.builds(
    Preemption,
    st.sampled_from(list(Within)),
    st.sampled_from(list(Reclaim)),
    st.booleans(),
    st.sampled_from((None, None, 0)),
).map(
    # Kueue refuses one without the other.
    lambda one: one if one.reclaim is not Reclaim.NEVER else Preemption(one.within, one.reclaim)
)
fungibilities = st.builds(
    Fungibility,
    st.sampled_from(list(Search)),
    st.sampled_from(list(Search)),
    st.sampled_from(list(Preference)),
)


@st.composite
def quotas(draw: Any, fair: bool | None = None, flavors: int | None = None, cpu: bool | None = None) -> Quota:
    """Up to four cohorts, nested as far as that goes, and up to four queues anywhere in them."""
    own = FLAVORS[: flavors or draw(st.integers(1, 2))]
    has_cpu = draw(st.booleans()) if cpu is None else cpu
    cohorts: list[Cohort] = []
    for k in range(draw(_few)):
        parent = draw(st.sampled_from(("", "named", *(cohort.name for cohort in cohorts))))
        has_quota = draw(st.booleans())
        own_groups = draw(groups(bool(parent), own, has_cpu)) if has_quota else ()
        cohorts.append(Cohort(f"c{k}", parent, own_groups, draw(st.sampled_from(WEIGHTS))))
    anywhere = ("", "named", *(cohort.name for cohort in cohorts))
    queues = []
    for name in QUEUES[: draw(st.integers(1, 4))]:
        cohort = draw(st.sampled_from(anywhere))
        queues.append(
            ClusterQueue(
                name,
                cohort,
                draw(groups(bool(cohort), own, has_cpu)),
                draw(st.sampled_from(list(Strategy))),
                draw(preemptions),
                draw(fungibilities),
                weight=draw(st.sampled_from(WEIGHTS)),
            )
        )
    return Quota(
        tuple(Flavor(name) for name in own),
        tuple(cohorts),
        tuple(queues),
        tuple(LocalQueue(queue.name, queue.name) for queue in queues),
        fair_sharing=draw(st.booleans()) if fair is None else fair,
    )


@st.composite
def pod_sets(draw: Any, quota: Quota, queue: str) -> tuple[PodSet, ...]:
    """A workload of one kind of replicas, with requests that its queue has quota for."""
    covered = quota.queue_of[queue].groups[0].resources
    requests = [(GPU, draw(st.integers(1, 3)) * MILLI)]
    if CPU in covered:
        requests.append((CPU, draw(st.integers(0, 3)) * MILLI))
    return (PodSet(tuple(requests), draw(st.integers(1, 2))),)


@st.composite
def changed(draw: Any, quota: Quota) -> Quota:
    """One queue gets other quota or another cohort, is held, drained or released, or goes away."""
    queue = draw(st.sampled_from(quota.cluster_queues))
    others = tuple(one for one in quota.cluster_queues if one is not queue)
    if others and draw(st.booleans()) and draw(st.booleans()):
        return replace(quota, cluster_queues=others)
    resources, flavors = queue.groups[0].resources, tuple(one.name for one in quota.flavors)
    again: ClusterQueue = replace(
        queue,
        cohort=draw(st.sampled_from((queue.cohort, queue.cohort, "", "named"))),
        stop=draw(st.sampled_from((StopPolicy.NONE, StopPolicy.NONE, *StopPolicy))),
        groups=draw(groups(False, flavors, len(resources) > 1)),
    )
    return replace(quota, cluster_queues=(*others, again))


# ------------------------------------------------------------------------------- quota counted a second way


def used(tree: QuotaTree, by_queue: dict[str, dict[int, int]]) -> dict[Node, dict[int, int]]:
    """What every node has to answer for, from the bottom up, without looking at the tree's own books."""
    found: dict[Node, dict[int, int]] = {}

    def count(node: Node) -> dict[int, int]:
        if node.is_queue:
            own = dict(by_queue.get(node.name, {}))
        else:
            own = {}
            for child in node.children:
                for cell, amount in count(child).items():
                    above = max(0, amount - _kept(child, cell))
                    own[cell] = own.get(cell, 0) + above
        found[node] = own
        return own

    for node in (*tree.cohorts.values(), *tree.queues.values()):
        if node.parent is None:
            count(node)
    return found


def _owned(node: Node, cell: int) -> int:
    own = node.limits[cell].nominal if cell in node.limits else 0
    return own + sum(_owned(child, cell) - _kept(child, cell) for child in node.children)


def _kept(node: Node, cell: int) -> int:
    """What a node lends to nobody."""
    limit = node.limits[cell].lending if cell in node.limits else None
    return 0 if limit is None or node.parent is None else max(0, _owned(node, cell) - limit)


def above_limits(tree: QuotaTree, by_queue: dict[str, dict[int, int]]) -> set[tuple[str, int]]:
    """Where more is used than may be: more than a root owns, or more than others may borrow."""
    found = set()
    for node, own in used(tree, by_queue).items():
        for cell, amount in own.items():
            most: int | None = _owned(node, cell)
            if node.parent is not None:
                limit = node.limits[cell].borrowing if cell in node.limits else None
                most = None if limit is None else (most or 0) + limit
            if most is not None and amount > most:
                found.add((node.name, cell))
    return found
