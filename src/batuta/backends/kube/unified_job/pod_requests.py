"""What a pod template asks of a node, counted as it will be once it is a pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batuta.backends.kube.binder import requests as binder
from batuta.backends.kube.names import GPU_RESOURCES, SHARE_COMPUTE, SHARE_MEMORY
from batuta.backends.kube.objects import Container, Pod, PodSpec, Resources
from batuta.backends.kube.unified_job.quantity import parse_quantity

_PATH: Final = "spec.replicaSpec.template.spec"


@dataclass(frozen=True, slots=True)
class PodRequests:
    """The sums for one pod, and what in the template cannot be read."""

    amounts: Mapping[str, int]
    """CPUs in thousandths, memory in bytes."""
    faults: tuple[str, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """Whole GPUs by resource, those that are asked for."""
        return {name: self.amounts[name] for name in GPU_RESOURCES if name in self.amounts}

    @property
    def shares(self) -> bool:
        return any(name in self.amounts for name in (SHARE_MEMORY, SHARE_COMPUTE))


def pod_requests(pod: Mapping[str, Any]) -> PodRequests:
    """What the binder will count for a pod of this template."""
    faults: list[str] = []
    spec = PodSpec(
        containers=_containers(pod, "containers", faults),
        init_containers=_containers(pod, "initContainers", faults),
        overhead=_amounts(pod.get("overhead"), f"{_PATH}.overhead", faults),
        resources=_resources(pod, _PATH, faults),
    )
    return PodRequests(binder.pod_requests(Pod(spec=spec)), tuple(faults))


def _containers(pod: Mapping[str, Any], key: str, faults: list[str]) -> list[Container]:
    listed = pod.get(key)
    return [
        Container(
            name=str(one.get("name", "")),
            resources=_resources(one, f"{_PATH}.{key}[{index}]", faults),
            restart_policy=str(one.get("restartPolicy", "")),
        )
        for index, one in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    ]


def _resources(holder: Mapping[str, Any], path: str, faults: list[str]) -> Resources:
    """A limit without a request is the request: so the API server fills it in."""
    written = holder.get("resources")
    if not isinstance(written, dict):
        return Resources()
    limits = _amounts(written.get("limits"), f"{path}.resources.limits", faults)
    requests = _amounts(written.get("requests"), f"{path}.resources.requests", faults)
    return Resources(limits=limits, requests=limits | requests)


def _amounts(listed: Any, path: str, faults: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in (listed if isinstance(listed, dict) else {}).items():
        if parse_quantity(value) is None:
            faults.append(f"{path}.{name}: {str(value)[:60]!r} is not an amount, for example 4, 500m or 16Gi")
        else:
            found[str(name)] = str(value)
    return found
