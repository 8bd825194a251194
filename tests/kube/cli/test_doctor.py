"""`batuta doctor` at a real cluster: without an operator, with a dead one, and with things left over."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from batuta.backends.kube import names
from tests.kube.cli.command_line import Batuta, Said, batuta
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import prepare
from tests.support.kube.ports import free_ports

LABELS = {"app.kubernetes.io/part-of": "batuta", "app.kubernetes.io/component": "operator"}


@pytest.fixture
def doctor(cluster: ControlPlane, namespace: str) -> Batuta:
    """Somebody who may look at everything; no operator runs."""
    prepare(cluster)
    return Batuta(cluster.kubeconfig_path, namespace)


def by_check(said: Said) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in json.loads(said.out)}


def deployment(namespace: str, name: str) -> dict[str, Any]:
    """An operator that is installed and never gets a pod, for nobody schedules it."""
    pod = {"containers": [{"name": "operator", "image": "none"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": LABELS},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def stale_lease(namespace: str, name: str) -> dict[str, Any]:
    """Of an operator that was killed an hour ago."""
    then = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - 3600))
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"holderIdentity": "dead-1", "leaseDurationSeconds": 15, "renewTime": then},
    }


def test_without_an_operator_and_nodes_it_says_what_to_install(doctor: Batuta):
    said = doctor("doctor", "--json")
    assert said.code == 1
    found = by_check(said)
    assert found["API server"]["severity"] == found["clock"]["severity"] == "ok"
    assert found["definitions"]["severity"] == "ok"
    assert (found["operator"]["severity"], found["operator"]["fix"]) == ("error", "batuta install --apply")
    table = doctor("doctor")
    assert table.code == 1
    assert "none is installed" in table.out


def test_an_operator_that_died_and_a_pod_of_a_job_that_is_gone(
    doctor: Batuta, cluster: ControlPlane, namespace: str, add_nodes: AddNodes
):
    (node,) = add_nodes(1, NodeShape(gpus=4))
    cluster.apply([deployment(namespace, "batuta-operator"), stale_lease(namespace, "batuta-operator")])
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "ghost-0",
            "namespace": namespace,
            "labels": {names.JOB_NAME: "ghost"},
            # The garbage collector does not know this group's kind, so the pod stays.
            "ownerReferences": [
                {
                    "apiVersion": "gone.batuta.dev/v1",
                    "kind": names.KIND,
                    "name": "ghost",
                    "uid": "no-such-uid",
                }
            ],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
    }
    cluster.apply(pod)
    said = doctor("doctor", "--json")
    found = by_check(said)
    assert said.code == 1
    assert (found["operator"]["severity"], "none of 1 is ready" in found["operator"]["found"]) == (
        "error",
        True,
    )
    assert found["leader"]["severity"] == "error"
    assert "dead-1 lasts 15 s and was renewed 36" in found["leader"]["found"]
    assert found["leaked quota"]["severity"] == "error"
    assert f"pod {namespace}/ghost-0" in found["leaked quota"]["found"]
    assert "4 GPUs" in found["nodes"]["found"]


def test_a_node_that_does_not_answer(doctor: Batuta, cluster: ControlPlane, namespace: str, add_nodes: AddNodes):
    (node,) = add_nodes(1, NodeShape(gpus=4))
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}

    def look() -> dict[str, str] | None:
        # KWOK says that its nodes are ready, whenever it gets to it.
        patch = json.dumps({"status": {"conditions": [condition]}})
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
        found = by_check(doctor("doctor", "--json"))["heartbeats"]
        return found if node in found["found"] else None

    found = wait_until(look, f"{node} to be missed")
    assert found is not None
    assert (found["severity"], bool(found["fix"])) == ("error", True)


def test_who_may_list_nothing_is_told_which_rights_are_missing(cluster: ControlPlane, namespace: str):
    prepare(cluster)
    nobody = Batuta(cluster.kubeconfig("nobody", (), namespace))
    said = nobody("doctor", "--json")
    found = by_check(said)
    assert said.code == 0
    assert found["rights"]["severity"] == "note"
    assert "nodes" in found["rights"]["found"]
    assert "operator" not in found


def test_a_cluster_that_does_not_answer_is_one_finding(tmp_path: Path):
    (port,) = free_ports(1)
    said = batuta("--kubeconfig", str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")), "doctor", "--json")
    (finding,) = json.loads(said.out)
    assert (said.code, finding["check"], finding["severity"]) == (1, "API server", "error")


@pytest.mark.parametrize("skew_s", [-3600, 3600])
def test_an_api_server_whose_clock_differs(tmp_path: Path, skew_s: int):
    with skewed_api_server(skew_s) as url:
        said = batuta("--kubeconfig", str(kubeconfig(tmp_path, url)), "doctor", "--json")
    clock = by_check(said)["clock"]
    assert clock["severity"] == "warning"
    assert "by 36" in clock["found"] or "by 359" in clock["found"]


def test_home_and_a_cluster_are_not_both(doctor: Batuta, tmp_path: Path):
    assert doctor("doctor", "--home", str(tmp_path)).code == 2


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    return path


@contextmanager
def skewed_api_server(skew_s: float) -> Iterator[str]:
    """An API server that has nothing, and the wrong time."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = b'{"major": "1", "minor": "36"}' if self.path == "/version" else b'{"items": []}'
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() + skew_s, usegmt=True))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
