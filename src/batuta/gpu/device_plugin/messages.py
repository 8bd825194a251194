"""The messages between the kubelet and a device plugin, version `v1beta1`, with the names of its API.

The place of a field is its number in the protocol: see `batuta.gpu.protobuf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

VERSION: Final = "v1beta1"
REGISTER: Final = f"/{VERSION}.Registration/Register"
SERVICE: Final = f"{VERSION}.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


class Empty(NamedTuple):
    """A message without fields."""


class DevicePluginOptions(NamedTuple):
    """The optional calls that the kubelet should make."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


class RegisterRequest(NamedTuple):
    """The registration of a plugin with the kubelet."""

    version: str = ""
    endpoint: str = ""  # name of its socket, in the kubelet's folder
    resource: str = ""
    options: DevicePluginOptions | None = None


class Device(NamedTuple):
    """One unit of a resource."""

    id: str = ""
    health: str = ""


class ListAndWatchResponse(NamedTuple):
    """All units with their health."""

    devices: tuple[Device, ...] = ()


class ContainerPreferredAllocationRequest(NamedTuple):
    """The units that one container may get, and how many it needs."""

    available: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # units that it has already
    size: int = 0


class PreferredAllocationRequest(NamedTuple):
    """The same for several containers; the kubelet sends one at a time."""

    containers: tuple[ContainerPreferredAllocationRequest, ...] = ()


class ContainerPreferredAllocationResponse(NamedTuple):
    """The preferred units of one container."""

    ids: tuple[str, ...] = ()


class PreferredAllocationResponse(NamedTuple):
    """The same for several containers."""

    containers: tuple[ContainerPreferredAllocationResponse, ...] = ()


class ContainerAllocateRequest(NamedTuple):
    """The units that the kubelet has chosen for one container."""

    ids: tuple[str, ...] = ()


class AllocateRequest(NamedTuple):
    """The same for several containers; the kubelet sends one at a time."""

    containers: tuple[ContainerAllocateRequest, ...] = ()


class Mount(NamedTuple):
    """A file or folder of the node in a container."""

    container_path: str = ""
    host_path: str = ""
    read_only: bool = False


class DeviceSpec(NamedTuple):
    """A device file of the node in a container."""

    container_path: str = ""
    host_path: str = ""
    permissions: str = ""


class ContainerAllocateResponse(NamedTuple):
    """What a container gets with its units."""

    envs: Mapping[str, str] = MappingProxyType({})
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = MappingProxyType({})


class AllocateResponse(NamedTuple):
    """The same for several containers."""

    containers: tuple[ContainerAllocateResponse, ...] = ()
