"""What a container is given along with its units: variables, files and devices that make the share hold."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from batuta.gpu.device_plugin.decision import Grant
from batuta.gpu.device_plugin.messages import Allocated, DeviceNode, Mount
from batuta.gpu.device_plugin.stock import UNIT_MIB
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, write_limits
from batuta.gpu.share.preload import container_mounts, preload_text

STATE_FOLDER: Final = Path("/var/lib/batuta/share")
"""On the node, and at the same path in the plugin's container: the kubelet mounts what is below it."""
_SHARED_BY_ALL: Final = 0o1777
_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class Outfit(Protocol):
    """One way to hold containers to their shares."""

    @property
    def asks_before_start(self) -> bool:
        """Whether `before_start` has anything to do."""

    def dress(self, grant: Grant) -> Allocated:
        """What the container gets. Asked again for the same grant, it says the same again."""

    def before_start(self, grant: Grant) -> None:
        """The last thing before the container starts; its pod's cgroup is there."""

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets what was kept for pods that are gone."""


@dataclass(frozen=True, slots=True)
class Basics:
    """What every container with a share gets, however it is held to it."""

    dev: Path | None = None
    """Where the node's device files are, to be passed on; None: NVIDIA's container runtime sees to it."""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()

    def dress(self, grant: Grant) -> Allocated:
        uuid = grant.card.uuid
        envs = {"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_VISIBLE_DEVICES": uuid} | dict(self.envs)
        return Allocated(envs, tuple(self.mounts), self._device_nodes(grant))

    def _device_nodes(self, grant: Grant) -> tuple[DeviceNode, ...]:
        if self.dev is None:
            return ()
        names = [*_CONTROL_NODES, *([f"nvidia{grant.card.minor}"] if grant.card.minor >= 0 else [])]
        return tuple(
            DeviceNode(f"/dev/{name}", str(self.dev / name), "rw")
            for name in names
            if (self.dev / name).exists()
        )


def device_limit(grant: Grant) -> DeviceLimit:
    """What the container may have of its card; what it did not ask for is not limited."""
    share = grant.container
    compute = min(share.compute_percent, 100) or None
    return DeviceLimit(
        grant.card.uuid,
        memory_mib=share.memory_units * UNIT_MIB or None,
        compute_percent=None if grant.pod.is_soft else compute,
        soft_compute_percent=compute if grant.pod.is_soft else None,
        weight=compute or DeviceLimit("").weight,
    )


class PreloadOutfit:
    """Shares held by `native/share`: a library that each program in the container loads, and its limits."""

    asks_before_start = False

    def __init__(self, state: Path, library: Path, basics: Basics) -> None:
        """`library` is copied to where containers can have it mounted."""
        self._state, self._basics = state, basics
        self._library = state / "lib" / library.name
        self._preload = state / "lib" / "ld.so.preload"
        self._cards = state / "cards"
        self._library.parent.mkdir(parents=True, exist_ok=True)
        _replace(library, self._library)
        self._preload.write_text(preload_text())
        _make_open(self._cards)

    def dress(self, grant: Grant) -> Allocated:
        home = self._state / "pods" / grant.pod.uid / grant.container.name
        region = home / "region"
        _make_open(region)
        limits = ShareLimits(
            container=f"{grant.pod.uid}_{grant.container.name}"[:63],
            region=region / "accounts",
            devices=(device_limit(grant),),
            cards=self._cards,
        )
        path = home / "limits" / "limits"
        write_limits(path, limits)
        found = self._basics.dress(grant)
        mounts = tuple(
            Mount(str(one.container_path), str(one.host_path), one.read_only)
            for one in container_mounts(self._library, self._preload, path, limits)
        )
        return Allocated(found.envs, (*found.mounts, *mounts), found.devices)

    def before_start(self, grant: Grant) -> None:
        """The file is there already."""

    def keep_only(self, uids: frozenset[str]) -> None:
        for folder in (self._state / "pods").glob("*"):
            if folder.name not in uids:
                shutil.rmtree(folder, ignore_errors=True)


def _replace(source: Path, target: Path) -> None:
    """A new file under the old name: containers that run keep the one that they have loaded."""
    unfinished = target.with_suffix(".new")
    shutil.copyfile(source, unfinished)
    unfinished.chmod(0o755)
    unfinished.replace(target)


def _make_open(folder: Path) -> None:
    """A folder in which every user of every container may make files, and nobody removes another's."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(_SHARED_BY_ALL)
