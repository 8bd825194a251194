"""Pods that Batuta shall bind: their manifests, and what becomes of them."""

from typing import Any

from batuta.backends.kube import names
from tests.support.kube.control_plane import ControlPlane, wait_until

Manifest = dict[str, Any]


def make_pod(name: str, gpus: int = 1, cpu: str = "1", **metadata: Any) -> Manifest:
    """A pod that names Batuta as its scheduler; `metadata` has labels and annotations."""
    resources: Manifest = {"requests": {"cpu": cpu}}
    if gpus:
        resources["limits"] = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "schedulerName": names.SCHEDULER,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    }


def make_gang(name: str, members: int, gpus: int = 1, **annotations: str) -> list[Manifest]:
    """Pods that say themselves that they start together."""
    return [
        make_pod(
            f"{name}-{index}",
            gpus,
            labels={names.GANG_NAME: name},
            annotations={names.GANG_SIZE: str(members), **annotations},
        )
        for index in range(members)
    ]


class Pods:
    """The pods of one namespace, as the API server has them."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, *manifests: Manifest) -> None:
        if len(manifests) > 8:
            self.cluster.api.create_all(self.path, manifests)
            return
        for manifest in manifests:
            self.cluster.api.create(self.path, manifest)

    def delete(self, *names: str, grace_s: int = 0) -> None:
        for name in names:
            self.cluster.api.delete(f"{self.path}/{name}", gracePeriodSeconds=grace_s)

    def all(self) -> dict[str, Manifest]:
        return {pod["metadata"]["name"]: pod for pod in self.cluster.api.get(self.path)["items"]}

    def bound(self) -> dict[str, str]:
        """By pod: its node."""
        nodes = ((name, pod["spec"].get("nodeName")) for name, pod in self.all().items())
        return {name: node for name, node in nodes if node}

    def gpus(self) -> dict[str, tuple[str, str]]:
        """By pod that has some: its node, and the GPUs that it was told."""
        return {
            name: (pod["spec"]["nodeName"], pod["metadata"]["annotations"][names.GPUS])
            for name, pod in self.all().items()
            if names.GPUS in pod["metadata"].get("annotations", {})
        }

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.all().items()}

    def waiting(self, name: str) -> str:
        """What a pod says of why it is not scheduled; empty when it says nothing."""
        conditions = self.all()[name]["status"].get("conditions", ())
        said = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
        return next((one.get("message", "") for one in said if one["reason"] == "Unschedulable"), "")

    def wait_for(self, *bound: str, within_s: float = 60.0) -> None:
        wait_until(lambda: set(bound) <= self.bound().keys(), f"{bound} to be bound", within_s)

    def wait_for_phase(self, phase: str, *pods: str, within_s: float = 60.0) -> None:
        def look() -> bool:
            found = self.all()
            return all(name in found and found[name]["status"]["phase"] == phase for name in pods)

        wait_until(look, f"{pods} to be {phase}", within_s)

    def wait_for_word(self, name: str, *words: str) -> str:
        """Waits until a pod says why it waits, with these words; all that it says."""

        def look() -> str:
            said = self.waiting(name)
            return said if all(word in said for word in words) else ""

        return wait_until(look, f"{name} to say {words}", 60.0)
