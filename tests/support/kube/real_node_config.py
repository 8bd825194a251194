"""What the programs of a real node are told: the container runtime, the pods' network, the kubelet."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from tests.support.kube.real_node_enclosure import BRIDGE

RUNTIME_SOCKET = "/run/containerd/containerd.sock"
DOMAIN = "cluster.local"
_FIRST_POD = 16
"""Addresses below are for the machine and the node."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Where one node keeps its things, and what it is called on the network."""

    folder: Path
    """On a disk: layers of images are too large for memory."""
    network: IPv4Network
    address: str
    dns: str
    cgroup: str
    cni_programs: Path
    image: str
    """The image of every pod's first container, which does nothing but hold the namespaces."""

    def write(self) -> None:
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        self.runtime_path.write_text(self._runtime())
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni(), indent=2))
        self.kubelet_path.write_text(json.dumps(self._kubelet(), indent=2))  # JSON is YAML

    @property
    def runtime_path(self) -> Path:
        return self.folder / "containerd.toml"

    @property
    def kubelet_path(self) -> Path:
        return self.folder / "kubelet.yaml"

    def _runtime(self) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = "{self.folder / "containerd"}"
state = "/run/containerd"
[grpc]
address = "{RUNTIME_SOCKET}"
[{cri}]
sandbox_image = "{self.image}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{self.cni_programs}"
conf_dir = "{self.folder / "cni"}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

    def _cni(self) -> Mapping[str, Any]:
        """Pods are on the bridge, in one network with the node and the machine: nothing is routed."""
        addresses = {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [
                [
                    {
                        "subnet": str(self.network),
                        "rangeStart": str(self.network[_FIRST_POD]),
                        "gateway": str(self.network[1]),
                    }
                ]
            ],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": BRIDGE, "plugins": [bridge]}

    def _kubelet(self) -> Mapping[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
            # Whoever can reach this address is this machine, or a pod of the test.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "readOnlyPort": 0,
            "clusterDNS": [self.dns],
            "clusterDomain": DOMAIN,
            "resolvConf": "",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # What a device plugin offers is seen at once.
            "nodeStatusUpdateFrequency": "1s",
            "enforceNodeAllocatable": ["none"],
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.folder / "pods"),
            # A full disk of the machine is no matter of the test.
            "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
        }
