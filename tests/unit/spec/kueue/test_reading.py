"""Kueue's objects as quota: every field that Batuta heeds, in both versions of the API."""

import json
import re
import textwrap

import pytest

from batuta.core.quota import (
    MILLI,
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
from batuta.spec.kueue.change import QuotaChange, merge
from batuta.spec.kueue.files import read_quota_files, read_quota_objects, read_quota_texts

GPU = "nvidia.com/gpu"


def read(text: str) -> Quota:
    return merge(Quota(), change_of(text))


def change_of(text: str) -> QuotaChange:
    return read_quota_texts([("quota.yaml", textwrap.dedent(text))])


def test_a_small_setup_of_the_documented_shape():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: ResourceFlavor
        metadata:
          name: "plain"
        ---
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: ClusterQueue
        metadata:
          name: "all"
        spec:
          namespaceSelector: {} # everybody
          resourceGroups:
          - coveredResources: ["cpu", "memory", "nvidia.com/gpu"]
            flavors:
            - name: "plain"
              resources:
              - name: "cpu"
                nominalQuota: 9500m
              - name: "memory"
                nominalQuota: 10000Gi
              - name: "nvidia.com/gpu"
                nominalQuota: 8
        ---
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: LocalQueue
        metadata:
          namespace: "team"
          name: "ours"
        spec:
          clusterQueue: "all"
    """)
    amounts = (Limits(9500), Limits(10000 * 2**30 * MILLI), Limits(8 * MILLI))
    group = ResourceGroup(("cpu", "memory", GPU), (FlavorQuota("plain", amounts),))
    assert quota == Quota(
        flavors=(Flavor("plain"),),
        cluster_queues=(ClusterQueue("all", groups=(group,)),),
        local_queues=(LocalQueue("ours", "all", "team"),),
    )


def test_every_rule_of_a_queue():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: ClusterQueue
        metadata: {name: a, labels: {x: y}}
        spec:
          cohortName: research
          queueingStrategy: StrictFIFO
          namespaceSelector:
            matchLabels: {team: a}
            matchExpressions:
            - {key: stage, operator: NotIn, values: [test, ""]}
            - {key: gone, operator: DoesNotExist}
          flavorFungibility:
            whenCanBorrow: TryNextFlavor
            whenCanPreempt: TryNextFlavor
            preference: PreemptionOverBorrowing
          preemption:
            withinClusterQueue: LowerOrNewerEqualPriority
            reclaimWithinCohort: Any
            borrowWithinCohort: {policy: LowerPriority, maxPriorityThreshold: 100}
          fairSharing: {weight: "2.5"}
          stopPolicy: HoldAndDrain
          resourceGroups:
          - coveredResources: [nvidia.com/gpu]
            flavors:
            - name: x
              resources: [{name: nvidia.com/gpu, nominalQuota: 4, borrowingLimit: 2, lendingLimit: 0}]
    """)
    limits = Limits(4 * MILLI, 2 * MILLI, 0)
    assert quota.cluster_queues == (
        ClusterQueue(
            "a",
            "research",
            (ResourceGroup((GPU,), (FlavorQuota("x", (limits,)),)),),
            Strategy.STRICT_FIFO,
            Preemption(Within.LOWER_OR_NEWER_EQUAL_PRIORITY, Reclaim.ANY, True, 100),
            Fungibility(Search.TRY_NEXT_FLAVOR, Search.TRY_NEXT_FLAVOR, Preference.PREEMPTION_OVER_BORROWING),
            Selector(
                (("team", "a"),),
                (Expression("stage", "NotIn", ("test", "")), Expression("gone", "DoesNotExist")),
            ),
            2.5,
            StopPolicy.HOLD_AND_DRAIN,
        ),
    )


def test_groups_of_resources_each_have_flavors_of_their_own():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: ClusterQueue
        metadata: {name: "a"}
        spec:
          namespaceSelector: {}
          resourceGroups:
          # What there is of each kind …
          - coveredResources: ["cpu", "pods"]
            flavors:
            - name: "bought"
              resources:
              - name: "cpu"
                nominalQuota: 18
              - name: "pods"
                nominalQuota: 50
            - name: "rented"
              resources: [{name: cpu, nominalQuota: "9"}, {name: pods, nominalQuota: 1k}]
          # … and what may be used of both together.
          - coveredResources: ["cpu_credits"]
            flavors:
            - name: "credits"
              resources:
              - name: cpu_credits
                nominalQuota: 14
          concurrentAdmissionPolicy:
            migration: {mode: TryPreferredFlavors}
    """)
    (queue,) = quota.cluster_queues
    assert [(group.resources, [one.flavor for one in group.flavors]) for group in queue.groups] == [
        (("cpu", "pods"), ["bought", "rented"]),
        (("cpu_credits",), ["credits"]),
    ]
    assert queue.groups[0].flavors[1].limits == (Limits(9 * MILLI), Limits(1000 * MILLI))


def test_what_is_not_said_is_as_kueue_has_it():
    quota = read("{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, metadata: {name: a}}")
    (queue,) = quota.cluster_queues
    assert queue.namespaces is None, "without a selector it takes nobody's jobs"
    assert queue == ClusterQueue("a", namespaces=None)


@pytest.mark.parametrize(
    ("version", "cohort", "borrow", "preempt"),
    [
        ("v1beta1", "cohort", "Borrow", "Preempt"),
        ("v1beta1", "cohort", "MayStopSearch", "MayStopSearch"),
        ("v1beta2", "cohortName", "MayStopSearch", "MayStopSearch"),
    ],
)
def test_words_that_differ_between_versions_mean_the_same(version, cohort, borrow, preempt):
    quota = read(f"""
        apiVersion: kueue.x-k8s.io/{version}
        kind: ClusterQueue
        metadata: {{name: a}}
        spec:
          {cohort}: c
          flavorFungibility: {{whenCanBorrow: {borrow}, whenCanPreempt: {preempt}}}
    """)
    (queue,) = quota.cluster_queues
    assert queue.cohort == "c"
    assert queue.fungibility == Fungibility(Search.MAY_STOP_SEARCH, Search.MAY_STOP_SEARCH)


@pytest.mark.parametrize(
    ("version", "parent"), [("v1alpha1", "parent"), ("v1beta1", "parent"), ("v1beta2", "parentName")]
)
def test_cohorts_nest_and_may_lend_more_than_their_own(version, parent):
    quota = read(f"""
        apiVersion: kueue.x-k8s.io/{version}
        kind: Cohort
        metadata: {{name: team}}
        spec:
          {parent}: all
          fairSharing: {{weight: 500m}}
          resourceGroups:
          - coveredResources: [gpu]
            flavors: [{{name: x, resources: [{{name: gpu, nominalQuota: 1, lendingLimit: 5}}]}}]
    """)
    group = ResourceGroup(("gpu",), (FlavorQuota("x", (Limits(1000, None, 5000),)),))
    assert quota.cohorts == (Cohort("team", "all", (group,), 0.5),)


def test_flavors_have_labels_taints_and_tolerations():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: ResourceFlavor
        metadata: {name: spot}
        spec:
          nodeLabels: {zone: b, kind: spot}
          nodeTaints: [{effect: NoSchedule, key: spot, value: "true"}]
          tolerations:
          - {key: spot, operator: Exists, effect: NoSchedule}
          - {operator: Exists}
    """)
    assert quota.flavors == (
        Flavor(
            "spot",
            (("kind", "spot"), ("zone", "b")),
            (Taint("spot", "true", "NoSchedule"),),
            (Toleration("spot", "Exists", "", "NoSchedule"), Toleration("", "Exists")),
        ),
    )


def test_a_priority_class_has_no_spec():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: WorkloadPriorityClass
        metadata: {name: high}
        value: 10000
        description: for releases
    """)
    assert quota.priority_classes == (PriorityClass("high", 10000, "for releases"),)


@pytest.mark.parametrize(
    ("configuration", "fair"),
    [
        ("apiVersion: config.kueue.x-k8s.io/v1beta1\nfairSharing: {enable: true}", True),
        ("apiVersion: config.kueue.x-k8s.io/v1beta1\nfairSharing: {enable: false}", False),
        ("apiVersion: config.kueue.x-k8s.io/v1beta1\nfairSharing: {}", False),
        ("apiVersion: config.kueue.x-k8s.io/v1beta2\nfairSharing: {}", True),
        (
            "apiVersion: config.kueue.x-k8s.io/v1beta2\n"
            "fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}",
            True,
        ),
        ("apiVersion: config.kueue.x-k8s.io/v1beta2\nmetrics: {bindAddress: x}", False),
    ],
)
def test_the_configuration_says_whether_sharing_is_fair(configuration, fair):
    assert change_of(f"kind: Configuration\n{configuration}").fair_sharing is fair


def test_without_a_configuration_nothing_is_said_about_fair_sharing():
    assert change_of("queues: [{name: a}]").fair_sharing is None


def test_a_list_stands_for_its_items_and_json_is_read_with_tabs():
    objects = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": name}}
            for name in ("a", "b")
        ],
    }
    quota = merge(Quota(), read_quota_texts([("q.json", json.dumps(objects, indent="\t"))]))
    assert quota.cohorts == (Cohort("a"), Cohort("b"))
    assert merge(Quota(), read_quota_objects([objects])) == quota


def test_what_the_api_server_adds_does_not_matter():
    quota = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: LocalQueue
        metadata:
          name: q
          namespace: n
          uid: 0c4a
          resourceVersion: "12"
          generation: 3
          creationTimestamp: "2026-01-01T00:00:00Z"
          finalizers: [kueue.x-k8s.io/resource-in-use]
          managedFields: [{manager: kubectl}]
        spec: {clusterQueue: a, stopPolicy: null}
        status: {pendingWorkloads: 3}
    """)
    assert quota.local_queues == (LocalQueue("q", "a", "n"),)


def test_what_is_not_heeded_is_told_with_its_consequence():
    change = change_of("""
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: ClusterQueue
        metadata: {name: a}
        spec:
          admissionChecks: [license]
          admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}
        ---
        {apiVersion: kueue.x-k8s.io/v1beta1, kind: AdmissionCheck, metadata: {name: license}}
        ---
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: ResourceFlavor
        metadata: {name: x}
        spec: {topologyName: t}
        ---
        {apiVersion: v1, kind: Namespace, metadata: {name: team}}
    """)
    assert change.notes == (
        "ClusterQueue a: spec.admissionScope is not used by Batuta: what a queue used before does not change its turn",
        "ClusterQueue a: spec.admissionChecks is not used by Batuta: jobs start without waiting for these checks",
        "AdmissionCheck license is not used by Batuta: jobs start without waiting for it",
        "ResourceFlavor x: spec.topologyName is not used by Batuta: "
        "where replicas stand close together is said by each task (gpu.topology)",
        "Namespace is not about quota: it is left out",
    )


def test_the_objects_of_the_seed_document_are_read_once_they_are_indented(shared_data):
    seeds = shared_data.parent / "seeds"
    if not seeds.is_dir():
        pytest.skip("needs ../shared/seeds")
    text = next(seeds.glob("004_*.txt")).read_text()
    block = re.search(r"emphasize-lines: 27-28\n\n(.*?)\n\n\n", text, re.DOTALL)
    assert block is not None
    quota = read(_mended(textwrap.dedent(block[1])))
    (queue,) = quota.cluster_queues
    assert queue.preemption == Preemption(Within.LOWER_PRIORITY, Reclaim.ANY, True, 100)
    assert [limits.nominal for limits in queue.groups[0].flavors[0].limits] == [
        10000 * MILLI,
        10000 * 2**30 * MILLI,
        8 * MILLI,
    ]
    assert quota.local_queues == (LocalQueue("user-queue", "cluster-queue"),)


def _mended(text: str) -> str:
    """The document has lost much of its indentation: each line's depth follows from its first word."""
    depth = {
        0: ("apiVersion:", "kind:", "metadata:", "spec:", "---"),
        2: ("name:", "preemption:", "namespaceSelector:", "resourceGroups:", "clusterQueue:"),
        4: ("reclaimWithinCohort:", "borrowWithinCohort:", "withinClusterQueue:", "flavors:"),
        6: ("policy:", "maxPriorityThreshold:", "resources:"),
        8: ("nominalQuota:",),
    }
    of_word = {word: spaces for spaces, words in depth.items() for word in words}
    of_item = {"coveredResources:": 2, "default-flavor": 4, "cpu": 6, "memory": 6, "nvidia.com/gpu": 6}
    lines = []
    for bare in map(str.strip, text.splitlines()):
        words = bare.replace('"', "").split()
        spaces = of_word[words[0]] if words[0] != "-" else of_item[words[1 if len(words) > 3 else 2]]
        lines.append(" " * spaces + bare)
    return "\n".join(lines)


def test_the_objects_of_all_recorded_cases_are_read(shared_data):
    file = shared_data / "kueue_cases.json"
    if not file.is_file():
        pytest.skip("needs ../shared/data/kueue_cases.json")
    for case in json.loads(file.read_text()):
        change = read_quota_objects(case["objects"])
        assert len(change.objects) == len(case["objects"])
        assert not change.notes


def test_several_files_are_one_change(tmp_path):
    (tmp_path / "a.yaml").write_text("queues: [{name: a, quota: {H100: 1}}]")
    (tmp_path / "b.yaml").write_text("queues: [{name: b, quota: {H100: 2}}]")
    change = read_quota_files([tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert [queue.name for queue in merge(Quota(), change).cluster_queues] == ["a", "b"]
