"""Stories about quota from files: objects, steps, expectations; or everything that is wrong with them."""

import json
import textwrap

import pytest

from batuta.core.quota import MILLI, Limits, Quota, StopPolicy, Toleration
from batuta.spec.problem import InputError
from batuta.spec.quota_case import (
    ChangeQuota,
    Delete,
    Eviction,
    Expected,
    Finish,
    PatchWorkload,
    PendingReason,
    PodSet,
    QuotaCase,
    Step,
    Submit,
)
from tests.support.quotas import parse_cases

GPU = "nvidia.com/gpu"
OBJECTS = """
objects:
  - {apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: x}}
  - apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: a}
    spec:
      cohortName: c
      namespaceSelector: {}
      resourceGroups:
        - coveredResources: [nvidia.com/gpu]
          flavors: [{name: x, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]
  - {apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: a}, spec: {clusterQueue: a}}
"""


def one(steps: str, objects: str = OBJECTS) -> QuotaCase:
    (case,) = parse_cases(f"{objects.lstrip()}steps:\n{textwrap.indent(textwrap.dedent(steps).strip(), '  ')}\n")
    return case


def problems_of(steps: str, objects: str = OBJECTS) -> list[str]:
    with pytest.raises(InputError) as caught:
        one(steps, objects)
    return [str(problem) for problem in caught.value.problems]


def changed(step: Step) -> Quota:
    """What holds after a step that changes quota."""
    assert isinstance(step.action, ChangeQuota)
    return step.action.quota


def test_a_workload_in_short_and_in_full():
    case = one("""
        - do: {submit: {name: w1, queue: a, priority: 5, count: 2, requests: {nvidia.com/gpu: 1, cpu: 500m}}}
        - do:
            submit:
              name: w2
              queue: a
              active: false
              namespace: team
              podSets:
                - {name: head, requests: {cpu: 1}}
                - name: workers
                  count: 4
                  minCount: 2
                  requests: {nvidia.com/gpu: 2}
                  nodeSelector: {gpu: h100}
                  tolerations: [{key: spot, operator: Exists}]
    """)
    assert [step.action for step in case.steps] == [
        Submit("w1", "a", (PodSet("main", 2, ((GPU, 1000), ("cpu", 500))),), priority=5),
        Submit(
            "w2",
            "a",
            (
                PodSet("head", 1, (("cpu", 1000),)),
                PodSet(
                    "workers",
                    4,
                    ((GPU, 2000),),
                    2,
                    (("gpu", "h100"),),
                    (Toleration("spot", "Exists"),),
                ),
            ),
            active=False,
            namespace="team",
        ),
    ]


def test_everything_else_that_may_happen():
    case = one("""
        - do: {submit: {name: w1, queue: a}}
        - do: {patchWorkload: {name: w1, spec: {active: false, priority: -3}}}
        - do: {finish: w1}
        - do: {delete: w1}
        - do: {create: {apiVersion: kueue.x-k8s.io/v1beta2, kind: Cohort, metadata: {name: c}}}
        - do: {deleteObject: {kind: LocalQueue, name: a}}
    """)
    _, patch, finish, delete, create, gone = (step.action for step in case.steps)
    assert (patch, finish, delete) == (PatchWorkload("w1", False, -3), Finish("w1"), Delete("w1"))
    assert isinstance(create, ChangeQuota)
    assert isinstance(gone, ChangeQuota)
    assert (create.verb, create.kind, create.name) == ("create", "Cohort", "c")
    assert [cohort.name for cohort in create.quota.cohorts] == ["c"]
    assert not gone.quota.local_queues
    assert gone.quota.cohorts == create.quota.cohorts, "each step goes on from the one before"
    assert case.quota.local_queues, "what came first stays what it was"


def test_an_update_is_merged_into_what_was_written():
    case = one("""
        - do: {update: {kind: ClusterQueue, name: a, spec: {stopPolicy: Hold}}}
        - do: {update: {kind: ClusterQueue, name: a, spec: {cohortName: null}}}
        - do:
            update:
              kind: ClusterQueue
              name: a
              spec:
                resourceGroups:
                  - coveredResources: [nvidia.com/gpu]
                    flavors: [{name: x, resources: [{name: nvidia.com/gpu, nominalQuota: 1}]}]
    """)
    held, alone, smaller = (changed(step).queue_of["a"] for step in case.steps)
    assert (held.stop, held.cohort) == (StopPolicy.HOLD, "c")
    assert (alone.stop, alone.cohort) == (StopPolicy.HOLD, "")
    assert smaller.groups[0].flavors[0].limits == (Limits(MILLI),)
    assert smaller.stop is StopPolicy.HOLD


def test_a_flavor_that_a_queue_names_stays_until_nobody_does():
    case = one("- do: {deleteObject: {kind: ResourceFlavor, name: x}}")
    assert [flavor.name for flavor in changed(case.steps[0]).flavors] == ["x"]


def test_expectations_may_be_full_or_just_names_or_absent():
    case = one("""
        - do: {submit: {name: w1, queue: a}}
          admitted: {w1: {nvidia.com/gpu: x}}
          preempted: [{workload: w0, reason: Preempted, preemption: InClusterQueue, by: w1}]
          pending: {w2: {reason: WaitingForQuota, message: soon, more: 1}}
        - do: {submit: {name: w2, queue: a}}
          admitted: [w1]
          preempted: [w0]
          pending: [w2]
        - do: {finish: w1}
    """)
    full, short, none = (step.expected for step in case.steps)
    assert full == Expected(
        {"w1": {GPU: "x"}},
        (Eviction("w0", "Preempted", "InClusterQueue", "w1"),),
        {"w2": PendingReason("WaitingForQuota", "soon")},
    )
    assert short == Expected({"w1": None}, (Eviction("w0"),), {"w2": PendingReason()})
    assert not none
    assert none == Expected()


def test_differences_are_who_and_where_not_why():
    expected = Expected({"w1": {GPU: "x"}, "w2": None}, (Eviction("w3"),), {"w4": PendingReason("Other")})
    assert expected.differences({"w1": {GPU: "x"}, "w2": {GPU: "y"}}, ["w3"], ["w4"]) == []
    assert expected.differences({"w1": {GPU: "y"}, "w5": {}}, ["w3", "w3"], []) == [
        "w2 is not admitted",
        "w5 is admitted, which was not expected",
        "w1: expected nvidia.com/gpu in x, got nvidia.com/gpu in y",
        "w3 is preempted, which was not expected",
        "w4 is not pending",
    ]
    assert Expected().differences({"w1": {}}, ["w2"], ["w3"]) == []


def test_a_priority_may_be_the_name_of_a_class():
    case = one(
        "- do: {submit: {name: w1, queue: a, priority: high}}",
        f"{OBJECTS}  - {{apiVersion: kueue.x-k8s.io/v1beta2, kind: WorkloadPriorityClass, "
        "metadata: {name: high}, value: 7000}\n",
    )
    submit = case.steps[0].action
    assert isinstance(submit, Submit)
    assert submit.priority == 7000


def test_queues_in_short_form_will_do():
    case = one("- do: {submit: {name: w1, queue: b}}", 'objects: [{queues: [{name: b, quota: {"*": 4}}]}]\n')
    assert list(case.quota.queue_of) == ["b"]


def test_the_objects_may_stand_in_a_file_beside_the_case(tmp_path):
    (tmp_path / "quota.yaml").write_text(
        "queues: [{name: a}]\n---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: b}"
    )
    file = tmp_path / "case.yaml"
    update = "{update: {kind: ClusterQueue, name: b, spec: {stopPolicy: %s}}}"
    file.write_text(f"files: [quota.yaml]\nsteps:\n- do: {update % 'Hold'}")
    (case,) = parse_cases(file.read_text(), str(file))
    assert list(case.quota.queue_of) == ["a", "b"]
    assert changed(case.steps[0]).queue_of["b"].stop is StopPolicy.HOLD

    file.write_text(f"files: [quota.yaml]\nsteps:\n- do: {update % 'Halt'}")
    with pytest.raises(InputError) as caught:
        parse_cases(file.read_text(), str(file))
    assert str(caught.value).startswith(f"{file}:3:16: spec.stopPolicy cannot be 'Halt'")


def test_a_file_beside_the_case_tells_its_own_problems(tmp_path):
    (tmp_path / "quota.yaml").write_text("queues: [{nam: a}]")
    (tmp_path / "case.yaml").write_text("files: [quota.yaml, gone.yaml]\nsteps: [{do: {finish: w}}]")
    with pytest.raises(InputError) as caught:
        parse_cases((tmp_path / "case.yaml").read_text(), str(tmp_path / "case.yaml"))
    files = [problem.file.rpartition("/")[2] for problem in caught.value.problems]
    assert files == ["case.yaml", "gone.yaml", "quota.yaml", "quota.yaml"]


def test_config_says_whether_sharing_is_fair():
    fair, base = parse_cases("[{config: fair, objects: [], steps: []}, {name: two, objects: [], steps: []}]")
    assert (fair.quota.fair_sharing, base.quota.fair_sharing) == (True, False)
    assert (fair.name, base.name) == ("case 1", "two")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("- do: {}", "cases.yaml:14:9: case 1.steps[0].do has 0 things to do (one of submit, finish"),
        ("- do: {finish: w1, delete: w1}", "cases.yaml:14:9: case 1.steps[0].do has 2 things to do"),
        ("- {}", "cases.yaml:14:5: case 1.steps[0] does nothing"),
        (
            "- do: {sumbit: {}}",
            "cases.yaml:14:10: unknown key sumbit in case 1.steps[0].do (did you mean submit?)",
        ),
        ("- do: {finish: w1}", "cases.yaml:14:18: there is no workload w1"),
        ("- do: {submit: {queue: a}}", "cases.yaml:14:18: case 1.steps[0].do.submit needs name"),
        (
            "- do: {submit: {name: w, queue: a, requests: {gpu: lots}}}",
            "cases.yaml:14:54: case 1.steps[0].do.submit.requests.gpu: 'lots' is not a quantity",
        ),
        (
            "- do: {submit: {name: w, queue: a, podSets: [{count: 1}], count: 2}}",
            "cases.yaml:14:47: case 1.steps[0].do.submit has podSets and count",
        ),
        (
            "- do: {submit: {name: w, queue: a, priority: hihg}}",
            "cases.yaml:14:48: case 1.steps[0].do.submit.priority must be a whole number",
        ),
        (
            "- do: {update: {kind: ClusterQueue, name: b, spec: {}}}",
            "cases.yaml:14:18: there is no ClusterQueue b",
        ),
        (
            "- do: {update: {kind: ClusterQueue, name: a}}",
            "cases.yaml:14:18: case 1.steps[0].do.update needs kind,",
        ),
        (
            "- do: {update: {kind: ClusterQueue, name: a, spec: {stopPolicy: Halt}}}",
            "cases.yaml:14:67: spec.stopPolicy cannot be 'Halt'",
        ),
        ("- do: {deleteObject: {kind: Quota, name: a}}", "cases.yaml:14:24: unknown kind Quota"),
        (
            "- do: {create: {apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: x}}}",
            "cases.yaml:14:18: ResourceFlavor x is there already (update it, or delete it first)",
        ),
    ],
)
def test_a_mistake_in_a_step_is_told_with_its_place(step, said):
    found = problems_of(step)
    assert found[0].startswith(said), found


def test_all_mistakes_come_at_once_and_what_is_sound_goes_on():
    found = problems_of("""
        - do: {finish: w1}
        - do: {submit: {name: w1, queue: a}}
        - do: {submit: {name: w1, queue: a}}
        - do: {update: {kind: Cohort, name: c, spec: {}}}
    """)
    assert [line.split(" (")[0].split(": ", 1)[1] for line in found] == [
        "there is no workload w1",
        "there is a workload w1 already",
        "there is no Cohort c",
    ]


@pytest.mark.parametrize("text", ["", "steps: []", "objects: []", "3", "[3]", "[[]]", "{objects: 3, steps: 4}"])
def test_what_is_no_case_is_refused(text):
    with pytest.raises(InputError):
        parse_cases(text)


def test_all_recorded_cases_are_read_with_their_expectations(shared_data):
    file = shared_data / "kueue_cases.json"
    if not file.is_file():
        pytest.skip("needs ../shared/data/kueue_cases.json")
    cases, raw = parse_cases(file.read_text(), str(file)), json.loads(file.read_text())
    assert [case.name for case in cases] == [case["name"] for case in raw]
    assert [case.quota.fair_sharing for case in cases] == [case["config"] == "fair" for case in raw]
    for case, written in zip(cases, raw, strict=True):
        assert [set(step.expected.pending or ()) for step in case.steps] == [
            set(step["pending"]) for step in written["steps"]
        ]
        assert [dict(step.expected.admitted or {}) for step in case.steps] == [
            step["admitted"] for step in written["steps"]
        ]
