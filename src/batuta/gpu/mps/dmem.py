"""The kernel's dmem controller: how much of a card's memory the processes of a pod may have together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_VENDOR: Final = "nvidia"
_DEEPEST: Final = 5
"""How many folders down a pod's cgroup is at most: of the kubelet's root, its class, and the pod."""


class NoCgroup(OSError):
    """A pod has no cgroup, or it cannot be limited."""


def read_regions(cgroups: Path = CGROUPS) -> Mapping[str, str]:
    """The regions of NVIDIA's cards by their address on the bus; empty where the controller is not there."""
    try:
        if "dmem" not in (cgroups / "cgroup.controllers").read_text().split():
            return {}
        lines = (cgroups / "dmem.capacity").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        region = line.split(" ")[0]
        vendor, _, rest = region.partition("/")
        if vendor == _VENDOR and rest:
            found[rest.partition("/")[0].lower()[-12:]] = region
    return found


def pod_cgroup(uid: str, cgroups: Path = CGROUPS) -> Path:
    """The folder of a pod, as the kubelet names it under either of its drivers; raises `NoCgroup`."""
    names = (f"pod{uid}", f"*-pod{uid.replace('-', '_')}.slice")
    for depth in range(1, _DEEPEST + 1):
        for name in names:
            for found in cgroups.glob("*/" * depth + name):
                return found
    raise NoCgroup(f"there is no cgroup of pod {uid} below {cgroups}")


def limit_memory(folder: Path, region: str, most_bytes: int, cgroups: Path = CGROUPS) -> None:
    """Lets the processes below a cgroup have this much of a region, and no more; raises `NoCgroup`."""
    try:
        for parent in _ancestors(folder, cgroups):
            control = parent / "cgroup.subtree_control"
            # The kubelet hands down the controllers that it knows; this is none of them.
            if "dmem" not in control.read_text().split():
                control.write_text("+dmem")
        (folder / "dmem.max").write_text(f"{region} {most_bytes}\n")
    except OSError as error:
        raise NoCgroup(f"cannot limit {region} in {folder}: {error}") from error


def _ancestors(folder: Path, root: Path) -> Iterator[Path]:
    """From the root down to the folder that a cgroup is in."""
    yield root
    at = root
    for part in folder.relative_to(root).parts[:-1]:
        at /= part
        yield at
