"""What the kubelet and a device plugin say to each other: the messages of `v1beta1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batuta.gpu.wire import count, flag, message, messages, text, text_map, texts

VERSION: Final = "v1beta1"
REGISTER: Final = f"/{VERSION}.Registration/Register"
SERVICE: Final = f"{VERSION}.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing to say."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the kubelet should ask of a plugin besides Allocate."""

    pre_start_required: bool = flag(1)
    preferred_allocation: bool = flag(2)


@dataclass(frozen=True, slots=True)
class Registration:
    """A plugin's first word."""

    version: str = text(1)
    endpoint: str = text(2)
    """Name of its socket, in the kubelet's folder."""
    resource: str = text(3)
    options: Options | None = message(4, Options)  # noqa: RUF009 - it makes a field


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource."""

    id: str = text(1)
    health: str = text(2)


@dataclass(frozen=True, slots=True)
class DeviceList:
    """All units there are, and how each is."""

    devices: tuple[Device, ...] = messages(1, Device)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which units would be best for one container?"""

    available: tuple[str, ...] = texts(1)
    included: tuple[str, ...] = texts(2)
    """Units that it has already."""
    size: int = count(3)


@dataclass(frozen=True, slots=True)
class PreferredRequest:
    """The same for several containers; the kubelet asks for one at a time."""

    containers: tuple[Preference, ...] = messages(1, Preference)


@dataclass(frozen=True, slots=True)
class Preferred:
    """The units that would be best for one container."""

    ids: tuple[str, ...] = texts(1)


@dataclass(frozen=True, slots=True)
class PreferredResponse:
    """The same for several containers."""

    containers: tuple[Preferred, ...] = messages(1, Preferred)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The units that the kubelet has chosen for one container."""

    ids: tuple[str, ...] = texts(1)


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """The same for several containers; the kubelet asks for one at a time."""

    containers: tuple[Wanted, ...] = messages(1, Wanted)


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node in a container."""

    container_path: str = text(1)
    host_path: str = text(2)
    read_only: bool = flag(3)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file of the node in a container."""

    container_path: str = text(1)
    host_path: str = text(2)
    permissions: str = text(3)


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a container gets with its units."""

    envs: Mapping[str, str] = text_map(1)
    mounts: tuple[Mount, ...] = messages(2, Mount)
    devices: tuple[DeviceNode, ...] = messages(3, DeviceNode)
    annotations: Mapping[str, str] = text_map(4)


@dataclass(frozen=True, slots=True)
class AllocateResponse:
    """The same for several containers."""

    containers: tuple[Allocated, ...] = messages(1, Allocated)
