"""What becomes of a submission on its way to a cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from batuta.backends.kube import names
from batuta.client.kube.writing import SubmitContext, manifests_of
from batuta.client.submission import Submission
from batuta.spec.problem import InputError
from tests.support.kube.unified import manifest


def sender() -> SubmitContext:
    def products() -> tuple[str, ...]:
        return ("NVIDIA-A100-SXM4-80GB",)

    return SubmitContext("team-a", lambda: "ana", products)


def command(**overrides: Any) -> Submission:
    return Submission.of(command=["echo", "hello"], overrides=overrides)


def test_a_command_runs_in_its_image_under_a_name_of_its_own():
    submission = command(image_id="busybox")
    made = manifests_of(submission, sender()).job
    assert made["metadata"]["namespace"] == "team-a"
    assert made["metadata"]["name"] == f"job-{submission.key[:6]}"
    assert made["metadata"]["annotations"][names.USER] == "ana"
    assert made["spec"]["replicaSpec"]["template"]["spec"]["containers"][0]["image"] == "busybox"


@pytest.mark.parametrize(("gpus", "each"), [({}, 1), ({"gpus": "0"}, 0)])
def test_a_command_has_one_gpu_unless_it_wants_none(gpus: dict[str, str], each: int):
    made = manifests_of(command(image_id="busybox", **gpus), sender()).job
    assert made["spec"]["replicaSpec"]["gpusPerReplica"] == each


def test_a_folder_that_the_user_names_must_be_in_the_image(tmp_path: Path):
    with pytest.raises(InputError, match="not uploaded"):
        manifests_of(command(image_id="busybox", workdir=str(tmp_path)), sender())
    made = manifests_of(command(image_id="busybox", workdir=str(tmp_path), workdir_in_image="/src"), sender())
    assert made.job["spec"]["replicaSpec"]["template"]["spec"]["containers"][0]["workingDir"] == "/src"


def test_a_unified_job_goes_as_it_is_with_another_name_and_queue_if_wanted(tmp_path: Path):
    body = manifest("train", replicas=2)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    made = manifests_of(
        Submission.of(tmp_path / "job.yaml", overrides={"name": "other", "queue": "night"}), sender()
    ).job
    assert made["metadata"]["name"] == "other"
    assert made["metadata"]["namespace"] == "team-a"
    assert made["spec"] == body["spec"] | {"queueName": "night"}


@pytest.mark.parametrize(
    ("text", "overrides", "complaint"),
    [
        (yaml.safe_dump(manifest("train")), {"gpus": "2"}, "takes --name and --queue"),
        (yaml.safe_dump_all([manifest("a"), manifest("b")]), {}, "it has 2 objects"),
        (yaml.safe_dump(manifest("train") | {"apiVersion": "batuta.dev/v2"}), {}, "batuta.dev/v1alpha1"),
        ("kind: UnifiedJob\napiVersion: batuta.dev/v1alpha1\nspec: 3\n", {}, "should be mappings"),
        ("kind: UnifiedJob: x\n", {}, "job.yaml:1"),
    ],
)
def test_what_cannot_be_launched_is_refused(tmp_path: Path, text: str, overrides: dict[str, Any], complaint: str):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError, match=complaint):
        manifests_of(Submission.of(tmp_path / "job.yaml", overrides=overrides), sender())
