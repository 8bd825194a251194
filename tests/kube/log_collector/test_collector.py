"""The chart's files of the log collector, in a real OpenTelemetry collector with the chart's rights.

Pods are objects of a real API server, their log files are written here as containerd writes them. The Loki is
a stand-in: see tests/support/loki_stand_in.py.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from batuta.backends.kube import names
from batuta.client.loki import ArchivedJob, Loki, LokiAddress, archived_output
from tests.kube.conftest import AddNodes
from tests.support.chart import CHART, rights_of
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.ports import free_ports
from tests.support.kube.programs import program, why_not
from tests.support.loki_stand_in import LokiStandIn

HOME = "kube-system"
USER = f"system:serviceaccount:{HOME}:batuta-log-collector"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{HOME}", "system:authenticated")
BASE, ALL_PODS = "collector.yaml", "all-pods.yaml"
JOURNAL, KERNEL_FILES = "kernel-journal.yaml", "kernel-files.yaml"
TENANT, TOKEN = "tenant.yaml", "token.yaml"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
JOURNALCTL = """\
#!/bin/sh
echo "$@" > "$0.asked"
printf '%s\\n' '{"MESSAGE":"MESSAGE_HERE","__REALTIME_TIMESTAMP":"1763300000000000","__CURSOR":"c1"}'
exec sleep 600
"""


@pytest.fixture(scope="module")
def otelcol() -> Path:
    if (problem := why_not(["otelcol"])) is not None:
        if os.environ.get("CI"):
            pytest.fail(f"no otelcol, and CI must have it: {problem}", pytrace=False)
        pytest.skip(f"no otelcol: {problem}")
    return program("otelcol")


@pytest.fixture(scope="module")
def kubeconfig(cluster: ControlPlane) -> Path:
    """Of somebody with the rights that the chart gives the collector."""
    values = {"logCollector": {"enabled": True, "lokiUrl": "http://loki"}}
    for one in rights_of(values, HOME):
        if one["metadata"]["name"] == "batuta-log-collector":
            cluster.apply(one)
    return cluster.kubeconfig(USER, GROUPS)


@pytest.fixture
def loki() -> Iterator[LokiStandIn]:
    with LokiStandIn() as running:
        yield running


@dataclass(frozen=True)
class Node:
    """A node's log files, and a collector that reads them."""

    name: str
    folder: Path
    otelcol: Path
    kubeconfig: Path
    loki: LokiStandIn

    def print(self, pod: dict[str, object], container: str, *lines: str) -> None:
        """Lines as containerd writes them, a thousandth of a second apart."""
        meta = pod["metadata"]
        assert isinstance(meta, dict)
        place = self.folder / "pods" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        place.mkdir(parents=True, exist_ok=True)
        with (place / "0.log").open("a") as file:
            for line in lines:
                moment = time.time_ns()
                date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 10**9))
                file.write(f"{date}.{moment % 10**9:09}Z stdout F {line}\n")
                time.sleep(0.001)

    @contextmanager
    def collector(self, *files: str) -> Iterator[None]:
        """Runs it with files of the chart as they are, and one that says where things are here."""
        (self.folder / "here.yaml").write_text(yaml.safe_dump(self._here(files)))
        chosen = [CHART / "collector" / name for name in files]
        words = [f"--config={path}" for path in (*chosen, self.folder / "here.yaml")]
        env = {
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": self.name,
            "POD_IP": "127.0.0.1",
            "LOKI_URL": self.loki.url,
            "LOKI_TENANT": "ml",
            "LOKI_TOKEN": "hush",
        }
        with (self.folder / "said").open("ab") as said:
            child = subprocess.Popen(
                [self.otelcol, *words], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        try:
            yield
            assert child.poll() is None, (self.folder / "said").read_text()
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(10)

    def _here(self, files: Sequence[str]) -> dict[str, object]:
        receivers: dict[str, object] = {"filelog/pods": {"include": [f"{self.folder}/pods/*/*/*.log"]}}
        if JOURNAL in files:
            script = self.folder / "journalctl"
            script.write_text(JOURNALCTL.replace("MESSAGE_HERE", XID))
            script.chmod(0o755)
            receivers["journald/kernel"] = {"root_path": "", "journalctl_path": str(script)}
        if KERNEL_FILES in files:
            receivers["filelog/kernel"] = {"include": [f"{self.folder}/kern.log"], "start_at": "beginning"}
        return {
            "extensions": {
                "file_storage": {"directory": str(self.folder / "state")},
                "health_check": {"endpoint": f"127.0.0.1:{free_ports(1)[0]}"},
            },
            "receivers": receivers,
            "processors": {"k8sattributes": {"auth_type": "kubeConfig"}},
            "exporters": {
                "otlp_http/loki": {
                    "encoding": "json",
                    "compression": "none",
                    "retry_on_failure": {"initial_interval": "200ms"},
                }
            },
            "service": {"telemetry": {"metrics": {"level": "none"}}},
        }


@pytest.fixture
def node(otelcol: Path, kubeconfig: Path, add_nodes: AddNodes, loki: LokiStandIn, tmp_path: Path) -> Node:
    (name,) = add_nodes(1)
    return Node(name, tmp_path, otelcol, kubeconfig, loki)


@pytest.fixture
def add_pod(cluster: ControlPlane, namespace: str, node: Node) -> Callable[..., dict[str, object]]:
    def add(name: str, **labels: str) -> dict[str, object]:
        spec = {"nodeName": node.name, "containers": [{"name": "main", "image": "x"}]}
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        return dict(cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod))

    return add


def member(job: str, **labels: str) -> dict[str, str]:
    return {names.JOB_NAME: job, names.START: "1", **labels}


def printed(loki: LokiStandIn, namespace: str, job: str, rank: int = 0) -> str:
    """What `batuta logs` makes of it."""
    asked = ArchivedJob(namespace, job, rank, time.time() - 3600, time.time() + 60)
    with Loki(LokiAddress.of(loki.url)) as reader:
        return b"".join(archived_output(reader, asked, None, note=pytest.fail)).decode()


def test_lines_of_jobs_arrive_once_with_their_replica_across_restarts(
    node: Node, add_pod: Callable[..., dict[str, object]], loki: LokiStandIn, namespace: str
):
    """Given a Loki that is away at first and a collector that starts twice, nothing is lost or doubled."""
    worker = add_pod("train-0", **member("train", **{names.REPLICA_INDEX: "0"}))
    indexed = add_pod("jobs-1", **member("jobs", **{"batch.kubernetes.io/job-completion-index": "1"}))
    launcher = add_pod("mpi-l", **member("mpi", **{names.ROLE: "launcher"}))
    own = add_pod("operator", **{"app.kubernetes.io/part-of": "batuta"})
    stranger = add_pod("stranger")
    loki.refuse_push = [503, 429]
    node.print(worker, "main", "one", "two")
    node.print(indexed, "main", "index one")
    node.print(launcher, "main", "[0] step 1")
    node.print(own, "operator", '{"msg": "leads"}')
    node.print(stranger, "main", "not ours")
    with node.collector(BASE, TENANT, TOKEN):
        wait_until(lambda: printed(loki, namespace, "train") == "one\ntwo\n", "the first lines")
        wait_until(lambda: printed(loki, namespace, "jobs", 1) == "index one\n", "those of a Job's pod")
        wait_until(lambda: printed(loki, namespace, "mpi") == "[0] step 1\n", "those of a launcher")
    node.print(worker, "main", "three")
    with node.collector(BASE, TENANT, TOKEN):
        node.print(worker, "main", "four")
        wait_until(lambda: "four" in printed(loki, namespace, "train"), "what came later")
    assert printed(loki, namespace, "train") == "one\ntwo\nthree\nfour\n"
    assert loki.refuse_push == []
    assert loki.push_headers[0]["X-Scope-Orgid"] == "ml"
    assert loki.push_headers[0]["Authorization"] == "Bearer hush"
    assert any(line.labels["service_name"] == "operator" for line in loki.kept)
    assert not any(line.text == "not ours" for line in loki.kept)


def test_the_kernel_log_and_all_pods_can_be_asked_for(
    node: Node, add_pod: Callable[..., dict[str, object]], loki: LokiStandIn, namespace: str
):
    node.print(add_pod("stranger"), "main", "anybody's")
    with node.collector(BASE, ALL_PODS, JOURNAL):
        wait_until(lambda: {"anybody's", XID} <= {line.text for line in loki.kept}, "both to arrive")
    kernel = next(line for line in loki.kept if line.text == XID)
    assert (kernel.labels["service_name"], kernel.labels["k8s_node_name"]) == ("kernel", node.name)
    assert kernel.time_ns == 1763300000000000000
    asked = (node.folder / "journalctl.asked").read_text()
    assert "_TRANSPORT=kernel" in asked
    assert "--follow" in asked


def test_of_a_syslog_file_only_the_kernels_lines_are_kept(node: Node, loki: LokiStandIn):
    kept, dropped = f"Nov 16 19:00:01 n kernel: [ 12.3] {XID}", "Nov 16 19:00:00 n sshd[1]: session opened"
    (node.folder / "kern.log").write_text(f"{dropped}\n{kept}\n")
    with node.collector(BASE, KERNEL_FILES):
        wait_until(lambda: loki.kept, "a line to arrive")
    assert [(line.text, line.labels["service_name"]) for line in loki.kept] == [(kept, "kernel")]


@pytest.mark.parametrize("kernel", [JOURNAL, KERNEL_FILES])
def test_the_collector_finds_nothing_wrong_with_the_files(otelcol: Path, kernel: str, tmp_path: Path):
    """All files together; where the node's files are in the chart's pods is a folder here."""
    here = tmp_path / "here.yaml"
    host = {"receivers": {"journald/kernel": {"root_path": str(tmp_path)}}} if kernel == JOURNAL else {}
    here.write_text(yaml.safe_dump({"extensions": {"file_storage": {"directory": str(tmp_path)}}, **host}))
    chosen = (BASE, ALL_PODS, kernel, TENANT, TOKEN)
    words = [f"--config={path}" for path in (*(CHART / "collector" / name for name in chosen), here)]
    env = {
        "POD_IP": "127.0.0.1",
        "NODE_NAME": "n",
        "LOKI_URL": "http://loki",
        "LOKI_TENANT": "t",
        "LOKI_TOKEN": "x",
    }
    done = subprocess.run(
        [otelcol, "validate", *words], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
