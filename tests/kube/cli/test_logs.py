"""What pods print, through the API server and a kubelet."""

import subprocess
import threading
from pathlib import Path

from tests.kube.cli.command_line import Batuta
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.server_process import BATUTA


def test_each_replica_has_its_own_output(
    batuta: Batuta,
    cluster: ControlPlane,
    namespace: str,
    add_nodes: AddNodes,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=4)))
    kubelet.print(namespace, "train-0", "one\ntwo\n")
    kubelet.print(namespace, "train-1", "three\n")
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING")
    everything = "(head, rank=0) one\n(head, rank=0) two\n(worker1, rank=1) three\n"
    assert batuta("logs", "train", "--no-follow").out == everything
    last = "(head, rank=0) two\n(worker1, rank=1) three\n"
    assert batuta("logs", "train", "--no-follow", "--tail", "1").out == last
    assert batuta("logs", "train", "--no-follow", "--node-rank", "1").out == "three\n"
    said = batuta("logs", "train", "--no-follow", "--node-rank", "7")
    assert said.code == 1
    assert "has no replica 7" in said.err


def test_launch_follows_the_output_to_the_end_of_the_job(
    batuta: Batuta,
    cluster: ControlPlane,
    namespace: str,
    add_nodes: AddNodes,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=1)))
    kubelet.print(namespace, "short-0", "hello\n")
    threading.Timer(1.0, kubelet.end, (namespace, "short-0")).start()
    said = batuta.launch_unified(tmp_path, "short", job_type="Pods", pod={"runs_for": "2s"})
    assert said.code == 0, said
    assert said.out == "hello\n"
    assert "SUCCEEDED" in said.err


def test_a_log_is_followed_through_a_restart_of_the_job(
    batuta: Batuta,
    cluster: ControlPlane,
    namespace: str,
    add_nodes: AddNodes,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=4)))
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING", gpus=4)
    kubelet.print(namespace, "train-0", "first start\n")
    printed = tmp_path / "printed"
    words = ["--kubeconfig", str(cluster.kubeconfig_path), "-n", namespace, "logs", "train"]
    one, other = "(head, rank=0) first start\n", "(head, rank=0) second start\n"
    with printed.open("wb") as out, subprocess.Popen([str(BATUTA), *words], stdout=out) as following:
        wait_until(lambda: printed.read_text() == one, "the first start's output")
        batuta("resize", "train", "1")
        batuta.waits_for("train", "RUNNING", gpus=1)
        for rank in (1, 2, 3):
            kubelet.end(namespace, f"train-{rank}")
        kubelet.restart(namespace, "train-0")
        kubelet.print(namespace, "train-0", "second start\n")
        wait_until(lambda: printed.read_text() == one + other, "the second start's output")
        batuta("cancel", "train")
        kubelet.end(namespace, "train-0")
        assert following.wait(60) == 103


def test_reports_of_the_sdk_are_not_shown_and_the_result_is(
    batuta: Batuta,
    cluster: ControlPlane,
    namespace: str,
    add_nodes: AddNodes,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    """Given a script that reports between its lines, people see its lines, its progress and its result."""
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=4)))
    batuta.launch(tmp_path)
    batuta.waits_for("train", "RUNNING")
    said = batuta("result", "train")
    assert (said.code, "gave no result yet: it is RUNNING" in said.err) == (1, True)
    lines = ["one", *('batuta-report {"step":3,"total_steps":10}' for _ in range(5)), "two"]
    lines.append('batuta-report {"event":"result","value":{"accuracy":0.5}}')
    kubelet.print(namespace, "train-0", "".join(f"{line}\n" for line in lines))
    assert batuta("logs", "train", "--no-follow", "--node-rank", "0").out == "one\ntwo\n"
    assert batuta("logs", "train", "--no-follow", "--node-rank", "0", "--tail", "1").out == "two\n"
    wait_until(lambda: (batuta.job("train")["progress"] or {}).get("fraction") == 0.3, "progress")
    assert batuta("result", "train").out.split() == ["{", '"accuracy":', "0.5", "}"]
