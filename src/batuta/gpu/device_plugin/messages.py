"""The messages between the kubelet and a device plugin, version `v1beta1`, with the names of its API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batuta.gpu.protobuf import count, flag, message, messages, text, text_map, texts

VERSION: Final = "v1beta1"
REGISTER: Final = f"/{VERSION}.Registration/Register"
SERVICE: Final = f"{VERSION}.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True, slots=True)
class Empty:
    """A message without fields."""


@dataclass(frozen=True, slots=True)
class DevicePluginOptions:
    """The optional calls that the kubelet should make."""

    pre_start_required: bool = flag(1)
    preferred_allocation: bool = flag(2)


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """The registration of a plugin with the kubelet."""

    version: str = text(1)
    endpoint: str = text(2)
    """Name of its socket, in the kubelet's folder."""
    resource: str = text(3)
    options: DevicePluginOptions | None = message(4, DevicePluginOptions)  # noqa: RUF009 - it makes a field


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource."""

    id: str = text(1)
    health: str = text(2)


@dataclass(frozen=True, slots=True)
class ListAndWatchResponse:
    """All units with their health."""

    devices: tuple[Device, ...] = messages(1, Device)


@dataclass(frozen=True, slots=True)
class ContainerPreferredAllocationRequest:
    """The units that one container may get, and how many it needs."""

    available: tuple[str, ...] = texts(1)
    included: tuple[str, ...] = texts(2)
    """Units that it has already."""
    size: int = count(3)


@dataclass(frozen=True, slots=True)
class PreferredAllocationRequest:
    """The same for several containers; the kubelet sends one at a time."""

    containers: tuple[ContainerPreferredAllocationRequest, ...] = messages(1, ContainerPreferredAllocationRequest)


@dataclass(frozen=True, slots=True)
class ContainerPreferredAllocationResponse:
    """The preferred units of one container."""

    ids: tuple[str, ...] = texts(1)


@dataclass(frozen=True, slots=True)
class PreferredAllocationResponse:
    """The same for several containers."""

    containers: tuple[ContainerPreferredAllocationResponse, ...] = messages(1, ContainerPreferredAllocationResponse)


@dataclass(frozen=True, slots=True)
class ContainerAllocateRequest:
    """The units that the kubelet has chosen for one container."""

    ids: tuple[str, ...] = texts(1)


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """The same for several containers; the kubelet sends one at a time."""

    containers: tuple[ContainerAllocateRequest, ...] = messages(1, ContainerAllocateRequest)


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node in a container."""

    container_path: str = text(1)
    host_path: str = text(2)
    read_only: bool = flag(3)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device file of the node in a container."""

    container_path: str = text(1)
    host_path: str = text(2)
    permissions: str = text(3)


@dataclass(frozen=True, slots=True)
class ContainerAllocateResponse:
    """What a container gets with its units."""

    envs: Mapping[str, str] = text_map(1)
    mounts: tuple[Mount, ...] = messages(2, Mount)
    devices: tuple[DeviceSpec, ...] = messages(3, DeviceSpec)
    annotations: Mapping[str, str] = text_map(4)


@dataclass(frozen=True, slots=True)
class AllocateResponse:
    """The same for several containers."""

    containers: tuple[ContainerAllocateResponse, ...] = messages(1, ContainerAllocateResponse)
