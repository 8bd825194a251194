"""Which pod has which GPU, as the kubelet says: its podresources interface, v1, over a unix socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from batuta.gpu.wire import Malformed, decode, messages, text, texts

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST: Final = "/v1.PodResourcesLister/List"
_GPU: Final = "GPU-"
_COPY: Final = "::"
"""Where a device plugin gives a GPU to several, it puts a number behind this."""

Given: TypeAlias = Mapping[str, tuple[str, str]]
"""By UUID of a GPU: namespace and name of the one pod that has it."""


class NoKubelet(Exception):
    """The kubelet does not answer."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Devices of one resource."""

    resource: str = text(1)
    ids: tuple[str, ...] = texts(2)


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """What a container has."""

    name: str = text(1)
    devices: tuple[ContainerDevices, ...] = messages(2, ContainerDevices)


@dataclass(frozen=True, slots=True)
class PodResources:
    """What a pod has."""

    name: str = text(1)
    namespace: str = text(2)
    containers: tuple[ContainerResources, ...] = messages(3, ContainerResources)


@dataclass(frozen=True, slots=True)
class PodResourcesList:
    """What all pods of the node have."""

    pods: tuple[PodResources, ...] = messages(1, PodResources)


def given_gpus(listed: PodResourcesList) -> Given:
    """GPUs that one pod has for itself. One that several share belongs to none of them as a whole."""
    found: dict[str, set[tuple[str, str]]] = {}
    for pod in listed.pods:
        for container in pod.containers:
            for device in (one for devices in container.devices for one in devices.ids):
                uuid = device.partition(_COPY)[0]
                if uuid.startswith(_GPU):
                    found.setdefault(uuid, set()).add((pod.namespace, pod.name))
    return {uuid: next(iter(pods)) for uuid, pods in found.items() if len(pods) == 1}


def ask_kubelet(socket: Path = SOCKET, within_s: float = 5.0) -> Given:
    """Asks once; NoKubelet where there is none, or it says what cannot be read."""
    import grpc  # noqa: PLC0415 - only a node of a cluster needs it

    with grpc.insecure_channel(f"unix://{socket.absolute()}") as channel:
        call = channel.unary_unary(LIST, request_serializer=bytes, response_deserializer=bytes)
        try:
            return given_gpus(decode(PodResourcesList, call(b"", timeout=within_s)))
        except grpc.RpcError as error:
            raise NoKubelet(f"the kubelet does not answer at {socket}: {error.details()}") from None
        except Malformed as error:
            raise NoKubelet(f"the kubelet's answer cannot be read: {error}") from None
