"""Shares held by MPS, with memory by MPS as well or by the kernel's dmem controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from batuta.gpu.device_plugin.decision import Grant
from batuta.gpu.device_plugin.messages import Allocated, Mount
from batuta.gpu.device_plugin.outfit import Basics
from batuta.gpu.device_plugin.stock import UNIT_MIB, Card
from batuta.gpu.mps.daemon import MpsDaemon, client_environment
from batuta.gpu.mps.dmem import CGROUPS, NoCgroup, limit_memory, pod_cgroup

_MIB: Final = 1 << 20
_SHARED_MEMORY: Final = "/dev/shm"
"""A server and its clients exchange their first words there."""


class MpsOutfit:
    """Containers that are clients of their card's MPS daemon."""

    def __init__(
        self,
        daemons: Mapping[str, MpsDaemon],
        basics: Basics,
        regions: Mapping[str, str] | None = None,
        cgroups: Path = CGROUPS,
    ) -> None:
        """`daemons` by UUID. `regions`, by address on the bus: the kernel holds memory instead of MPS."""
        self._daemons, self._basics = daemons, basics
        self._regions, self._cgroups = regions, cgroups
        for daemon in daemons.values():
            daemon.ensure()

    @property
    def asks_before_start(self) -> bool:
        return self._regions is not None

    def dress(self, grant: Grant) -> Allocated:
        daemon, share = self._daemons[grant.card.uuid], grant.container
        daemon.ensure()
        memory_mib = share.memory_units * UNIT_MIB or None
        # A soft limit of MPS would not be given back: it holds from the start of a process to its end.
        compute = None if grant.pod.is_soft else min(share.compute_percent, 100) or None
        found = self._basics.dress(grant)
        envs = client_environment(daemon, None if self._regions is not None else memory_mib, compute)
        mounts = (Mount(str(daemon.pipe), str(daemon.pipe)), Mount(_SHARED_MEMORY, _SHARED_MEMORY))
        return Allocated({**found.envs, **envs}, (*found.mounts, *mounts), found.devices)

    def before_start(self, grant: Grant) -> None:
        if self._regions is None:
            return
        memory_mib = UNIT_MIB * sum(share.memory_units for share in grant.pod.containers if not share.is_init)
        if memory_mib:
            folder = pod_cgroup(grant.pod.uid, self._cgroups)
            limit_memory(folder, self._region(grant.card), memory_mib * _MIB, self._cgroups)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Nothing is kept for pods: their limits go with their processes and cgroups."""

    def _region(self, card: Card) -> str:
        found = (self._regions or {}).get(card.pci)
        if found is None:
            raise NoCgroup(f"the dmem controller has no region of GPU {card.index} at {card.pci or '?'}")
        return found
