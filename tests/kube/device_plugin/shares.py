"""Pods with shares on a real node, and a device plugin beside its kubelet."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batuta.backends.kube import names
from batuta.gpu.device_plugin.allocation import CHECKPOINT_FILE
from batuta.gpu.device_plugin.inventory import Resource
from tests.support.chart import rights_of
from tests.support.kube.api import Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.image import PYTHON
from tests.support.kube.operator_process import GROUPS, NAMESPACE, RELEASE
from tests.support.kube.processes import RunningProgram
from tests.support.kube.real_node import RealNode
from tests.support.kube.real_node_enclosure import Enclosure
from tests.support.kube.unified import Jobs
from tests.support.server_process import BATUTA
from tests.support.vgpu import VirtualNode

PROBE = "/opt/probe.py"
WITHIN_S = 60.0
KUBELET_FOLDER = "/var/lib/kubelet/device-plugins"


def plugin_account(cluster: ControlPlane) -> Path:
    """Who the plugin is: it may do what the chart lets it do, and no more."""
    values = {"fullnameOverride": RELEASE, "rbac": {"userRoles": False}, "devicePlugin": {"enabled": True}}
    cluster.apply(rights_of(values, NAMESPACE))
    name = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-device-plugin"
    return cluster.kubeconfig(name, GROUPS, NAMESPACE)


class PluginProcess:
    """`batuta device-plugin` on the real node, with virtual GPUs; it may be killed and started again."""

    def __init__(self, cluster: ControlPlane, enclosure: Enclosure, gpus: VirtualNode, user: Path) -> None:
        self._cluster, self._enclosure, self._gpus, self._user = cluster, enclosure, gpus, user
        self.log = enclosure.folder / "device-plugin.log"
        self._program: RunningProgram | None = None

    def start(self) -> None:
        own = ["--node", RealNode.name, "--mode", "preload", "--kubeconfig", str(self._user)]

        own += ["--state-dir", str(self._enclosure.folder / "share"), "--vgpu", str(self._gpus.path)]
        words = ["vgpu", "run", str(self._gpus.path), "--", str(BATUTA), "device-plugin", *own]
        self._program = self._enclosure.start(BATUTA, words, self.log)

    def is_watched_after(self, what: Callable[[], None]) -> None:
        """Does something after which the kubelet has to ask anew for the units, and waits until it has."""
        before = self._watches()
        what()
        wait_until(lambda: self._watches() >= before + len(Resource), f"the kubelet to ask; {self.log}", WITHIN_S)

    def _watches(self) -> int:
        return self.log.read_text().count("the kubelet watches") if self.log.exists() else 0

    def restart(self) -> None:
        self.kill()
        self.start()

    def kill(self) -> None:
        assert self._program is not None
        self._program.stop()

    def check(self) -> None:
        assert self._program is not None
        self._program.check()


class ShareNode:
    """The node as tests see it: what it offers, what its kubelet has given, pods that ask for shares."""

    def __init__(
        self,
        cluster: ControlPlane,
        node: RealNode,
        enclosure: Enclosure,
        gpus: VirtualNode,
        plugin: PluginProcess,
    ) -> None:
        self.cluster, self.node, self.gpus, self.plugin = cluster, node, gpus, plugin
        self._enclosure = enclosure

    def offers(self, key: str = "allocatable") -> tuple[int, int]:
        """Units of memory and of compute."""
        status = self.cluster.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return tuple(int(status[key].get(resource, 0)) for resource in Resource)  # type: ignore[return-value]

    def wait_for_offer(self, memory: int, compute: int) -> None:
        def offered() -> bool:
            self.plugin.check()
            return self.offers() == (memory, compute)

        wait_until(offered, f"the node to offer {memory} and {compute}; {self.plugin.log}", WITHIN_S)

    def given(self) -> dict[tuple[str, str], list[str]]:
        """Units by pod (its uid) and resource, as the kubelet has written down."""
        path = self._enclosure.path(f"{KUBELET_FOLDER}/{CHECKPOINT_FILE}")
        entries = json.loads(path.read_text())["Data"]["PodDeviceEntries"] or []
        return {
            (one["PodUID"], one["ResourceName"]): [unit for units in one["DeviceIDs"].values() for unit in units]
            for one in entries
        }

    def cards(self) -> list[Json]:
        """What the plugin has written on the node."""
        text = self.cluster.api.get(f"/api/v1/nodes/{self.node.name}")["metadata"]["annotations"][names.CARDS]
        return list(json.loads(text))

    @contextmanager
    def pods(self) -> Iterator["SharePods"]:
        namespace = self.cluster.new_namespace()
        try:
            yield SharePods(self, namespace)
        finally:
            self.cluster.delete_namespace(namespace)


class SharePods:
    """Pods of one namespace."""

    def __init__(self, node: ShareNode, namespace: str) -> None:
        self._node, self.namespace = node, namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def submit(self, name: str, units: int, compute: int = 0, **more: Any) -> None:
        """A pod that asks Batuta for a share; `on` binds it without asking anybody."""
        wanted = {Resource.MEMORY.value: str(units), Resource.COMPUTE.value: str(compute)}
        spec = self._spec(units, {key: value for key, value in wanted.items() if value != "0"})
        spec |= {"restartPolicy": "Never"}
        spec |= {"nodeName": more["on"]} if "on" in more else {"schedulerName": names.SCHEDULER}
        meta = {"name": name, "annotations": more.get("annotations", {})}
        self._node.cluster.api.create(self._path, {"metadata": meta, "spec": spec})

    def submit_job(self, name: str, units: int, compute: int, annotations: Json) -> str:
        """A UnifiedJob with a share, and these annotations on its pod; the pod's name once it runs."""
        sharing = {"gpuMemory": f"{units * names.SHARE_UNIT_MIB}Mi", "gpuCompute": compute}
        template = {"metadata": {"annotations": annotations}, "spec": self._spec(units, {})}
        made = Jobs(self._node.cluster, self.namespace).submit(
            name, "Pods", sharing=sharing, replica_spec={"template": template}
        )
        return next(iter(made.runs_with(1, WITHIN_S)))

    def _spec(self, units: int, limits: Json) -> Json:
        container = {
            "name": "main",
            "image": self._node.node.image,
            "command": [PYTHON, PROBE],
            "env": [{"name": "LIMIT_MIB", "value": str(units * names.SHARE_UNIT_MIB)}],
            "resources": {"limits": limits, "requests": {"cpu": "10m"}},
        }
        return {"containers": [container], "terminationGracePeriodSeconds": 1}

    def get(self, name: str) -> Json:
        return self._node.cluster.api.get(f"{self._path}/{name}")

    def card(self, name: str) -> int:
        """The GPU that the scheduler decided on."""
        return int(self.get(name)["metadata"]["annotations"][names.GPUS])

    def runs(self, name: str) -> Json:
        """Waits until its program has told what it can have."""

        def told() -> Json | None:
            self._node.plugin.check()
            pod = self.get(name)
            assert pod["status"].get("phase") != "Failed", pod["status"]
            if pod["status"].get("phase") != "Running":
                return None
            said = self._node.cluster.kubectl("logs", "-n", self.namespace, name).strip()
            return json.loads(said.splitlines()[-1]) if said.endswith("}") else None

        try:
            found = wait_until(told, f"{name} to run; {self._node.plugin.log}", WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; its status: {self.get(name)['status']}") from None
        assert found is not None
        return found

    def fails(self, name: str) -> str:
        """Waits until the kubelet has refused it; its words."""

        def refused() -> str:
            status = self.get(name)["status"]
            return f"{status.get('reason')}: {status.get('message')}" if status.get("phase") == "Failed" else ""

        return wait_until(refused, f"{name} to be refused; {self._node.plugin.log}", WITHIN_S)

    def units(self, name: str) -> dict[str, list[str]]:
        """What the kubelet has given to it, by resource."""
        uid = self.get(name)["metadata"]["uid"]
        return {resource: units for (owner, resource), units in self._node.given().items() if owner == uid}

    def delete(self, name: str) -> None:
        self._node.cluster.api.delete(f"{self._path}/{name}")
        wait_until(lambda: not self._is_there(name), f"{name} to be gone", WITHIN_S)

    def _is_there(self, name: str) -> bool:
        return any(pod["metadata"]["name"] == name for pod in self._node.cluster.api.items(self._path))
