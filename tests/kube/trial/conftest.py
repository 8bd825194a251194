"""TrialRuns of a real cluster, and what their pods print."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant, prepare, refused
from tests.support.kube.unified import Jobs, manifest

Json = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator")


@pytest.fixture(scope="module")
def operator(cluster: ControlPlane, folder: Path) -> Iterator[OperatorProcess]:
    """An operator with the rights that the chart gives it."""
    prepare(cluster)
    mark = cluster.requests.mark()
    with OperatorProcess(cluster, folder, kubeconfig=grant(cluster)) as running:
        yield running
    assert refused(cluster, mark) == []


class Trials(Jobs):
    """The TrialRuns of a namespace."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self._trials = self.path.replace(names.PLURAL, names.TRIAL_PLURAL)

    def try_out(self, name: str, body: Json) -> None:
        head = {"apiVersion": names.API_VERSION, "kind": names.TRIAL_KIND, "metadata": {"name": name}}
        self.api.create(self._trials, head | {"spec": body})

    def trial(self, name: str) -> Json:
        return self.api.get(f"{self._trials}/{name}")

    def uid(self, name: str) -> str:
        """That of a trial; empty when there is none."""
        known = {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.api.items(self._trials)}
        return known.get(name, "")

    def status(self, name: str) -> Json:
        return self.trial(name).get("status", {})


class Bench(Trials):
    """A namespace with a node of four GPUs, in which trials are made. Scripts are as fast as `speeds` say."""

    def __init__(self, cluster: ControlPlane, namespace: str, kubelet: FakeKubelet, node: str) -> None:
        super().__init__(cluster, namespace)
        self.speeds: dict[int, float] = {1: 100.0, 2: 190.0, 4: 200.0}
        self._kubelet = kubelet
        self._node = node
        self._begun_s: dict[str, float] = {}

    def ends(self, name: str, within_s: float = 60.0) -> Json:
        """Lets scripts report until a trial is over; its status."""

        def look() -> Json | None:
            self.report()
            status = self.status(name)
            return status if status.get("state") in ("SUCCEEDED", "FAILED", "CANCELLED") else None

        try:
            found = wait_until(look, f"trial {name} to end", within_s, pause_s=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status(name)}") from None
        assert found is not None
        return found

    def report(self) -> None:
        """The first pod of every trial run says how far it is, and the node's agent how busy its GPUs are."""
        gpus = [{"index": gpu, "utilisation": 0.8, "memoryUsedMib": 1000 + gpu} for gpu in range(4)]
        said = json.dumps({"time": time.time(), "gpus": gpus})
        self.api.patch(f"/api/v1/nodes/{self._node}", {"metadata": {"annotations": {names.UTILISATION: said}}})
        for pod in self.api.items(self.pods_path):
            name, job = pod["metadata"]["name"], pod["metadata"]["labels"].get(names.JOB_NAME, "")
            if pod["status"]["phase"] != "Running" or not name.endswith("-0") or "-t" not in job:
                continue
            ran_s = time.monotonic() - self._begun_s.setdefault(pod["metadata"]["uid"], time.monotonic())
            per_s = self.speeds[int(job.rpartition("-t")[2])]
            done = {"step": int(ran_s * per_s / 10), "total_steps": 1000, "samples": ran_s * per_s}
            self._kubelet.print(self.namespace, name, f"{names.REPORT_PREFIX}{json.dumps(done)}\n")


@pytest.fixture
def trials(cluster: ControlPlane, namespace: str) -> Trials:
    """Without anybody who would look after them."""
    prepare(cluster)
    return Trials(cluster, namespace)


@pytest.fixture
def bench(
    cluster: ControlPlane, namespace: str, operator: OperatorProcess, add_nodes: AddNodes, tmp_path: Path
) -> Iterator[Bench]:
    with FakeKubelet(tmp_path / "kubelet") as kubelet:
        (node,) = add_nodes(1, NodeShape(gpus=4))
        kubelet.serve(cluster, [node])
        yield Bench(cluster, namespace, kubelet, node)


def template(trials: Trials, most: int = 4) -> Json:
    """A job for one GPU or more, as it stands in a TrialRun; its application is the test's own."""
    made = manifest("any", "Pods", replicas=(1, most))
    return {"metadata": {"name": f"resnet-{trials.namespace}"}, "spec": made["spec"]}
