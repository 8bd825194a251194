"""The operator under the chart's rights, with the chart's configuration: it is refused nothing."""

import http.client
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from batuta.backends.kube.install.chart import read_definitions
from tests.support.chart import alerts, operator_config_of, rights_of, tls_objects_of
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.ports import free_ports

HOME = "batuta-running"
USER = f"system:serviceaccount:{HOME}:batuta-operator"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{HOME}", "system:authenticated")


@dataclass(frozen=True)
class Running:
    """An operator as the Deployment starts it, but for where it finds the cluster."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    mark: int
    cluster: ControlPlane

    def ask(self, path: str) -> tuple[int, str]:
        """Over TLS, which believes the published authority alone."""
        published = self.cluster.api.get(f"/api/v1/namespaces/{HOME}/configmaps/batuta-ca").get("data", {})
        trust = ssl.create_default_context(cadata=published.get("ca.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=trust)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()


@pytest.fixture
def operator(cluster: ControlPlane, tmp_path: Path) -> Iterator[Running]:
    cluster.new_namespace(HOME)
    rights = [*rights_of({}, HOME), *tls_objects_of({}, HOME)]
    cluster.apply([*read_definitions(), *rights])
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/unifiedjobs.batuta.dev")
    config = yaml.safe_load(operator_config_of({"openMetrics": True}, HOME))
    (port,) = free_ports(1)
    config["api"] |= {"listen": "127.0.0.1", "port": port}
    config["stateDir"] = str(tmp_path / "state")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    words = ("--config", tmp_path / "config.yaml", "--kubeconfig", cluster.kubeconfig(USER, GROUPS, HOME))
    command = [sys.executable, "-m", "batuta", "operator", *map(str, words), "--namespace", HOME]
    mark, log = cluster.requests.mark(), tmp_path / "operator.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield Running(process, port, log, mark, cluster)
    finally:
        process.kill()
        process.wait()
        for one in rights:
            place = ("--namespace", one["metadata"]["namespace"]) if "namespace" in one["metadata"] else ()
            cluster.kubectl("delete", *place, one["kind"], one["metadata"]["name"])
        cluster.delete_namespace(HOME)


def job(name: str, kind: str) -> dict[str, Any]:
    container = {"name": "train", "image": "none", "command": ["train"]}
    replicas = {"minReplicas": 2, "maxReplicas": 2, "gpusPerReplica": 1}
    return {
        "apiVersion": "batuta.dev/v1alpha1",
        "kind": "UnifiedJob",
        "metadata": {"name": name},
        "spec": {
            "jobType": kind,
            "queueName": "default",
            "replicaSpec": replicas | {"template": {"spec": {"containers": [container]}}},
        },
    }


def test_it_is_refused_nothing_while_it_schedules(operator: Running, cluster: ControlPlane, namespace: str, add_nodes):
    # given GPUs, an operator that leads, jobs of several kinds, and a pod of its own
    add_nodes(2, NodeShape(gpus=4))
    wait_until(lambda: "batuta_operator_leader 1" in operator.ask("/metrics")[1], "it to lead")
    jobs = f"/apis/batuta.dev/v1alpha1/namespaces/{namespace}/unifiedjobs"
    for name, kind in (("torch", "TorchElastic"), ("pods", "Pods"), ("batch", "Job")):
        cluster.api.create(jobs, job(name, kind))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    lone = {"schedulerName": "batuta", "containers": [{"name": "main", "image": "none"}]}
    cluster.api.create(pods, {"metadata": {"name": "lone"}, "spec": lone})

    # when all have their children, some of them run, and one is deleted
    def names(phase: str = "") -> set[str]:
        found = {one["metadata"]["name"]: one["status"]["phase"] for one in cluster.api.items(pods)}
        return {name for name in found if phase in ("", found[name])}

    children = {"lone", "torch-0", "torch-1", "pods-0", "pods-1"}
    wait_until(lambda: children <= names(), "the children of all jobs")
    wait_until(lambda: cluster.api.items(f"/apis/batch/v1/namespaces/{namespace}/jobs"), "the Job of a job")
    wait_until(lambda: "lone" in names("Running") and len(names("Running")) > 1, "pods to run")
    cluster.api.delete(f"{jobs}/torch")
    wait_until(lambda: not {"torch-0", "torch-1"} & names(), "its pods to go")

    # then nothing that it asked for was forbidden
    asked = cluster.requests.since(operator.mark, USER)
    assert len(asked) > 20
    refused = [(one.verb, one.resource, one.namespace, one.name) for one in asked if one.is_forbidden]
    assert refused == [], operator.log.read_text()

    # and its alerts look at metrics that it has
    metrics = set(re.findall(r"^(batuta_\w+)", operator.ask("/metrics")[1], re.MULTILINE))
    wanted = set(re.findall(r"batuta_\w+", str([alert["expr"] for alert in alerts("")])))
    assert wanted <= metrics
    assert [operator.ask(path)[0] for path in ("/healthz", "/readyz")] == [200, 200]

    # and it ends when the kubelet asks it to
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(30) == 0
