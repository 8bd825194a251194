"""Fake nodes with GPUs: complete objects, status and all, ready at the moment they are created."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.kube.flags import FAKE_NODE

GPU = "nvidia.com/gpu"
_NODE_CONDITIONS = {
    "Ready": ("True", "KubeletReady"),
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
}
_SINCE = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What one fake node has. Racks and zones are filled in order: so many nodes each."""

    gpus: int = 8
    product: str = "NVIDIA-A100-SXM4-80GB"
    gpu_memory_mib: int = 81_920
    cpus: int = 96
    memory_gib: int = 1_024
    pods: int = 250
    nodes_per_rack: int = 8
    racks_per_zone: int = 4
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    """More than the above: `{"example.com/nic": "2"}`."""


def node(name: str, number: int = 0, shape: NodeShape | None = None) -> dict[str, Any]:
    """A Node object; its number among its like says in which rack and zone it stands."""
    shape = shape or NodeShape()
    has = _capacity(shape)
    key, value = FAKE_NODE
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": _labels(name, number, shape),
            "annotations": {key: value, **shape.annotations},
        },
        "spec": {"taints": [dict(taint) for taint in shape.taints]},
        "status": {
            "capacity": has,
            "allocatable": has,
            "addresses": [
                {"type": "InternalIP", "address": _address(number)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [_condition(kind, *said) for kind, said in _NODE_CONDITIONS.items()],
            "nodeInfo": _NODE_INFO,
        },
    }


def _capacity(shape: NodeShape) -> dict[str, str]:
    has = {"cpu": f"{shape.cpus}", "memory": f"{shape.memory_gib}Gi", "pods": f"{shape.pods}"}
    has["ephemeral-storage"] = "1Ti"
    if shape.gpus:
        has[GPU] = f"{shape.gpus}"
    return {**has, **shape.capacity}


def _labels(name: str, number: int, shape: NodeShape) -> dict[str, str]:
    rack = number // shape.nodes_per_rack
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "region-0",
        "topology.kubernetes.io/zone": f"zone-{rack // shape.racks_per_zone}",
        "topology.kubernetes.io/rack": f"rack-{rack}",
    }
    if shape.gpus:
        labels["nvidia.com/gpu.present"] = "true"
        labels["nvidia.com/gpu.product"] = shape.product
        labels["nvidia.com/gpu.count"] = f"{shape.gpus}"
        labels["nvidia.com/gpu.memory"] = f"{shape.gpu_memory_mib}"
    return {**labels, **shape.labels}


def _address(number: int) -> str:
    return f"10.{128 + number // 65_536}.{number // 256 % 256}.{number % 256}"


def _condition(kind: str, status: str, reason: str) -> dict[str, str]:
    times = {"lastHeartbeatTime": _SINCE, "lastTransitionTime": _SINCE}
    return {"type": kind, "status": status, "reason": reason, "message": "a fake node", **times}


_NODE_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "osImage": "fake",
    "kernelVersion": "6.0.0",
    "kubeletVersion": "v1.36.3",
    "kubeProxyVersion": "",
    "containerRuntimeVersion": "fake://1.0",
    "bootID": "",
    "machineID": "",
    "systemUUID": "",
}
