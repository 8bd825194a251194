"""Which pod and container a process is in, from the text of its /proc/PID/cgroup. Pure.

A kubelet gives each pod a control group below `kubepods`, by class of service, in one of two spellings:

    cgroupfs   /kubepods/burstable/pod6f1c…-…/CONTAINER
    systemd    …/kubepods-burstable.slice/kubepods-burstable-pod6f1c…_….slice/RUNTIME-CONTAINER.scope

Whatever else has `pod` in its name is no pod: a process of the host is never attributed to one. Where a
cluster runs inside a container of another, the path names several pods; the outermost one comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container of a pod, as the node's runtime and kubelet name them."""

    pod_uid: str
    """A uid, or for a static pod the hash that its kubelet made."""
    container_id: str
    """Empty for a process of the pod that is in none of its containers."""


_UID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER: Final = r"[0-9a-f]{64}"
_QOS: Final = ("burstable", "besteffort")

_CGROUPFS_POD: Final = re.compile(rf"pod(?P<uid>{_UID})")
_SYSTEMD_POD: Final = re.compile(
    r"(?:[a-z0-9_]+-)*kubepods(?:-burstable|-besteffort)?-pod(?P<uid>[0-9a-f_]{32,36})\.slice"
)
_SYSTEMD_ROOT: Final = re.compile(r"(?:[a-z0-9_]+-)*kubepods\.slice")
# A kubelet and a runtime that disagree about systemd: both put their words into one name.
_MIXED: Final = re.compile(
    rf"(?P<pod>[^:]+\.slice):(?P<runtime>cri-containerd|crio|docker):(?P<container>{_CONTAINER})"
)
_SCOPE: Final = re.compile(
    rf"(?:cri-containerd-|crio-|docker-|libpod-)?(?P<container>{_CONTAINER})(?:\.scope)?"
)
_FULL_UID: Final = re.compile(_UID)
# Of cgroup v1, the most telling controllers first: others may be left at the root.
_CONTROLLERS: Final = ("memory", "devices", "cpu", "pids", "name=systemd")


def containers_of(text: str) -> tuple[ContainerRef, ...]:
    """The containers of pods that a process is in, the outermost first; empty for a process of the host.

    `text` is all of /proc/PID/cgroup. Where its lines (one per controller in version 1) name different pods,
    the answer is none: better no owner than a wrong one.
    """
    found = [refs for path in _paths(text) if (refs := tuple(_refs(path)))]
    if not found or any(refs[0].pod_uid != found[0][0].pod_uid for refs in found):
        return ()
    return max(found, key=lambda refs: (len(refs), bool(refs[0].container_id)))


def _paths(text: str) -> list[str]:
    """The paths of all hierarchies, those that tell most first."""
    ranked = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not number.isdecimal() or not path.startswith("/"):
            continue
        names = controllers.split(",")
        rank = min(
            (_CONTROLLERS.index(name) for name in names if name in _CONTROLLERS), default=len(_CONTROLLERS)
        )
        ranked.append((rank, path.removesuffix(" (deleted)")))
    return [path for _, path in sorted(ranked, key=lambda one: one[0])]


def _refs(path: str) -> Iterator[ContainerRef]:
    parts = [part for part in path.split("/") if part]
    index = 0
    while index < len(parts):
        if mixed := _MIXED.fullmatch(parts[index]):
            if uid := _systemd_uid(mixed["pod"]):
                yield ContainerRef(uid, mixed["container"])
        elif uid := _pod_at(parts, index):
            yield ContainerRef(uid, _container_at(parts, index + 1))
        index += 1


def _pod_at(parts: Sequence[str], index: int) -> str:
    """The uid of the pod whose group this part of a path is; empty if it is none."""
    if uid := _systemd_uid(parts[index]):
        # Its own name says where it belongs. In a container of its own the root is not to be seen.
        above = parts[index - 1] if index else ".."
        below_pods = _SYSTEMD_ROOT.fullmatch(above) or above.endswith(
            (*(f"-{qos}.slice" for qos in _QOS), "..")
        )
        return uid if below_pods else ""
    pod = _CGROUPFS_POD.fullmatch(parts[index])
    return pod["uid"] if pod and _is_below_pods(parts[:index]) else ""


def _is_below_pods(above: Sequence[str]) -> bool:
    """Whether the next part is at the place of a pod, in the spelling of cgroupfs."""
    rest = above[:-1] if above and above[-1] in _QOS else above
    # The agent's own container may have its own root: others are then told from there, as /../../pod….
    return bool(rest) and (rest[-1] == "kubepods" or set(rest) == {".."})


def _systemd_uid(part: str) -> str:
    found = _SYSTEMD_POD.fullmatch(part)
    uid = found["uid"].replace("_", "-") if found else ""
    return uid if _FULL_UID.fullmatch(uid) else ""


def _container_at(parts: Sequence[str], index: int) -> str:
    scope = _SCOPE.fullmatch(parts[index]) if index < len(parts) else None
    return scope["container"] if scope else ""
