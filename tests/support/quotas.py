"""Quota for tests, in few words: GPUs of the flavor `gpu` unless another is named."""

from collections.abc import Iterable
from itertools import chain

from batuta.core.node_table import TYPE_LABEL
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    FlavorResource,
    Limits,
    LocalQueue,
    Quota,
    ResourceGroup,
    flavor_resources_of,
)
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import OTHER_TYPES, queue_change
from batuta.spec.problem import InputError
from batuta.spec.quota_case import QuotaCase
from batuta.spec.quota_case_reader import parse_valid_cases

GPU = "nvidia.com/gpu"
FLAVOR = "gpu"
CELL = FlavorResource(FLAVOR, GPU)


def gpus(
    nominal: int, borrowing: int | None = None, lending: int | None = None, flavor: str = FLAVOR
) -> tuple[ResourceGroup, ...]:
    """Quota in GPUs of one flavor."""
    limits = Limits(nominal * MILLI, _milli(borrowing), _milli(lending))
    return (ResourceGroup((GPU,), (FlavorQuota(flavor, (limits,)),)),)


def _milli(amount: int | None) -> int | None:
    return None if amount is None else amount * MILLI


def quota_of(*objects: ClusterQueue | Cohort | LocalQueue | Flavor, fair_sharing: bool = False) -> Quota:
    """These objects, every flavor that they name, and a local queue for each queue that has none."""
    queues = tuple(one for one in objects if isinstance(one, ClusterQueue))
    cohorts = tuple(one for one in objects if isinstance(one, Cohort))
    doors = [one for one in objects if isinstance(one, LocalQueue)]
    reached = {one.cluster_queue for one in doors}
    doors += [LocalQueue(queue.name, queue.name) for queue in queues if queue.name not in reached]
    flavors = {one.name: one for one in objects if isinstance(one, Flavor)}
    groups = [*chain.from_iterable(one.groups for one in queues)]
    groups += chain.from_iterable(one.groups for one in cohorts)
    for named in chain.from_iterable(group.flavors for group in groups):
        flavors.setdefault(named.flavor, Flavor(named.flavor))
    return Quota(
        flavors=tuple(flavors.values()),
        cohorts=cohorts,
        cluster_queues=queues,
        local_queues=tuple(doors),
        fair_sharing=fair_sharing,
    )


def short(
    *queues: tuple[str, dict[str, int]], cohort: str = "", held: Iterable[str] = (), weight: float = 1.0
) -> Quota:
    """Quota of queues that have limits by GPU type, `*` for all types together; none for no limit."""
    quota = Quota()
    for name, limits in queues:
        quota = merge(quota, queue_change(name, limits, cohort, weight, held=name in held))
    return quota


def gpus_by_type(quota: Quota, queue: ClusterQueue) -> dict[str, int]:
    """The limits of a queue in short form, as they were written."""
    types = {flavor.name: dict(flavor.node_labels).get(TYPE_LABEL, "*") for flavor in quota.flavors}
    found: dict[str, int] = {}
    for cell, limits in flavor_resources_of(queue.groups):
        if cell.flavor != OTHER_TYPES.name:
            found[types[cell.flavor]] = limits.nominal // MILLI
    return found


def parse_cases(text: str, file: str = "cases.yaml") -> tuple[QuotaCase, ...]:
    """The cases of a text. Raises InputError with every problem and its position."""
    cases, problems = parse_valid_cases(text, file)
    if problems:
        raise InputError(problems)
    return cases
