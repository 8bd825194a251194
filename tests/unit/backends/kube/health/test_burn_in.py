"""The pod that tests a node, and what its end says."""

import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.health.burn_in import Attempt, BurnInOptions, Outcome, burn_in_pod, outcome_of
from batuta.core.health_record import Target

OPTIONS = BurnInOptions("image", ("test",), "nvidia", 60, "home")


def test_a_node_is_tested_on_all_its_gpus_at_once_and_nobody_else_has_one():
    pod = burn_in_pod(OPTIONS, Attempt(Target("n"), 5.0), "nvidia.com/gpu", 3)
    containers = pod["spec"]["containers"]
    assert [one["name"] for one in containers] == ["gpu-0", "gpu-1", "gpu-2"]
    assert all(one["resources"] == {"limits": {"nvidia.com/gpu": "1"}} for one in containers)
    assert (pod["spec"]["nodeName"], pod["spec"]["runtimeClassName"]) == ("n", "nvidia")


def test_a_gpu_alone_is_reached_by_its_number():
    pod = burn_in_pod(OPTIONS, Attempt(Target("n", 2), 5.0), "nvidia.com/gpu", 3)
    (container,) = pod["spec"]["containers"]
    assert "resources" not in container
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "2"} in container["env"]


def test_another_illness_is_another_attempt():
    marks = {Attempt(Target("n", gpu), since_s).mark for gpu in (-1, 0) for since_s in (1.0, 2.0)}
    assert len(marks) == 4


def pod(phase: str, reason: str = "", exit_code: int | None = None, message: str = "") -> objects.Pod:
    states = []
    if exit_code is not None:
        ended = objects.Terminated(exit_code=exit_code, message=message)
        states = [objects.ContainerStatus(name="gpu-1", state=objects.ContainerState(terminated=ended))]
    return objects.Pod(status=objects.PodStatus(phase=phase, reason=reason, message="", container_statuses=states))


@pytest.mark.parametrize(
    ("found", "outcome", "words"),
    [
        (pod("Pending"), Outcome.UNDER_WAY, ""),
        (pod("Succeeded"), Outcome.PASSED, ""),
        (
            pod("Failed", exit_code=1, message="first\nbad memory"),
            Outcome.FAILED,
            "gpu-1 ended with 1: bad memory",
        ),
        (pod("Failed", "DeadlineExceeded"), Outcome.FAILED, "DeadlineExceeded"),
        (pod("Failed"), Outcome.FAILED, "its pod failed"),
        (pod("Failed", "OutOfnvidia.com/gpu"), Outcome.AGAIN, "OutOfnvidia.com/gpu: "),
    ],
)
def test_what_its_end_says(found: objects.Pod, outcome: Outcome, words: str):
    assert outcome_of(found) == (outcome, words)
