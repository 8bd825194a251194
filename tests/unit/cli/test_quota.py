"""`batuta queues try`: quota is tried out from a file, without any server."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batuta.cli.main import app
from batuta.spec.kueue.files import read_quota_files
from batuta.spec.problem import InputError

CASE = """
name: the older one waits for the more important one
objects: [{queues: [{name: a, quota: {"*": 4}}]}]
steps:
  - do: {submit: {name: old, queue: a, count: 3, requests: {batuta.dev/gpus: 1}}}
    admitted: {old: {batuta.dev/gpus: any}}
  - do: {submit: {name: new, queue: a, priority: 10, requests: {batuta.dev/gpus: 4}}}
    admitted: [new]
    preempted: [old]
    pending: [old]
  - do: {finish: new}
  - do: {delete: new}
"""


def run(folder: Path, text: str, *options: str) -> Result:
    file = folder / "case.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["queues", "try", str(file), *options])


def test_each_step_tells_who_has_quota_who_lost_it_to_whom_and_who_waits_why(tmp_path):
    result = run(tmp_path, CASE)
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:8] == [
        "the older one waits for the more important one",
        "1 submit old to a: 3 × 1 batuta.dev/gpus, priority 0",
        "admitted   old  batuta.dev/gpus in any",
        "2 submit new to a: 1 × 4 batuta.dev/gpus, priority 10",
        "preempted  old  Preempted (InClusterQueue) by new",
        "admitted   new  batuta.dev/gpus in any",
        "pending    old  WaitingForQuota: needs 3 batuta.dev/gpus of any, queue a has 0 of 4 left",
        "3 new finishes",
    ]
    assert result.stderr == "1 of 1 cases went as expected\n"


def test_json_has_the_shapes_of_the_case_files(tmp_path):
    result = run(tmp_path, CASE, "-o", "json")
    (case,) = json.loads(result.stdout)
    assert case["name"] == "the older one waits for the more important one"
    first, second, third, fourth = case["steps"]
    assert first == {"admitted": {"old": {"batuta.dev/gpus": "any"}}, "preempted": [], "pending": {}}
    assert second["preempted"] == [
        {"workload": "old", "reason": "Preempted", "preemption": "InClusterQueue", "by": "new"}
    ]
    assert second["pending"]["old"].keys() == {"reason", "message"}
    assert list(third["admitted"]) == ["old"]
    assert fourth == third, "whoever has finished can be deleted, and nothing changes"


@pytest.mark.parametrize("options", [(), ("-q",), ("-o", "json")])
def test_a_difference_is_told_and_the_exit_code_is_1(tmp_path, options):
    wrong = CASE.replace("admitted: [new]", "admitted: [old]")
    result = run(tmp_path, wrong, *options)
    assert result.exit_code == 1
    assert "old is not admitted" in result.output
    assert "new is admitted, which was not expected" in result.output
    assert result.stderr.endswith("0 of 1 cases went as expected\n")


def test_quiet_says_only_what_differs(tmp_path):
    assert run(tmp_path, CASE, "--quiet").stdout == ""


def test_without_expectations_there_is_nothing_to_differ_from(tmp_path):
    result = run(tmp_path, 'objects: [{queues: [{name: a, quota: {"*": 1}}]}]\nsteps: []')
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_bad_file_is_refused_with_all_its_problems(tmp_path):
    result = run(tmp_path, "objects: []\nsteps: [{do: {finish: x}}, {do: {}}]")
    assert isinstance(result.exception, InputError)
    assert len(result.exception.problems) == 2


def test_a_case_that_is_wrong_does_not_keep_the_others_from_being_tried(tmp_path):
    """Given two cases of which the second has two faults, the first is tried, and both faults are told."""
    text = f"---{CASE}---\nname: wrong\nobjects: []\nsteps: [{{do: {{finish: x}}}}, {{do: {{delete: y}}}}]\n"
    result = run(tmp_path, text, "-o", "json")
    assert [case["name"] for case in json.loads(result.stdout)] == ["the older one waits for the more important one"]
    assert result.stderr == "1 of 1 cases went as expected\n"
    assert isinstance(result.exception, InputError)
    assert [(one.line, one.message) for one in result.exception.problems] == [
        (16, "there is no workload x"),
        (16, "there is no workload y"),
    ]


def test_a_workload_that_waits_can_go_to_another_queue_and_one_that_has_quota_cannot(tmp_path):
    """Given a full queue and an idle one, who waits for the first starts in the second; who runs stays."""
    text = """
    objects: [{queues: [{name: a, quota: {"*": 2}}, {name: b, quota: {"*": 2}}]}]
    steps:
      - do: {submit: {name: runs, queue: a, requests: {batuta.dev/gpus: 2}}}
      - do: {submit: {name: waits, queue: a, requests: {batuta.dev/gpus: 2}}}
        pending: [waits]
      - do: {patchWorkload: {name: runs, spec: {queueName: b}}}
        pending: [waits]
      - do: {patchWorkload: {name: waits, spec: {queueName: b}}}
        admitted: [runs, waits]
        preempted: []
    """
    result = run(tmp_path, text)
    assert result.exit_code == 0, result.output
    assert "change waits: queue b" in result.stdout


def test_a_quota_change_is_a_step(tmp_path):
    text = """
objects:
  - {apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: x}}
  - apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: a}
    spec:
      namespaceSelector: {}
      resourceGroups:
        - coveredResources: [gpu]
          flavors: [{name: x, resources: [{name: gpu, nominalQuota: 1}]}]
  - {apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: q}, spec: {clusterQueue: a}}
steps:
  - {do: {submit: {name: w, queue: q, requests: {gpu: 1}}}, admitted: {w: {gpu: x}}}
  - do: {update: {kind: ClusterQueue, name: a, spec: {stopPolicy: HoldAndDrain}}}
    preempted: [w]
    pending: [w]
  - {do: {patchWorkload: {name: w, spec: {active: false}}}, pending: [w]}
"""
    result = run(tmp_path, text)
    assert result.exit_code == 0, result.output
    assert "2 update ClusterQueue a" in result.stdout
    assert "3 change w: active false" in result.stdout


def test_the_example_of_the_documentation_goes_as_it_says(tmp_path):
    page = Path(__file__).parents[3] / "docs" / "how-to" / "share-by-quota.md"
    text = page.read_text()
    for name, content in re.findall(r'```yaml title="([^"]+)"\n(.*?)```', text, re.DOTALL):
        (tmp_path / name).write_text(content)
    shown = re.search(r"\$ batuta queues try case.yaml\n(.*?)\n\n(1 of 1[^\n]*)", text, re.DOTALL)
    assert shown is not None
    result = CliRunner().invoke(app, ["queues", "try", str(tmp_path / "case.yaml")])
    assert (result.stdout.strip(), result.stderr.strip()) == shown.groups()
    short = read_quota_files([tmp_path / "queues.yaml"])
    assert [one.key.name for one in short.objects if one.key.kind == "ClusterQueue"] == ["vision", "language"]
