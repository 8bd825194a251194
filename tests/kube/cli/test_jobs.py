"""The life of a job on a cluster, by the same verbs as on a server."""

import json
from pathlib import Path

import yaml

from batuta.backends.kube import names
from tests.kube.cli.command_line import TASK, Batuta
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape


def test_a_task_runs_and_is_listed_shown_and_explained(batuta: Batuta, add_nodes: AddNodes, tmp_path: Path) -> None:
    nodes = add_nodes(2, NodeShape(gpus=2))
    job = batuta.launch(tmp_path)
    found = batuta.waits_for("train", "RUNNING", gpus=4)
    assert (found["id"], found["user"], found["kind"]) == (job, "admin", "TorchElastic")
    assert {one["node"]: one["gpus"] for one in found["placement"]} == {name: [0, 1] for name in nodes}

    assert [one["id"] for one in batuta("queue", "-o", "json").json()] == [job]
    table = batuta("queue").out.splitlines()
    assert table[0].split()[:4] == ["JOB", "USER", "QUEUE", "STATE"]
    assert table[1].split()[:5] == [job, "admin", "default", "RUNNING", "4/2"]

    told = batuta("explain", "train")
    assert told.out.startswith(f"job {job} is RUNNING: runs at its full size of 4 GPUs")
    assert "it was submitted" in told.out
    assert "all its pods are ready" in told.out

    mine = [node for node in batuta("nodes", "-o", "json").json() if node["name"] in nodes]
    assert [[gpu["jobs"][0]["id"] for gpu in node["gpus"]] for node in mine] == [[job, job]] * 2


def test_a_job_that_has_to_wait_says_why(batuta: Batuta, add_nodes: AddNodes, tmp_path: Path) -> None:
    add_nodes(1, NodeShape(gpus=2))
    batuta.launch(tmp_path, "large", TASK.replace("min_nodes: 1", "min_nodes: 4").replace("nodes: 2", "nodes: 4"))
    wait_until(lambda: batuta.job("large")["reason"]["sentence"], "a reason")
    told = batuta("explain", "large", "-o", "json").json()
    assert told["state"] == "PENDING"
    assert "needs 4 GPUs" in told["reason"]["sentence"]
    assert told["reason"]["evidence"]["waiting in its queue"] == 1


def test_a_size_is_pinned_and_left_to_the_scheduler_again(
    batuta: Batuta, cluster: ControlPlane, namespace: str, add_nodes: AddNodes, tmp_path: Path
) -> None:
    add_nodes(1, NodeShape(gpus=4))
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING", gpus=4)
    assert batuta("resize", "train", "2").out == f"job {namespace}/train asks for 2 GPUs now\n"
    batuta.waits_for("train", "RUNNING", gpus=2)
    assert batuta("resize", "train", "auto").code == 0
    batuta.waits_for("train", "RUNNING", gpus=4)
    # A number that the scheduler has chosen already is pinned by saying it, too.
    batuta("resize", "train", "--nodes", "4")
    assert batuta.job("train")["gpus"]["min"] == 4
    cluster.kubectl("scale", "uj", "train", "--replicas=3", "--namespace", namespace)
    batuta.waits_for("train", "RUNNING", gpus=3)


def test_a_size_that_the_job_cannot_have_is_refused(batuta: Batuta, add_nodes: AddNodes, tmp_path: Path) -> None:
    batuta.launch(tmp_path)
    said = batuta("resize", "train", "9")
    assert said.code == 2
    assert "targetReplicas" in said.err
    assert "Traceback" not in said.err


def test_a_job_is_parked_started_and_cancelled(batuta: Batuta, add_nodes: AddNodes, tmp_path: Path) -> None:
    add_nodes(1, NodeShape(gpus=4))
    job = batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING", gpus=4)
    assert batuta("stop", "train").code == 0
    assert batuta.waits_for("train", "PREEMPTED", gpus=0)["wish"] == "park"
    assert batuta("start", "train").code == 0
    batuta.waits_for("train", "RUNNING", gpus=4)
    assert batuta("logs", "train", "--status").code == 101
    assert batuta("cancel", "train").out == f"job {job} is being cancelled\n"
    batuta.waits_for("train", "CANCELLED")
    assert batuta("logs", "train", "--status").code == 103
    assert batuta("queue", "--skip-finished", "-o", "json").json() == []
    assert [one["id"] for one in batuta("history", "-o", "json").json()] == [job]
    assert batuta("cancel", "train").out == f"job {job} is being cancelled\n"


def test_kubectl_sees_the_same_jobs(
    batuta: Batuta, cluster: ControlPlane, namespace: str, add_nodes: AddNodes, tmp_path: Path
) -> None:
    add_nodes(1, NodeShape(gpus=4))
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING")
    printed = cluster.kubectl("get", "uj", "--namespace", namespace, "--no-headers")
    assert printed.split()[:3] == ["train", "default", "RUNNING"]
    cluster.kubectl("delete", "uj", "train", "--namespace", namespace)
    assert batuta("queue", "-a", "-o", "json").json() == []


def test_a_dry_run_prints_what_kubectl_takes_and_stores_nothing(
    batuta: Batuta, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "task.yaml").write_text(f"{TASK}secrets: {{KEY: hidden-word}}\n")
    said = batuta("launch", str(tmp_path / "task.yaml"), "--dryrun")
    assert said.code == 0, said
    assert "nothing was submitted" in said.err
    assert "hidden-word" not in said.out
    assert yaml.safe_load(said.out)["kind"] == names.KIND
    assert batuta("queue", "-o", "json").json() == []
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=said.out)
    assert [one["name"] for one in batuta("queue", "-o", "json").json()] == ["train"]


def test_secrets_live_as_long_as_their_job(
    batuta: Batuta, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    batuta.launch(tmp_path, "train", f"{TASK}secrets: {{KEY: hidden-word}}\n")
    path = f"/api/v1/namespaces/{namespace}/secrets"
    (secret,) = cluster.api.items(path)
    assert [one["name"] for one in secret["metadata"]["ownerReferences"]] == ["train"]
    cluster.kubectl("delete", "uj", "train", "--namespace", namespace)
    wait_until(lambda: not cluster.api.items(path), "the Secret to go")


def test_a_name_that_is_taken_changes_nothing(
    batuta: Batuta, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    batuta.launch(tmp_path, "train", f"{TASK}secrets: {{KEY: first}}\n")
    (tmp_path / "task.yaml").write_text(f"{TASK}secrets: {{KEY: second}}\n")
    said = batuta("launch", str(tmp_path / "task.yaml"), "-d")
    assert said.code == 1
    assert f"job {namespace}/train is PENDING already" in said.err
    (secret,) = cluster.api.items(f"/api/v1/namespaces/{namespace}/secrets")
    assert secret["data"]["KEY"] == "Zmlyc3Q="


def test_a_command_needs_an_image_and_gets_a_name(batuta: Batuta) -> None:
    refused = batuta("launch", "--", "echo", "hello")
    assert refused.code == 2
    assert "a cluster needs an image" in refused.err
    said = batuta("launch", "-d", "-o", "json", "--image-id", "busybox", "--", "echo", "hello")
    assert said.json()["job"]["name"].startswith("job-")


def test_a_command_without_gpus_runs_on_cpu(batuta: Batuta, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1, NodeShape(gpus=0))
    words = (
        "--image-id",
        "busybox",
        "-n",
        "prepare",
        "--gpus",
        "0",
        "--num-nodes",
        "2",
        "--",
        "echo",
        "hello",
    )
    assert batuta("launch", "-d", *words).code == 0
    found = batuta.waits_for("prepare", "RUNNING", gpus=0)
    assert found["cpu"] == {"replicas": 2, "now": 2, "cpus": 1.0, "memory_mib": 0}
    assert found["placement"] == [{"node": node, "gpus": []}]
    assert "runs at its full size of 2 replicas" in batuta("explain", "prepare").out
    assert batuta("queue").out.splitlines()[1].split()[3:5] == ["RUNNING", "–"]


def test_what_the_api_server_does_not_accept_is_told_in_full(batuta: Batuta, tmp_path: Path) -> None:
    said = batuta.launch_unified(tmp_path, "train", "-d", replicas=(4, 2), gpus=0)
    assert said.code == 2
    assert "gpusPerReplica" in said.err
    assert "Traceback" not in said.err


def test_events_tell_what_happened(batuta: Batuta, add_nodes: AddNodes, tmp_path: Path) -> None:
    add_nodes(1, NodeShape(gpus=4))
    job = batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING")
    wait_until(lambda: batuta("events", "--job", "train").out, "events")
    lines = [json.loads(line) for line in batuta("events", "--job", "train", "-o", "json").out.splitlines()]
    assert {line["job"] for line in lines if "job" in line} == {job}
    assert batuta("events", "--type", "NoSuchReason").out == ""
