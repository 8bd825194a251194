"""Applying and removing: what is named changes, all else stays, and the whole has to go together."""

import pytest

from batuta.core.quota import ClusterQueue, Cohort, Flavor, LocalQueue, Quota, StopPolicy
from batuta.spec.kueue.change import dangling_references, merge, remove
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.kueue.objects import ObjectKey
from batuta.spec.problem import InputError
from tests.support.quotas import gpus, quota_of

HEAD = "apiVersion: kueue.x-k8s.io/v1beta2\n"


def cohort(name: str, parent: str) -> str:
    return f"{HEAD}kind: Cohort\nmetadata: {{name: {name}}}\nspec: {{parentName: {parent}}}\n"


def test_an_object_replaces_the_one_of_its_name_in_its_place_and_others_stay():
    quota = Quota(cluster_queues=(ClusterQueue("a"), ClusterQueue("b")), flavors=(Flavor("x"),))
    text = f"{HEAD}kind: ClusterQueue\nmetadata: {{name: a}}\nspec: {{stopPolicy: Hold}}"
    merged = merge(quota, read_quota_texts([("q", text)]))
    assert merged.cluster_queues == (
        ClusterQueue("a", namespaces=None, stop=StopPolicy.HOLD),
        ClusterQueue("b"),
    )
    assert merged.flavors == quota.flavors


def test_applying_twice_is_applying_once():
    change = read_quota_texts([("q", "queues: [{name: a, quota: {H100: 8}, cohort: c}]")])
    once = merge(Quota(), change)
    assert merge(once, change) == once


def test_fair_sharing_stays_until_a_configuration_says_otherwise():
    fair = Quota(fair_sharing=True)
    assert merge(fair, read_quota_texts([("q", "queues: [{name: a}]")])).fair_sharing
    off = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    assert not merge(fair, read_quota_texts([("q", off)])).fair_sharing


def test_a_queue_that_was_leaving_stays_when_it_is_applied_again():
    leaving = Quota(cluster_queues=(ClusterQueue("a"), ClusterQueue("b")), leaving=("a", "b"))
    merged = merge(leaving, read_quota_texts([("q", "queues: [{name: a}]")]))
    assert merged.leaving == ("b",)


def test_cohorts_in_a_circle_are_refused_where_the_circle_is_closed():
    with pytest.raises(InputError) as caught:
        merge(
            Quota(cohorts=(Cohort("a", "b"), Cohort("b", "c"))),
            read_quota_texts([("q.yaml", cohort("c", "a"))]),
        )
    (problem,) = caught.value.problems
    assert str(problem) == "q.yaml:1:1: cohorts go round in a circle: a → b → c → a (take one parent out)"


def test_a_cohort_that_is_its_own_parent_and_another_circle_are_two_problems():
    text = "---\n".join((cohort("a", "a"), cohort("b", "c"), cohort("c", "b"), cohort("d", "c")))
    with pytest.raises(InputError) as caught:
        merge(Quota(), read_quota_texts([("q.yaml", text)]))
    assert [problem.message for problem in caught.value.problems] == [
        "cohorts go round in a circle: a → a",
        "cohorts go round in a circle: b → c → b",
    ]


def test_names_that_lead_nowhere_are_allowed_and_told():
    quota = Quota(
        cluster_queues=(ClusterQueue("a", groups=gpus(4, flavor="gone")),),
        cohorts=(Cohort("c", groups=gpus(4, flavor="gone")),),
        local_queues=(LocalQueue("q", "nobody", "team"), LocalQueue("a", "a")),
    )
    assert dangling_references(quota) == (
        "ClusterQueue a names flavor gone, which is not there: its jobs wait",
        "Cohort c names flavor gone, which is not there: no queue can use that quota",
        "LocalQueue team/q leads to ClusterQueue nobody, which is not there: its jobs wait",
    )


def test_removing_takes_out_just_that():
    quota = quota_of(ClusterQueue("a", groups=gpus(4)), ClusterQueue("b", groups=gpus(4)))
    left = remove(quota, [ObjectKey("ClusterQueue", "a"), ObjectKey("LocalQueue", "a")])
    assert [queue.name for queue in left.cluster_queues] == ["b"]
    assert [queue.name for queue in left.local_queues] == ["b"]
    assert left.flavors == quota.flavors


def test_a_flavor_goes_only_together_with_all_that_name_it():
    quota = quota_of(ClusterQueue("a", groups=gpus(4, flavor="x")))
    with pytest.raises(InputError, match="ResourceFlavor x is used by ClusterQueue a"):
        remove(quota, [ObjectKey("ResourceFlavor", "x")])
    assert not remove(quota, [ObjectKey("ResourceFlavor", "x"), ObjectKey("ClusterQueue", "a")]).flavors


def test_what_is_not_there_cannot_be_removed():
    quota = quota_of(ClusterQueue("team-a"))
    with pytest.raises(InputError) as caught:
        remove(
            quota,
            [
                ObjectKey("ClusterQueue", "team-b"),
                ObjectKey("Quue", "x"),
                ObjectKey("LocalQueue", "team-a", "other"),
            ],
        )
    assert [str(problem) for problem in caught.value.problems] == [
        "there is no ClusterQueue team-b (did you mean team-a?)",
        "there is no LocalQueue other/team-a (did you mean team-a?)",
        "unknown kind Quue (known: ResourceFlavor, ClusterQueue, LocalQueue, Cohort, WorkloadPriorityClass)",
    ]
