"""Nodes of the cluster whose GPUs are virtual ones, each with an agent that has the chart's rights."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import rights_of
from tests.support.gpu_work import start_agent, work
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.vgpu import VirtualNode, compiler

HOME = "kube-system"
USER = f"system:serviceaccount:{HOME}:batuta-agent"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{HOME}", "system:authenticated")
CONTAINER = "c0" * 32
WITHIN_S = 90.0


def pytest_runtest_setup(item: pytest.Item) -> None:
    compiler()


@dataclass
class AgentNode:
    """A node: its name in the cluster, its GPUs, and the /proc that its agent sees."""

    name: str
    cluster: ControlPlane
    gpus: VirtualNode
    proc: Path
    kubeconfig: Path
    stack: ExitStack

    def start_agent(self, *words: str) -> "subprocess.Popen[str]":
        with (self.proc.parent / f"{self.name}.log").open("a") as log:
            return start_agent(
                self.stack,
                self.gpus,
                *("--node", self.name, "--kubeconfig", self.kubeconfig, "--proc", self.proc),
                *("--interval", "0.3", "--report-every", "2", *words),
                log=log,
            )

    def work(self, gpu: int = 0, *, control_groups: str = "0::/user.slice", **more: Any) -> "subprocess.Popen[str]":
        """A process on a GPU, which the agent sees in these control groups."""
        process = work(self.stack, self.gpus, gpu, **more)
        home = self.proc / str(process.pid)
        home.mkdir()
        (home / "stat").symlink_to(f"/proc/{process.pid}/stat")
        (home / "cgroup").write_text(control_groups)
        return process

    def annotations(self) -> dict[str, Any]:
        """What the agent wrote on the node."""
        return _of_agent(self.cluster.api.get(f"/api/v1/nodes/{self.name}"))

    def busy(self) -> list[float | None]:
        """How busy each GPU is by the node's annotation; empty until there is one."""
        said = self.annotations().get("utilisation", {"gpus": []})
        return [gpu.get("utilisation") for gpu in said["gpus"]]


def pod_annotations(cluster: ControlPlane, namespace: str, pod: str) -> dict[str, Any]:
    """What the operator wrote on a pod, by the word of its node's agent."""
    return _of_agent(cluster.pod(namespace, pod))


def _of_agent(found: dict[str, Any]) -> dict[str, Any]:
    prefix = "batuta.dev/gpu."
    return {
        key.removeprefix(prefix): json.loads(text)
        for key, text in found["metadata"].get("annotations", {}).items()
        if key.startswith(prefix)
    }


@pytest.fixture(scope="session")
def agent_kubeconfig(cluster: ControlPlane) -> Path:
    """An account with what the chart gives the agent, and no more."""
    values = {"agent": {"enabled": True}, "rbac": {"userRoles": False}}
    cluster.apply([one for one in rights_of(values, HOME) if one["metadata"]["name"] == "batuta-agent"])
    what = {"verb": "patch", "resource": "nodes"}
    review = {"spec": {"user": USER, "groups": list(GROUPS), "resourceAttributes": what}}
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    # The authorizer watches roles, and hears of them a moment later.
    wait_until(lambda: cluster.api.create(reviews, review)["status"]["allowed"], "the rights to hold")
    return cluster.kubeconfig(USER, GROUPS)


MakeNodes = Callable[..., list[AgentNode]]


@pytest.fixture
def make_nodes(cluster: ControlPlane, agent_kubeconfig: Path, add_nodes: Any, tmp_path: Path) -> Iterator[MakeNodes]:
    """Nodes with virtual GPUs. No agent was refused anything when all is over."""
    mark = cluster.requests.mark()
    with ExitStack() as stack:

        def make(count: int, gpus: int = 1, **more: Any) -> list[AgentNode]:
            found = []
            for name in add_nodes(count, NodeShape(gpus=gpus, **more)):
                folder = tmp_path / name
                (folder / "proc").mkdir(parents=True)
                virtual = VirtualNode.make(folder, gpus=gpus, model="A100")
                found.append(AgentNode(name, cluster, virtual, folder / "proc", agent_kubeconfig, stack))
            return found

        yield make
    asked = cluster.requests.since(mark, USER)
    assert [one for one in asked if one.is_forbidden] == []
