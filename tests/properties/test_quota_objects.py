"""Quota written as Kueue's objects and read again is the same quota, as plain values and as YAML."""

from dataclasses import replace

import yaml
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.quota import (
    ClusterQueue,
    Cohort,
    Expression,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Preemption,
    Preference,
    PriorityClass,
    Quota,
    Reclaim,
    ResourceGroup,
    Search,
    Selector,
    StopPolicy,
    Strategy,
    Taint,
    Toleration,
    Within,
)
from batuta.spec.kueue.change import merge, remove
from batuta.spec.kueue.export import quota_objects
from batuta.spec.kueue.files import read_quota_objects, read_quota_texts
from batuta.spec.kueue.objects import ObjectKey

NAMES = ("a", "b", "team-a", "x.y", "0", "true", "null", "1e3", "no")
"""Some of them YAML would take for something else than a text."""
RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods", "hugepages-2Mi")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

names = st.sampled_from(NAMES)
amounts = st.integers(0, 2**60) | st.integers(0, 64).map(lambda gib: gib * 2**30 * 1000)
labels = st.dictionaries(names, st.sampled_from(("", "x", "8", "yes")), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
weights = st.floats(0, 1e6).filter(lambda weight: weight == 0 or weight > 1e-8)
priorities = st.integers(-(2**31), 2**31 - 1)


@st.composite
def groups(draw: st.DrawFn, parent: str, *, is_cohort: bool) -> tuple[ResourceGroup, ...]:
    resources, flavors = draw(st.permutations(RESOURCES)), draw(st.permutations(NAMES))
    found = []
    for k in range(draw(st.integers(0, 2))):
        covered = tuple(resources[2 * k : 2 * k + draw(st.integers(1, 2))])
        quotas = [
            FlavorQuota(name, tuple(draw(limits(parent, is_cohort=is_cohort)) for _ in covered))
            for name in flavors[3 * k : 3 * k + draw(st.integers(1, 3))]
        ]
        found.append(ResourceGroup(covered, tuple(quotas)))
    return tuple(found)


@st.composite
def limits(draw: st.DrawFn, parent: str, *, is_cohort: bool) -> Limits:
    nominal = draw(amounts)
    if not parent:
        return Limits(nominal)
    lending = amounts if is_cohort else st.integers(0, nominal)
    return Limits(nominal, draw(st.none() | amounts), draw(st.none() | lending))


@st.composite
def cluster_queues(draw: st.DrawFn, name: str) -> ClusterQueue:
    cohort = draw(st.just("") | names)
    reclaim = draw(st.sampled_from(Reclaim))
    fungibility = Fungibility(draw(st.sampled_from(Search)), draw(st.sampled_from(Search)))
    if fungibility.when_can_borrow is fungibility.when_can_preempt is Search.TRY_NEXT_FLAVOR:
        fungibility = replace(fungibility, preference=draw(st.sampled_from(Preference)))
    return ClusterQueue(
        name,
        cohort,
        draw(groups(cohort, is_cohort=False)),
        draw(st.sampled_from(Strategy)),
        Preemption(
            draw(st.sampled_from(Within)),
            reclaim,
            reclaim is not Reclaim.NEVER and draw(st.booleans()),
            draw(st.none() | priorities),
        ),
        fungibility,
        draw(st.none() | selectors),
        draw(weights),
        draw(st.sampled_from(StopPolicy)),
    )


terms = st.builds(
    Expression,
    names,
    st.sampled_from(("In", "NotIn")),
    st.lists(st.sampled_from(("", "x", "7")), min_size=1, max_size=2).map(tuple),
) | st.builds(Expression, names, st.sampled_from(("Exists", "DoesNotExist")), st.just(()))
selectors = st.builds(Selector, labels, st.lists(terms, max_size=2).map(tuple))
tolerations = st.builds(
    Toleration, names, st.just("Equal"), st.sampled_from(("", "x")), st.sampled_from(("", *EFFECTS))
) | st.builds(Toleration, names | st.just(""), st.just("Exists"), st.just(""), st.sampled_from(("", *EFFECTS)))
taints = st.lists(
    st.builds(Taint, names, st.sampled_from(("", "true")), st.sampled_from(EFFECTS)),
    max_size=3,
    unique_by=lambda taint: (taint.key, taint.effect),
)


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    def some() -> list[str]:
        return draw(st.lists(names, max_size=4, unique=True))

    cohorts = some()
    # A parent comes later in the list, so that nobody is above itself.
    parents = [draw(st.sampled_from(("", *cohorts[k + 1 :]))) for k in range(len(cohorts))]
    return Quota(
        tuple(
            Flavor(name, draw(labels), tuple(draw(taints)), tuple(draw(st.lists(tolerations, max_size=2))))
            for name in some()
        ),
        tuple(
            Cohort(name, parent, draw(groups(parent, is_cohort=True)), draw(weights))
            for name, parent in zip(cohorts, parents, strict=True)
        ),
        tuple(draw(cluster_queues(name)) for name in some()),
        tuple(
            LocalQueue(name, draw(names), draw(st.just("") | names), draw(st.sampled_from(StopPolicy)))
            for name in some()
        ),
        tuple(PriorityClass(name, draw(priorities), draw(st.sampled_from(("", "for: «all»", "#")))) for name in some()),
        draw(st.booleans()),
    )


@given(quotas())
def test_what_is_written_is_read_as_the_same(quota):
    objects = quota_objects(quota)
    change = read_quota_objects(objects)
    assert not change.notes
    assert merge(Quota(), change) == quota
    text = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True)
    if objects:
        assert merge(Quota(), read_quota_texts([("q.yaml", text)])) == quota


@given(quotas())
def test_applying_again_changes_nothing_and_removing_all_leaves_nothing(quota):
    again = merge(quota, read_quota_objects(quota_objects(quota)))
    assert again == quota
    keys = [
        ObjectKey(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", ""))
        for one in quota_objects(quota)
        if one["kind"] != "Configuration"
    ]
    assert remove(quota, keys) == Quota(fair_sharing=quota.fair_sharing)
