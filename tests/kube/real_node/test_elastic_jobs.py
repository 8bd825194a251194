"""Elastic jobs that really train: pods are processes on a real node, and are resized while they work."""

import json
from collections.abc import Callable

import pytest

from batuta.backends.kube import names
from tests.kube.real_node import pods
from tests.kube.real_node.training import WITHIN_S, Training
from tests.support.kube.api import Json
from tests.support.kube.real_node import RealNode
from tests.support.torch_install import require_torch

StartTraining = Callable[..., Training]


def launched_by(launcher: str, image: str) -> Json:
    if launcher == "a stand-in":
        return pods.under_agent(image)
    torch = require_torch()
    if not pods.can_have(torch):
        pytest.skip("a pod on the real node can only have Debian's torch: apt-get install python3-torch")
    return pods.under_torchrun(image, torch)


@pytest.mark.parametrize("launcher", ["a stand-in", "torchrun"])
def test_a_torch_job_grows_in_place_shrinks_by_a_restart_and_loses_no_step(
    real_node: RealNode, start_training: StartTraining, launcher: str
) -> None:
    """Given a size that a person sets, members that stay keep their pods, the training keeps its steps."""
    pod = launched_by(launcher, real_node.image)
    one = {"targetReplicas": 1}
    training = start_training("torch", "TorchElastic", pod, replicas=(1, 2), replica_spec=one)
    (first,) = training.trains_with(1).items()
    training.scale(2)
    assert first in training.trains_with(2).items()
    assert training.lives() == [1, 2]
    training.ends_soon()
    training.scale(1)
    status = training.job.reaches("SUCCEEDED", within_s=WITHIN_S)
    assert training.lives() == [1]
    assert status["failures"] == 0
    assert training.is_as_if_uninterrupted()


def test_a_job_that_restarts_at_each_size_makes_room_for_another_and_takes_it_back(
    real_node: RealNode, start_training: StartTraining
) -> None:
    """Given another job that comes and goes, an elastic one has all GPUs, half of them, and all again."""
    elastic = start_training("elastic", "Job", pods.alone(real_node.image), replicas=(1, 2), gpus=2)
    elastic.trains_with(2)
    rigid = start_training("rigid", "TorchElastic", pods.under_agent(real_node.image), replicas=1, gpus=2)
    rigid.trains_with(1)
    elastic.trains_with(1)
    elastic.ends_soon()
    rigid.job.patch({"metadata": {"annotations": {names.CANCEL: "true"}}})
    status = elastic.job.reaches("SUCCEEDED", within_s=WITHIN_S)
    assert elastic.lives() == [2]
    assert status["failures"] == 0
    assert elastic.is_as_if_uninterrupted()


def test_a_training_shows_how_far_it_is_saves_when_it_is_asked_and_leaves_its_result(
    real_node: RealNode, start_training: StartTraining
) -> None:
    """Given a script that reports and saves only when asked, a restart at another size loses no step."""
    training = start_training(
        "asked",
        "Job",
        pods.saving_when_asked(real_node.image),
        replicas=(1, 2),
        replica_spec={"targetReplicas": 2},
        annotations={names.CHECKPOINT: "on-signal"},
    )
    training.job.runs_with(2, WITHIN_S)
    before = training.reports_more_than(0)
    training.ends_at(before + 300)
    training.scale(1)
    training.job.runs_with(1, WITHIN_S)
    assert training.went_on_from() >= before
    training.shows_what_is_left()
    status = training.job.reaches("SUCCEEDED", within_s=WITHIN_S)
    assert (status["progress"], status.get("eta")) == ("100%", None)
    assert status["trainerStatus"]["progressPercentage"] == 100
    assert json.loads(status["result"])["steps"] == before + 300
    assert training.is_as_if_uninterrupted()
