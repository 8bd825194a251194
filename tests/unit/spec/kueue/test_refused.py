"""Objects that Kueue would refuse are refused here: all mistakes at once, each with its place and the fix."""

import textwrap

import pytest

from batuta.core.quota import Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_files, read_quota_objects, read_quota_texts
from batuta.spec.problem import InputError

QUEUE = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: a}\nspec:\n"
QUOTA = "spec.resourceGroups[0].flavors[0].resources[0]"
FLAVOR = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: x}\nspec:\n"


def problems_of(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        merge(Quota(), read_quota_texts([("q.yaml", textwrap.dedent(text))]))
    return [str(problem) for problem in caught.value.problems]


def group(quota: str = "{name: gpu, nominalQuota: 1}", more: str = "") -> str:
    return (
        f"{QUEUE}{more}  resourceGroups:\n"
        f"  - coveredResources: [gpu]\n    flavors: [{{name: x, resources: [{quota}]}}]\n"
    )


def groups(*pairs: tuple[str, str]) -> str:
    lines = [
        f"  - coveredResources: [{resources}]\n    flavors:\n"
        + "".join(
            f"    - {{name: {flavor}, resources: ["
            + ", ".join(f"{{name: {one.strip()}, nominalQuota: 1}}" for one in resources.split(","))
            + "]}\n"
            for flavor in flavors.split()
        )
        for resources, flavors in pairs
    ]
    return f"{QUEUE}  resourceGroups:\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{QUEUE}  cohort: b", "q.yaml:5:11: unknown key cohort in spec (v1beta2 calls it cohortName)"),
        (f"{QUEUE}  stopPolcy: Hold", "q.yaml:5:3: unknown key stopPolcy in spec (did you mean stopPolicy?)"),
        (f"{QUEUE}  stopPolicy: Held", "q.yaml:5:15: spec.stopPolicy cannot be 'Held' (did you mean Hold?)"),
        (f"{QUEUE}  cohortName: Team_A", "q.yaml:5:15: spec.cohortName cannot be 'Team_A' (lower-case"),
        (
            f"{QUEUE}  cohortName: 12",
            "q.yaml:5:15: spec.cohortName must be a text, found '12' (write \"12\")",
        ),
        (
            f"{QUEUE}  fairSharing: {{weight: -1}}",
            "q.yaml:5:25: spec.fairSharing.weight must not be negative",
        ),
        (
            f"{QUEUE}  fairSharing: {{weight: 1n}}",
            "q.yaml:5:25: spec.fairSharing.weight must be 0 or more than",
        ),
        (
            f"{QUEUE}  preemption: {{borrowWithinCohort: {{policy: LowerPriority}}}}",
            "q.yaml:5:45: spec.preemption.borrowWithinCohort.policy is LowerPriority while reclaim",
        ),
        (
            f"{QUEUE}  flavorFungibility: {{preference: BorrowingOverPreemption}}",
            "q.yaml:5:35: spec.flavorFungibility.preference has a meaning only when all flavors are tried",
        ),
        (
            f"{QUEUE}  flavorFungibility: {{whenCanBorrow: Borrow}}",
            "q.yaml:5:38: spec.flavorFungibility.whenCanBorrow cannot be 'Borrow'",
        ),
        (
            f"{QUEUE}  namespaceSelector: {{matchExpressions: [{{key: a, operator: In}}]}}",
            "q.yaml:5:42: spec.namespaceSelector.matchExpressions[0].values does not go with In",
        ),
        (
            group("{name: gpu}"),
            f"q.yaml:7:37: {QUOTA} needs nominalQuota",
        ),
        (
            group("{name: gpu, nominalQuota: -1}"),
            f"q.yaml:7:63: {QUOTA}.nominalQuota must not be negative",
        ),
        (
            group("{name: gpu, nominalQuota: 10Gib}"),
            f"q.yaml:7:63: {QUOTA}.nominalQuota: '10Gib' is not a quantity",
        ),
        (
            group("{name: cpu, nominalQuota: 1}"),
            "q.yaml:7:36: spec.resourceGroups[0].flavors[0].resources has cpu where the group covers gpu",
        ),
        (
            group("{name: gpu, nominalQuota: 1, borrowingLimit: 1}"),
            f"q.yaml:7:82: {QUOTA}.borrowingLimit has no meaning without a cohort",
        ),
        (
            group("{name: gpu, nominalQuota: 1, lendingLimit: 2}", "  cohortName: c\n"),
            f"q.yaml:8:80: {QUOTA}.lendingLimit is more than nominalQuota",
        ),
        (
            groups(("gpu", "x"), ("gpu", "y")),
            "q.yaml:9:24: spec.resourceGroups[1].coveredResources[0]: 'gpu' is covered twice",
        ),
        (
            groups(("gpu", "x"), ("cpu", "x")),
            "q.yaml:11:14: spec.resourceGroups[1].flavors[0]: flavor x is named twice",
        ),
        (
            f"{QUEUE}  resourceGroups: [{{coveredResources: [], flavors: []}}]",
            "q.yaml:5:39: spec.resourceGroups[0] needs coveredResources",
        ),
        (
            f"{QUEUE}  resourceGroups: [{{coveredResources: ['a b'], flavors: []}}]",
            "q.yaml:5:40: spec.resourceGroups[0].coveredResources[0]: 'a b' is not the name of a resource",
        ),
        (f"{FLAVOR}  nodeLabels: {{a: true}}", "q.yaml:5:19: spec.nodeLabels.a must be a text, found 'true'"),
        (
            f"{FLAVOR}  nodeLabels: {{a: b c}}",
            "q.yaml:5:19: spec.nodeLabels.a: 'b c' is not the value of a label",
        ),
        (f"{FLAVOR}  nodeTaints: [{{key: a}}]", "q.yaml:5:16: spec.nodeTaints[0] needs an effect"),
        (f"{FLAVOR}  tolerations: [{{value: a}}]", "q.yaml:5:17: spec.tolerations[0] has no key"),
        (
            "{apiVersion: kueue.x-k8s.io/v1beta3, kind: Cohort, metadata: {name: a}}",
            "q.yaml:1:14: version v1beta3 of Cohort is not known (kueue.x-k8s.io/v1beta1 or ",
        ),
        (
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQeue, metadata: {name: a}}",
            "q.yaml:1:44: unknown kind ClusterQeue (did you mean ClusterQueue?)",
        ),
        (
            "{apiVersion: queue.k8s.io/v1beta2, kind: Cohort, metadata: {name: a}}",
            "q.yaml:1:14: apiVersion of a Cohort cannot be that (kueue.x-k8s.io/v1beta2)",
        ),
        (
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: Cohort, metadata: {}}",
            "q.yaml:1:62: a Cohort needs metadata.name",
        ),
        (
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: a}}",
            "q.yaml:1:1: a LocalQueue needs spec.clusterQueue",
        ),
        (
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: WorkloadPriorityClass, metadata: {name: a}}",
            "q.yaml:1:1: a WorkloadPriorityClass needs a value",
        ),
        (
            "{apiVersion: config.kueue.x-k8s.io/v1beta2, kind: Configuration, "
            "fairSharing: {preemptionStrategies: [LessThanInitialShare]}}",
            "q.yaml:1:102: fairSharing.preemptionStrategies is LessThanInitialShare",
        ),
        ("{metadata: {name: a}}", "q.yaml:1:1: an object needs apiVersion and kind"),
        ("[]", "q.yaml:1:1: an object must be a mapping, found a list"),
        ("# nothing", "q.yaml: holds nothing but comments"),
        ("a: [1", "q.yaml:2:1: is not YAML: did not find expected ',' or ']'"),
    ],
)
def test_a_mistake_is_told_with_place_and_fix(text, said):
    found = problems_of(text)
    assert found[0].startswith(said), found


def test_all_mistakes_of_all_documents_and_files_come_at_once(tmp_path):
    (tmp_path / "a.yaml").write_text(f"{QUEUE}  a: 1\n  b: 2\n---\n{FLAVOR}  c: 3\n")
    (tmp_path / "b.yaml").write_text(f"{FLAVOR}  d: 4\n---\nkind: [\n")
    with pytest.raises(InputError) as caught:
        read_quota_files([tmp_path / name for name in ("a.yaml", "b.yaml", "gone.yaml")])
    places = [(problem.file.rpartition("/")[2], problem.line) for problem in caught.value.problems]
    assert places == [
        ("gone.yaml", 0),
        ("a.yaml", 5),
        ("a.yaml", 6),
        ("a.yaml", 12),
        ("b.yaml", 5),
        ("b.yaml", 8),
    ]


def test_each_mistake_is_told_once():
    text = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {name: a}\n"
    assert problems_of(f"{text}metadata: {{name: b}}\nspec: {{x: 1}}\n") == [
        "q.yaml:4:1: key metadata appears twice in an object",
        "q.yaml:5:8: unknown key x in spec (known: parent, parentName, resourceGroups, fairSharing)",
    ]


def test_an_object_that_appears_twice_names_the_first():
    (found,) = problems_of(f"{FLAVOR}---\n{FLAVOR}")
    assert found == "q.yaml:6:1: ResourceFlavor x appears twice (the first is at q.yaml:1:1)"


def test_local_queues_of_two_namespaces_may_have_one_name():
    text = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\nspec: {clusterQueue: a}\n"
    both = "---\n".join(f"{text}metadata: {{name: q, namespace: {space}}}\n" for space in "xy")
    change = read_quota_texts([("q.yaml", both)])
    assert len(change.objects) == 2


def test_plain_objects_are_refused_by_kind_and_name():
    with pytest.raises(InputError) as caught:
        read_quota_objects(
            [
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "ClusterQueue",
                    "metadata": {"name": "a"},
                    "spec": {"cohortNam": "b", "resourceGroups": {}},
                },
                "nonsense",
            ]
        )
    assert [str(problem) for problem in caught.value.problems] == [
        "ClusterQueue a: unknown key cohortNam in spec (did you mean cohortName?)",
        "ClusterQueue a: spec.resourceGroups must be a list, found a mapping",
        "object: an object must be a mapping, found 'nonsense'",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "x" * 100_000,
        ["a" * 300 + "-"] * 3,
        {"spec": {"resourceGroups": [None, [], "", 3.5, {"flavors": [None]}]}},
    ],
)
def test_nonsense_is_refused_and_not_stumbled_over(value):
    with pytest.raises(InputError):
        read_quota_objects([{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": value}])


def test_what_is_nested_too_deep_is_refused():
    value: object = "x"
    for _ in range(200):
        value = [value]
    with pytest.raises(InputError, match="nested more than"):
        read_quota_objects([{"kind": "Cohort", "metadata": {"name": "a"}, "spec": value}])
