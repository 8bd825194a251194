"""An operator that sends traces and writes structured lines: the same ids in both, for jobs of a cluster."""

import json
from pathlib import Path

from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, prepare
from tests.support.kube.unified import Jobs
from tests.support.otlp_receiver import attributes_of, receiving


def test_a_job_of_a_cluster_is_traced_and_logged(
    cluster: ControlPlane, namespace: str, add_nodes: AddNodes, tmp_path: Path
) -> None:
    prepare(cluster)
    add_nodes(1, NodeShape(gpus=2))
    with receiving() as receiver:
        telemetry = {"otlpUrl": receiver.url}
        with OperatorProcess(cluster, tmp_path, telemetry=telemetry, namespaces=[namespace]) as operator:
            Jobs(cluster, namespace).submit("train", "Pods", replicas=2).runs_with(2)
            assert receiver.wait_for_span("start")
            sent = 'batuta_otlp_spans_total{outcome="sent"}'
            wait_until(lambda: operator.metrics().get(sent, 0) > 0, "spans to be counted")
        lines = [json.loads(line) for line in operator.log.read_text().splitlines()]
    (start,) = [attributes_of(span) for span in receiver.spans() if span["name"] == "start"]
    assert start["batuta.job"] == f"{namespace}/train"
    assert (start["batuta.gpus"], start["batuta.outcome"]) == (2, "running")
    (command,) = [line for line in lines if line["event"] == "command"]
    assert (command["job"], command["kind"]) == (start["batuta.job"], "start")
    assert command["cycle"] == start["batuta.cycle"]
    assert any(line["event"] == "leading with policy elastic-fifo" for line in lines)
