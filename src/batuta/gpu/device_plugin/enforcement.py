"""Build what a container gets with its units: variables, mounts and devices that enforce its share."""

from __future__ import annotations

import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from batuta.gpu.device_plugin.allocation import Grant
from batuta.gpu.device_plugin.inventory import UNIT_MIB, Card
from batuta.gpu.device_plugin.messages import ContainerAllocateResponse, DeviceSpec, Mount
from batuta.gpu.native_libraries import VGPU_VARIABLE, share_library, vgpu_libraries
from batuta.gpu.share.cards import CardFolder, demand_paths
from batuta.gpu.share.limits import LIMITS_PATH, DeviceLimit, ShareLimits, read_limits, write_limits
from batuta.gpu.share.mps import (
    CGROUPS,
    SHARED_MEMORY,
    CgroupUnavailable,
    EnforcementMode,
    MpsDaemon,
    client_environment,
    detect_capability,
    limit_memory,
    pod_cgroup,
)
from batuta.spec.problem import InputError

PRELOAD_PATH: Final = Path("/etc/ld.so.preload")
LIBRARY_PATH: Final = Path("/usr/local/lib/batuta/libbatuta-share.so")
_SHARED_BY_ALL: Final = 0o1777
_WRITABLE_BY_ALL: Final = 0o666  # whichever users a container has; which container, the mounts say
_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MIB: Final = 1 << 20
_LOADER_FOLDERS: Final = ("/usr/lib", "/usr/lib64")
"""Where the loader of a container looks without being told: Debian's and Red Hat's."""
_MODE_TEXTS: Final = {
    EnforcementMode.DMEM: "the kernel (memory) and MPS (compute)",
    EnforcementMode.MPS: "MPS",
    EnforcementMode.PRELOAD: "Batuta's library in each container",
}
log = logging.getLogger("batuta.device_plugin")


class ShareEnforcer(ABC):
    """One way to enforce the shares of containers."""

    needs_pre_start = False  # whether `pre_start` has anything to do

    @abstractmethod
    def container_response(self, grant: Grant) -> ContainerAllocateResponse:
        """Return what the container gets; the same again for the same grant."""

    def pre_start(self, grant: Grant) -> None:  # noqa: B027
        """Prepare the start of the container; its pod's cgroup is there."""

    def keep_only(self, uids: frozenset[str]) -> None:  # noqa: B027
        """Remove what was kept for pods other than these."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What every container with a share gets, however the share is enforced."""

    dev: Path | None = None
    """Where the node's device files are, to be passed on; None: NVIDIA's container runtime does it."""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()

    def container_response(self, grant: Grant) -> ContainerAllocateResponse:
        uuid = grant.card.uuid
        envs = {"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_VISIBLE_DEVICES": uuid} | dict(self.envs)
        return ContainerAllocateResponse(envs, tuple(self.mounts), self._device_nodes(grant))

    def _device_nodes(self, grant: Grant) -> tuple[DeviceSpec, ...]:
        if self.dev is None:
            return ()
        names = [*_CONTROL_NODES, *([f"nvidia{grant.card.minor}"] if grant.card.minor >= 0 else [])]
        return tuple(
            DeviceSpec(f"/dev/{name}", str(self.dev / name), "rw") for name in names if (self.dev / name).exists()
        )


def container_spec(vgpu: Path | None, *, pass_device_files: bool) -> ContainerSpec:
    """Return what containers get besides their limits: device files, or the libraries of virtual GPUs."""
    dev = Path("/dev") if pass_device_files else None
    if vgpu is None:
        return ContainerSpec(dev)
    file = str(vgpu.resolve())
    libraries = (
        Mount(f"{folder}/{library.name}", str(library), True)
        for folder in _LOADER_FOLDERS
        for library in sorted(vgpu_libraries().glob("*.so.1"))
    )
    return ContainerSpec(dev, {VGPU_VARIABLE: file}, (*libraries, Mount(file, file)))


def make_enforcer(
    wanted: EnforcementMode, state: Path, library: Path | None, spec: ContainerSpec, cards: Sequence[Card]
) -> ShareEnforcer:
    """Return how shares are held on this node. `library`: the compiled share library; None: compile it."""
    can = detect_capability()
    mode = can.choose(wanted)
    log.info("%d GPUs, shares are held by %s", len(cards), _MODE_TEXTS[mode])
    if mode is EnforcementMode.PRELOAD:
        return PreloadEnforcer(state, library or share_library(), spec)
    daemons = {
        card.uuid: MpsDaemon(card.uuid, card.memory_mib, state / "mps" / card.uuid, can.mps_protocol) for card in cards
    }
    return MpsEnforcer(daemons, spec, can.regions if mode is EnforcementMode.DMEM else None)


def device_limit(grant: Grant) -> DeviceLimit:
    """Return what the container may have of its GPU; what it did not request is not limited."""
    share = grant.container
    compute = min(share.compute_percent, 100) or None
    return DeviceLimit(
        grant.card.uuid,
        memory_mib=share.memory_units * UNIT_MIB or None,
        compute_percent=None if grant.pod.is_soft else compute,
        soft_compute_percent=compute if grant.pod.is_soft else None,
        weight=compute or DeviceLimit("").weight,
    )


class PreloadEnforcer(ShareEnforcer):
    """Enforces shares by `native/share`: a library that each program in the container loads."""

    def __init__(self, state: Path, library: Path, spec: ContainerSpec) -> None:
        """`library` is copied to where containers can have it mounted."""
        self._state, self._spec = state, spec
        self._library = state / "lib" / library.name
        self._preload = state / "lib" / "ld.so.preload"
        self._cards = CardFolder(state / "grants")
        self._library.parent.mkdir(parents=True, exist_ok=True)
        _replace(library, self._library)
        self._preload.write_text(f"{LIBRARY_PATH}\n")
        for limits in self._known_limits():
            self._cards.grant(limits, mode=_WRITABLE_BY_ALL)

    def container_response(self, grant: Grant) -> ContainerAllocateResponse:
        home = self._state / "pods" / grant.pod.uid / grant.container.name
        region = home / "region"
        _make_open(region)
        limits = ShareLimits(
            container=f"{grant.pod.uid}_{grant.container.name}"[:63],
            region=region / "accounts",
            devices=(device_limit(grant),),
            cards=self._cards.path,
        )
        path = home / "limits" / "limits"
        write_limits(path, limits)
        self._cards.grant(limits, mode=_WRITABLE_BY_ALL)
        found = self._spec.container_response(grant)
        mounts = container_mounts(self._library, self._preload, path, limits)
        return ContainerAllocateResponse(found.envs, (*found.mounts, *mounts), found.devices)

    def keep_only(self, uids: frozenset[str]) -> None:
        for folder in (self._state / "pods").glob("*"):
            if folder.name not in uids:
                shutil.rmtree(folder, ignore_errors=True)
        self._cards.keep_only(self._known_limits())

    def _known_limits(self) -> Iterator[ShareLimits]:
        """Yield the limits of all containers of this version: they are on disk, and survive a restart."""
        for path in (self._state / "pods").glob("*/*/limits/limits"):
            with suppress(InputError):
                limits = read_limits(path)
                if limits.cards == self._cards.path:
                    yield limits


def container_mounts(library: Path, preload: Path, limits_path: Path, limits: ShareLimits) -> tuple[Mount, ...]:
    """Return the mounts that enforce the limits of a container; no variable of its environment can undo them.

    The folder of the limits is mounted, not the file: one that is replaced would keep its old contents. So is that
    of the cards. Region and cards have the same path inside and outside, as the limits name them. The container may
    write its own region, and its own file among the cards: a file, which it cannot replace by anything else.
    """
    read_only = {LIBRARY_PATH: library, PRELOAD_PATH: preload, LIMITS_PATH.parent: limits_path.parent}
    if limits.cards is not None:
        read_only[limits.cards] = limits.cards
    return (
        *(Mount(str(path), str(host_path), True) for path, host_path in read_only.items()),
        *(Mount(str(path), str(path), False) for path in (limits.region.parent, *demand_paths(limits))),
    )


def _replace(source: Path, target: Path) -> None:
    """Put a new file under the old name: running containers keep the one that they have loaded."""
    unfinished = target.with_suffix(".new")
    shutil.copyfile(source, unfinished)
    unfinished.chmod(0o755)
    unfinished.replace(target)


def _make_open(folder: Path) -> None:
    """Make a folder in which every user of every container may create files, and remove only their own."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(_SHARED_BY_ALL)


class MpsEnforcer(ShareEnforcer):
    """Enforces shares by MPS: each container is a client of its GPU's MPS daemon."""

    def __init__(
        self,
        daemons: Mapping[str, MpsDaemon],
        spec: ContainerSpec,
        regions: Mapping[str, str] | None = None,
        cgroups: Path = CGROUPS,
    ) -> None:
        """`daemons` by UUID. `regions`, by PCI address: the kernel limits memory instead of MPS."""
        self._daemons, self._spec = daemons, spec
        self._regions, self._cgroups = regions, cgroups
        self.needs_pre_start = regions is not None
        for daemon in daemons.values():
            daemon.ensure()

    def container_response(self, grant: Grant) -> ContainerAllocateResponse:
        daemon, share = self._daemons[grant.card.uuid], grant.container
        daemon.ensure()
        memory_mib = share.memory_units * UNIT_MIB or None
        # A soft limit of MPS would not be given back: it holds from the start of a process to its end.
        compute = None if grant.pod.is_soft else min(share.compute_percent, 100) or None
        found = self._spec.container_response(grant)
        envs = client_environment(daemon, None if self._regions is not None else memory_mib, compute)
        mounts = (
            Mount(str(daemon.pipe), str(daemon.pipe)),
            Mount(str(SHARED_MEMORY), str(daemon.shared_memory)),
        )
        return ContainerAllocateResponse({**found.envs, **envs}, (*found.mounts, *mounts), found.devices)

    def pre_start(self, grant: Grant) -> None:
        if self._regions is None:
            return
        memory_mib = UNIT_MIB * sum(share.memory_units for share in grant.pod.containers if not share.is_init)
        if memory_mib:
            folder = pod_cgroup(grant.pod.uid, self._cgroups)
            limit_memory(folder, self._region(grant.card), memory_mib * _MIB, self._cgroups)

    def _region(self, card: Card) -> str:
        found = (self._regions or {}).get(card.pci)
        if found is None:
            raise CgroupUnavailable(f"the dmem controller has no region of GPU {card.index} at {card.pci or '?'}")
        return found
