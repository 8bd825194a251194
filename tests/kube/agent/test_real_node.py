"""An agent beside a real kubelet and containerd: the control groups, the pods and the processes are real."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.gpu.native_libraries import VGPU_VARIABLE
from batuta.gpu.pod_owners import POD_RESOURCES_SOCKET, query_kubelet
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.flags import Options
from tests.support.kube.image import PYTHON, write_image
from tests.support.kube.programs import why_not
from tests.support.kube.real_node import RealNode, why_no_node
from tests.support.kube.real_node_enclosure import Enclosure
from tests.support.server_process import BATUTA
from tests.support.vgpu import VirtualNode, libraries

IMAGE = "batuta.test/busy:1"
PROGRAM = "/opt/busy.py"
WITHIN_S = 90.0


REQUESTS = {
    "besteffort": {},
    "burstable": {"resources": {"requests": {"cpu": "10m"}}},
    "guaranteed": {"resources": {"limits": {"cpu": "100m", "memory": "256Mi"}}},
}


@cache
def _problem() -> str | None:
    return why_no_node() or why_not(["kubelet"])


@dataclass
class Place:
    """A real node with a virtual GPU, and the agent on it."""

    cluster: ControlPlane
    node: RealNode
    gpus: VirtualNode
    log: Path
    kubelet_socket: Path

    def told(self, namespace: str) -> dict[str, tuple[Any, Any]]:
        """What the agent tells of each pod and of its job."""
        pods = self.cluster.api.items(f"/api/v1/namespaces/{namespace}/pods")
        names_of = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
        jobs = self._said(names.PODS_USAGE).get("jobs", ())
        told = ((uid, usage, one["job"]) for one in jobs for uid, usage in one["pods"].items())
        return {names_of[uid]: (usage, job) for uid, usage, job in told if uid in names_of}

    def all_told(self, namespace: str) -> dict[str, tuple[Any, Any]]:
        """The same, once it is told of all pods."""
        found = self.told(namespace)
        return found if found.keys() == REQUESTS.keys() else {}

    def owners(self) -> int:
        """How many pods have the GPU, by the node's annotation."""
        return self._said(names.UTILISATION)["gpus"][0]["owners"]

    def _said(self, name: str) -> Any:
        node = self.cluster.api.get(f"/api/v1/nodes/{self.node.name}")
        return json.loads(node["metadata"].get("annotations", {}).get(name, "{}"))

    def submit(self, namespace: str, name: str, **more: Any) -> None:
        """A pod that keeps the GPU busy. It sees the node's processes: a virtual GPU goes by their pids."""
        folder, driver = self.gpus.path.parent, libraries()
        env = {"CUDA_LIBRARY": f"{driver}/libcuda.so.1", VGPU_VARIABLE: str(self.gpus.path)}
        mounts = {"gpu": folder, "driver": driver}
        container = {
            "name": "main",
            "image": self.node.image,
            "command": [PYTHON, PROGRAM],
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "volumeMounts": [{"name": key, "mountPath": str(path)} for key, path in mounts.items()],
            **more,
        }
        spec = {
            "nodeName": self.node.name,
            "hostPID": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": key, "hostPath": {"path": str(path)}} for key, path in mounts.items()],
        }
        meta = {"name": name, "labels": {"batuta.dev/job-name": f"job-{name}"}}
        self.cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})


@pytest.fixture(scope="module")
def place(programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if problem := _problem():
        pytest.skip(f"no real node: {problem}")
    folder = tmp_path_factory.mktemp("agent")
    write_image(folder / "image.tar", IMAGE, [], {PROGRAM: Path(__file__).with_name("busy.py")})
    gpus = VirtualNode.make(folder, gpus=1, model="A100")
    with Enclosure(tmp_path_factory.mktemp("agent-node")) as enclosure:
        options = Options(controllers=True, kwok=False, address=str(enclosure.gateway))
        programs_for(options)
        with (
            ControlPlane(tmp_path_factory.mktemp("agent-cluster"), options) as cluster,
            RealNode(cluster, enclosure, folder / "image.tar", IMAGE, 1) as node,
        ):
            user = cluster.kubeconfig("agent", ["system:masters"])
            own = ["agent", "--node", node.name, "--kubeconfig", str(user)]
            timing = ["--interval", "0.5", "--report-every", "2"]
            log = enclosure.folder / "agent.log"
            enclosure.start(BATUTA, ["vgpu", "run", str(gpus.path), "--", str(BATUTA), *own, *timing], log)
            yield Place(cluster, node, gpus, log, enclosure.path(str(POD_RESOURCES_SOCKET)))


def test_processes_in_real_containers_are_their_pods(place: Place):
    namespace = place.cluster.new_namespace()
    # given a pod of each class of service, all of them on the one GPU
    for name, more in REQUESTS.items():
        place.submit(namespace, name, **more)
    # then the agent finds each of them by its control groups
    found = wait_until(lambda: place.all_told(namespace), f"what is told; {place.log}", WITHIN_S)
    for name, (usage, job) in found.items():
        assert job["name"] == f"job-{name}"
        assert (usage["gpus"], usage["memoryMib"]) == ([0], 3072)
    assert place.owners() == len(REQUESTS)
    # and the kubelet says that none of them was given a GPU as a whole
    assert query_kubelet(place.kubelet_socket) == {}
    # when one of them is gone, then the others keep theirs
    place.cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/besteffort")
    wait_until(lambda: place.owners() == len(REQUESTS) - 1, "one to go", WITHIN_S)
    assert place.told(namespace)["burstable"][0]["gpus"] == [0]
    place.cluster.delete_namespace(namespace)
