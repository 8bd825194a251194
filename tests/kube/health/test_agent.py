"""From a node's kernel log and NVML to the taint: a real agent, a real operator, a real API server."""

import json
from pathlib import Path

from batuta.backends.kube import names
from batuta.backends.kube.health.annotations import read_figures
from batuta.core.health_signals import Figure
from batuta.gpu.vgpu.inject import FaultSpec, inject
from tests.kube.agent.conftest import AgentNode, agent_kubeconfig, make_nodes
from tests.support.gpu_work import end
from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward
from tests.support.kube.operator_process import OperatorProcess
from tests.support.vgpu import compiler

__all__ = ["agent_kubeconfig", "make_nodes"]  # they are fixtures
XID = "Nov 16 10:00:00 n1 kernel: [   12.3] NVRM: Xid (PCI:0000:{:02x}:00): {}, pid=4711, name=python, {}\n"


def write(log: Path, gpu: int, code: int, text: str = "") -> None:
    """What the driver says; GPU 0 is on bus 1."""
    with log.open("a") as file:
        file.write(XID.format(gpu + 1, code, text))


def test_a_line_of_the_kernel_log_takes_the_gpu_out_and_the_next_one_the_node(
    operator: OperatorProcess, ward: Ward, make_nodes, tmp_path: Path
):
    """Given an agent that is killed between two lines, both are heard: of a GPU first, then of the node."""
    compiler()
    node: AgentNode
    node, _ = make_nodes(2, gpus=2)
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text("")
    words = ("--kernel-log", str(log), "--state", str(state))
    agent = node.start_agent(*words)
    wait_until((state / "gpu-addresses.json").exists, "the agent to know its GPUs", 60)

    write(log, 1, 48, "DBE")
    ill = wait_until(lambda: ward.annotations(node.name).get(names.ILL_GPUS, ""), "the GPU to be out", 30)
    assert json.loads(ill).keys() == {"1"}
    assert ward.taint(node.name) is None
    wait_until(lambda: names.HEALTH_NOTES not in ward.annotations(node.name), "the note to be done", 30)

    agent.kill()
    end(agent)
    write(log, 0, 79)
    node.start_agent(*words)
    assert ward.is_shut(node.name, 60) == "Xid-79"


def test_what_only_nvml_knows_takes_a_gpu_out(operator: OperatorProcess, ward: Ward, make_nodes, tmp_path: Path):
    """Given a GPU that had memory errors before, when it has new ones of which no log tells, it is out."""
    compiler()
    node: AgentNode
    node, _ = make_nodes(2, gpus=2)
    inject(node.gpus.path, 1, FaultSpec(uncorrected=4))
    (tmp_path / "kern.log").write_text("")
    node.start_agent("--kernel-log", str(tmp_path / "kern.log"), "--state", str(tmp_path / "state"))

    def figures() -> dict[int, dict[Figure, int]]:
        return read_figures(ward.annotations(node.name).get(names.HEALTH_FIGURES, ""))

    assert wait_until(figures, "figures", 60)[1][Figure.ECC_UNCORRECTED] == 4
    assert names.ILL_GPUS not in ward.annotations(node.name)
    inject(node.gpus.path, 1, FaultSpec(uncorrected=2))
    ill = wait_until(lambda: ward.annotations(node.name).get(names.ILL_GPUS, ""), "the GPU to be out", 30)
    assert json.loads(ill) == {"1": "ecc-uncorrected 2: new uncorrected memory errors"}
    assert ward.taint(node.name) is None
