"""Queues in a few words become quota."""

import pytest

from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Flavor,
    FlavorQuota,
    Limits,
    LocalQueue,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    StopPolicy,
    Within,
)
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import queue_change, read_quota_texts
from batuta.spec.problem import InputError

RULES = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
TYPE = "batuta.dev/gpu-type"


def read(text: str) -> Quota:
    return merge(Quota(), read_quota_texts([("queues.yaml", text)]))


def test_a_limit_on_all_types_is_one_resource_in_one_flavor():
    quota = read('queues: [{name: a, quota: {"*": 16}}]')
    group = ResourceGroup(("batuta.dev/gpus",), (FlavorQuota("any", (Limits(16 * MILLI),)),))
    assert quota == Quota(
        flavors=(Flavor("any"),),
        cluster_queues=(ClusterQueue("a", groups=(group,), preemption=RULES),),
        local_queues=(LocalQueue("a", "a"),),
    )


def test_each_type_is_a_flavor_and_other_types_are_not_limited():
    quota = read('queues: [{name: a, quota: {H100: 8, Tesla T4: 2, "*": 9}, cohort: c, weight: 2, held: yes}]')
    assert quota.flavors == (
        Flavor("h100", ((TYPE, "H100"),)),
        Flavor("tesla-t4", ((TYPE, "Tesla T4"),)),
        Flavor("other-types", ((TYPE, "*"),)),
        Flavor("any"),
    )
    (queue,) = quota.cluster_queues
    by_type, together = queue.groups
    assert [(one.flavor, one.limits[0].nominal // MILLI) for one in by_type.flavors] == [
        ("h100", 8),
        ("tesla-t4", 2),
        ("other-types", 10_000_000),
    ]
    assert (by_type.resources, together.resources) == (("nvidia.com/gpu",), ("batuta.dev/gpus",))
    assert (queue.cohort, queue.weight, queue.stop) == ("c", 2.0, StopPolicy.HOLD)


def test_a_queue_without_quota_has_more_than_there_is_and_lends_none_of_it():
    alone, together = read("queues: [{name: night}, {name: day, cohort: c}]").cluster_queues
    assert alone.groups[0].flavors == (FlavorQuota("any", (Limits(10_000_000 * MILLI),)),)
    assert together.groups[0].flavors == (FlavorQuota("any", (Limits(10_000_000 * MILLI, lending=0),)),)


def test_queues_share_the_flavor_of_a_type():
    quota = read("queues: [{name: a, quota: {H100: 8}}, {name: b, quota: {H100: 4}}]")
    assert [flavor.name for flavor in quota.flavors] == ["h100", "other-types"]


def test_one_queue_as_a_change():
    quota = read("queues: [{name: a, quota: {H100: 8}}, {name: b}]")
    changed = merge(quota, queue_change("a", {"H100": 2}, held=True))
    assert changed.queue_of["a"].stop is StopPolicy.HOLD
    assert changed.queue_of["a"].groups[0].flavors[0].limits == (Limits(2 * MILLI),)
    assert changed.queue_of["b"] == quota.queue_of["b"]


def test_both_forms_may_stand_in_one_file():
    quota = read("queues: [{name: a}]\n---\n{apiVersion: kueue.x-k8s.io/v1beta2, kind: Cohort, metadata: {name: c}}")
    assert (len(quota.cluster_queues), len(quota.cohorts)) == (1, 1)


def test_everything_that_is_wrong_is_told_with_its_place():
    text = """
queues:
  - {name: a, quta: {H100: 8}}
  - {name: b, quota: {H100: many}}
  - {quota: {}}
  - {name: "b b", weight: 0, held: perhaps}
  - {name: a}
  - {name: a}
  - {name: c, quota: {h100: 1, H100: 2}}
"""
    with pytest.raises(InputError) as caught:
        read(text)
    told = [(problem.line, problem.message) for problem in caught.value.problems]
    assert [line for line, _ in told] == [3, 4, 5, 6, 6, 6, 8, 8, 9]
    assert told[0][1] == "unknown key quta in a queue"
    assert told[6][1] == "ClusterQueue a appears twice"
    assert told[8][1] == "quota: h100 and H100 are the same type"


@pytest.mark.parametrize("text", ["[]", "queue: []", "queues: 3", "queues:", "{queues: [], more: 1}"])
def test_what_is_no_file_of_queues(text):
    with pytest.raises(InputError):
        read(text)
