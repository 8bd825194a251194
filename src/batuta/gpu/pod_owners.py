"""Find the pod that owns a process or a GPU on a Kubernetes node, from cgroups and from the kubelet.

A kubelet gives each pod a control group below `kubepods`, by class of service, in one of two spellings:

    cgroupfs   /kubepods/burstable/pod6f1c…-…/CONTAINER
    systemd    …/kubepods-burstable.slice/kubepods-burstable-pod6f1c…_….slice/RUNTIME-CONTAINER.scope

A path with `pod` elsewhere in its name is not a pod's: a process of the host is never attributed to a pod.
Where a cluster runs inside a container of another, the path names several pods, the outermost one first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from batuta.gpu.owners import PROC, Owner, Owners, ProcessCache, read_control_groups
from batuta.gpu.protobuf import Malformed, decode

_UID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
_QOS: Final = ("burstable", "besteffort")
_CGROUPFS_POD: Final = re.compile(rf"pod(?P<uid>{_UID})")
_SYSTEMD_POD: Final = re.compile(
    r"(?:[a-z0-9_]+-)*kubepods(?:-burstable|-besteffort)?-pod(?P<uid>[0-9a-f_]{32,36})\.slice"
)
_SYSTEMD_ROOT: Final = re.compile(r"(?:[a-z0-9_]+-)*kubepods\.slice")
# A kubelet and a runtime that disagree about systemd: both put their part into one name.
_MIXED: Final = re.compile(r"(?P<pod>[^:]+\.slice):(?:cri-containerd|crio|docker):[0-9a-f]{64}")
_FULL_UID: Final = re.compile(_UID)
POD_RESOURCES_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST_METHOD: Final = "/v1.PodResourcesLister/List"
_GPU_PREFIX: Final = "GPU-"
_SHARED_MARK: Final = "::"  # a device plugin that shares a GPU puts a number behind this
AssignedGpus: TypeAlias = Mapping[str, tuple[str, str]]
"""By UUID of a GPU: namespace and name of the one pod that has it."""


def pods_of(text: str) -> tuple[str, ...]:
    """Return the pods that a process is in, the outermost first; empty for a process of the host.

    A pod is known by its uid, or a static pod by the hash that its kubelet made. `text` is all of
    /proc/PID/cgroup. Where its lines (one per controller in version 1) name different pods, the answer is none:
    better no owner than a wrong one.
    """
    found = [uids for path in _paths(text) if (uids := tuple(_uids(path)))]
    if not found or any(uids[0] != found[0][0] for uids in found):
        return ()
    return max(found, key=len)


def _paths(text: str) -> Iterator[str]:
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon and number.isdecimal() and path.startswith("/"):
            yield path.removesuffix(" (deleted)")


def _uids(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        if mixed := _MIXED.fullmatch(part):
            if uid := _systemd_uid(mixed["pod"]):
                yield uid
        elif uid := _pod_at(parts, index):
            yield uid


def _pod_at(parts: Sequence[str], index: int) -> str:
    """Return the uid of the pod whose cgroup this part of a path is, or an empty text."""
    if uid := _systemd_uid(parts[index]):
        # Its own name is complete. From within a container the root is not visible.
        above = parts[index - 1] if index else ".."
        below_pods = _SYSTEMD_ROOT.fullmatch(above) or above.endswith((*(f"-{qos}.slice" for qos in _QOS), ".."))
        return uid if below_pods else ""
    pod = _CGROUPFS_POD.fullmatch(parts[index])
    return pod["uid"] if pod and _is_below_pods(parts[:index]) else ""


def _is_below_pods(above: Sequence[str]) -> bool:
    """Return whether the next part is at the place of a pod, in the spelling of cgroupfs."""
    rest = above[:-1] if above and above[-1] in _QOS else above
    # The agent's own container may have its own root: other paths are relative to it, as /../../pod….
    return bool(rest) and (rest[-1] == "kubepods" or set(rest) == {".."})


def _systemd_uid(part: str) -> str:
    found = _SYSTEMD_POD.fullmatch(part)
    uid = found["uid"].replace("_", "-") if found else ""
    return uid if _FULL_UID.fullmatch(uid) else ""


class PodOwners(Owners):
    """Owners on a Kubernetes node. Updates and queries may come from different threads."""

    def __init__(self, proc: Path = PROC) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, Owner] = {}
        self._named: dict[tuple[str, str], Owner] = {}
        self._assigned: dict[str, tuple[str, str]] = {}
        self._memo = ProcessCache(lambda pid: pods_of(read_control_groups(pid, proc)), proc)

    def update_pods(self, pods: Iterable[tuple[Iterable[str], Owner]]) -> None:
        """Set the pods of the node: each with its uid, and for a static pod the hash by which its kubelet calls it."""
        known = list(pods)
        with self._lock:
            self._pods = {uid: owner for uids, owner in known for uid in uids}
            self._named = {(owner.namespace, owner.pod): owner for _, owner in known}

    def update_assigned(self, assigned: AssignedGpus) -> None:
        """Set the pods that have whole GPUs, as the kubelet lists them."""
        with self._lock:
            self._assigned = dict(assigned)

    def of(self, pid: int) -> Owner | None:
        uids = self._memo.of(pid) or ()
        with self._lock:
            # Of nested clusters, ours is the one whose pods the API server knows.
            return next((self._pods[uid] for uid in uids if uid in self._pods), None)

    def by_gpu(self) -> Mapping[str, Owner]:
        with self._lock:
            return {uuid: self._named[pod] for uuid, pod in self._assigned.items() if pod in self._named}


class KubeletUnavailable(Exception):
    """The kubelet does not answer."""


class ContainerDevices(NamedTuple):
    """Devices of one resource."""

    resource: str = ""
    ids: tuple[str, ...] = ()


class ContainerResources(NamedTuple):
    """What a container has."""

    name: str = ""
    devices: tuple[ContainerDevices, ...] = ()


class PodResources(NamedTuple):
    """What a pod has."""

    name: str = ""
    namespace: str = ""
    containers: tuple[ContainerResources, ...] = ()


class PodResourcesList(NamedTuple):
    """What all pods of the node have."""

    pods: tuple[PodResources, ...] = ()


def assigned_gpus(listed: PodResourcesList) -> AssignedGpus:
    """Return the GPUs that one pod has for itself. A shared GPU belongs to none of its pods as a whole."""
    found: dict[str, set[tuple[str, str]]] = {}
    for pod in listed.pods:
        for container in pod.containers:
            for device in (one for devices in container.devices for one in devices.ids):
                uuid = device.partition(_SHARED_MARK)[0]
                if uuid.startswith(_GPU_PREFIX):
                    found.setdefault(uuid, set()).add((pod.namespace, pod.name))
    return {uuid: next(iter(pods)) for uuid, pods in found.items() if len(pods) == 1}


def query_kubelet(socket: Path = POD_RESOURCES_SOCKET, within_s: float = 5.0) -> AssignedGpus:
    """Ask the kubelet once, or raise KubeletUnavailable."""
    import grpc  # noqa: PLC0415 - only a node of a cluster needs it

    with grpc.insecure_channel(f"unix://{socket.absolute()}") as channel:
        call = channel.unary_unary(LIST_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            return assigned_gpus(decode(PodResourcesList, call(b"", timeout=within_s)))
        except grpc.RpcError as error:
            raise KubeletUnavailable(f"the kubelet does not answer at {socket}: {error.details()}") from None
        except Malformed as error:
            raise KubeletUnavailable(f"the kubelet's answer cannot be read: {error}") from None
