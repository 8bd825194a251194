"""What a task file, a command line and a queue say about trial runs."""

import textwrap

import pytest

from batuta.core.quota import Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.export import quota_objects
from batuta.spec.kueue.files import read_quota_objects, read_quota_texts
from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_elastic import NO_TRIAL, TrialSpec
from batuta.spec.task_env import Overrides

QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: team
  annotations: {of_queue}
spec: {{namespaceSelector: {{}}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: door
  namespace: a
  annotations: {of_door}
spec: {{clusterQueue: team}}
"""


@pytest.mark.parametrize(
    ("written", "wishes"),
    [
        ("", NO_TRIAL),
        ("trial: true", TrialSpec(True)),
        ("trial: false", TrialSpec(False)),
        (
            "trial: {sizes: [4, 1, 2], budget: 3m, each: 45s, priority: 500}",
            TrialSpec(True, (1, 2, 4), 180.0, 45.0, 500),
        ),
    ],
)
def test_a_task_says_whether_and_how_it_is_tried_out(written: str, wishes: TrialSpec) -> None:
    assert parse_task(f"run: x\n{written}\nresources: {{accelerators: 1}}").trial == wishes


def test_a_command_line_goes_before_the_file() -> None:
    said = Overrides(trial={"sizes": [2, 1], "budget_s": 60.0, "each_s": None, "only": True})
    task = parse_task("run: x\nresources: {accelerators: 1}\ntrial: {sizes: [4], each: 20s}", overrides=said)
    assert task.trial == TrialSpec(True, (1, 2), 60.0, 20.0, None, only=True)


def test_all_that_is_wrong_with_a_trial_is_told_at_once_with_its_place() -> None:
    text = "run: x\ntrial:\n  sizes: []\n  budget: 1s\n  each: soon\n  priority: 5000\n  size: 3\n"
    with pytest.raises(InputError) as refused:
        parse_task(text)
    told = {problem.line: problem.message for problem in refused.value.problems}
    assert told[3] == "trial has 0 sizes"
    assert told[4] == "budget: '1s' is out of range"
    assert told[5] == "each: 'soon' is not a duration"
    assert "priority must be a whole number" in told[6]
    assert "unknown key size" in told[7]


def test_a_command_line_is_held_to_the_same_bounds() -> None:
    said = Overrides(trial={"sizes": [0], "budget_s": 1.0, "each_s": 1e9, "priority": 5000})
    with pytest.raises(InputError) as refused:
        parse_task("run: x", overrides=said)
    assert len(refused.value.problems) == 4


def test_a_share_of_a_gpu_is_not_tried_out() -> None:
    with pytest.raises(InputError, match="a share of a GPU is not tried out"):
        parse_task("run: x\ngpu: {memory: 2GiB}\ntrial: true")


def read(of_queue: str, of_door: str) -> Quota:
    text = textwrap.dedent(QUEUES.format(of_queue=of_queue, of_door=of_door))
    return merge(Quota(), read_quota_texts([("queues.yaml", text)]))


@pytest.mark.parametrize(
    ("of_queue", "of_door", "wanted"),
    [
        ("{}", "{}", False),
        ('{batuta.dev/trial: "true"}', "{}", True),
        ('{batuta.dev/trial: "true"}', '{batuta.dev/trial: "false"}', False),
        ("{}", '{batuta.dev/trial: "true"}', True),
    ],
)
def test_a_queue_says_whether_its_jobs_are_tried_out(of_queue: str, of_door: str, wanted: bool) -> None:
    quota = read(of_queue, of_door)
    assert quota.wants_trial("a", "door") is wanted
    assert not quota.wants_trial("a", "elsewhere")
    # and it is still there when the objects were written down and read again
    assert merge(Quota(), read_quota_objects(quota_objects(quota))) == quota


def test_a_queue_that_says_something_else_is_refused_with_the_place() -> None:
    with pytest.raises(InputError) as refused:
        read("{batuta.dev/trial: perhaps}", "{}")
    (problem,) = refused.value.problems
    assert (problem.line, problem.message) == (6, "batuta.dev/trial cannot be 'perhaps'")


def test_a_task_that_says_it_needs_no_gpu_is_not_tried_out():
    with pytest.raises(InputError, match="neither elastic nor tried out"):
        parse_task("run: x\ntrial: true", overrides=Overrides(gpus="0"))
