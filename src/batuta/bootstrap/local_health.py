"""GPU health in local mode: the kernel log, and how virtual and physical GPUs are repaired."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from batuta.bootstrap.local_gpus import LocalNodes, VirtualGpus, device_path
from batuta.core.cluster import NodeName
from batuta.core.health_record import WHOLE_NODE, Target
from batuta.core.health_rules import HealthRules
from batuta.core.health_signals import FigureSource
from batuta.core.job import JobId
from batuta.gpu.devices import NvmlUnavailable
from batuta.gpu.health.findings import FindingSources, GpuLocator, RankLog
from batuta.gpu.health.kernel_log import KernelLog, KmsgLog, LogFile
from batuta.gpu.health.log_queue import KernelLogQueue
from batuta.gpu.health.nvml_source import NvmlEventLog, NvmlHealthSource, VirtualHealthSource
from batuta.gpu.health.repair import BurnInRun, RepairBackend, RepairWorker
from batuta.gpu.health.rules import read_rules
from batuta.gpu.health.state import SettingStore
from batuta.gpu.health.watch import EngineAccess, HealthWatch
from batuta.gpu.owners import LocalOwners
from batuta.gpu.vgpu.inject import reset
from batuta.spec.problem import InputError, Problem

FOLDER: Final = "health"
"""Within the state directory."""
_KMSG: Final = Path("/dev/kmsg")
_BURN_S, _VIRTUAL_BURN_S = 60.0, 0.2
"""Of computing in a burn-in: heat takes a while, and a virtual GPU has none."""
_log = logging.getLogger(__name__)


def virtual_log(home: Path) -> Path:
    """What the drivers of virtual GPUs write, as the log of one machine that collects those of others."""
    return home / FOLDER / "kern.log"


def log_problems(log: Path | None) -> list[Problem]:
    """What is wrong with a kernel log that the user has named. It need not be there yet."""
    if log is None:
        return []
    if log.is_dir():
        return [Problem(f"--health-log: {log} is a folder", fix="name the file that the kernel log goes to")]
    if not log.exists() and not log.parent.is_dir():
        return [Problem(f"--health-log: there is no folder {log.parent}")]
    if log.exists() and not os.access(log, os.R_OK):
        return [Problem(f"--health-log: {log} may not be read by you", fix=f"sudo setfacl -m u:$USER:r {log}")]
    return []


def open_log(home: Path, log: Path | None, *, virtual: bool, uuids: Sequence[str] = ()) -> KernelLog | None:
    """The log to read; None where there is none that may be read, which is told.

    Instead of the kernel's own, which often only root may read, NVML tells of errors of the GPUs `uuids`.
    """
    if log is None and virtual:
        return LogFile(virtual_log(home), from_start=True)
    wanted = log or _KMSG
    if wanted != _KMSG and not (wanted.exists() and stat.S_ISCHR(wanted.stat().st_mode)):
        return LogFile(wanted)
    try:
        os.close(os.open(wanted, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return _events_instead(f"{wanted} cannot be read ({error.strerror})", uuids)
    return KmsgLog(lambda: os.open(wanted, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))


def _events_instead(why: str, uuids: Sequence[str]) -> KernelLog | None:
    try:
        found = NvmlEventLog(uuids)
    except NvmlUnavailable:
        _log.warning("errors of GPUs are not seen: %s", why)
        return None
    _log.warning("errors of GPUs are read from NVML while the server runs: %s", why)
    return found


def read_health(log: Path | str | None, rules: Path | str | None) -> HealthRules:
    """The rules of a file, or Batuta's own. All that is wrong with it and with the log is told at once."""
    problems = log_problems(None if log is None else Path(log))
    try:
        found = read_rules(None if rules is None else Path(rules))
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return found


def make_watch(
    home: Path,
    log: Path | str | None,
    rules: HealthRules,
    local: LocalNodes,
    virtual: VirtualGpus | None,
    texts: SettingStore,
    doors: EngineAccess,
    log_path: Callable[[JobId, int], Path],
) -> HealthWatch:
    """The watch over the health of these nodes, not started yet."""
    sources, ward = _make_sources(home, None if log is None else Path(log), local, virtual, log_path)
    return HealthWatch(rules, local.nodes, texts, doors, sources, RepairWorker(ward))


def _make_sources(
    home: Path,
    log: Path | None,
    local: LocalNodes,
    virtual: VirtualGpus | None,
    log_path: Callable[[JobId, int], Path],
) -> tuple[FindingSources, RepairBackend]:
    """What is looked at, and how GPUs are treated."""
    own = [str(uuid) for uuids in local.devices.values() for uuid in uuids]
    kernel_log = open_log(home, log, virtual=virtual is not None, uuids=own)
    ledger = None if kernel_log is None else KernelLogQueue(home / FOLDER / "ledger.json", kernel_log, time.time)
    figures: FigureSource | None
    ward: RepairBackend
    if virtual is not None:
        # As their files have it: GPU 0 is on bus 1 of its own machine.
        addresses = {node.name: [f"0000:{gpu + 1:02x}:00" for gpu in range(node.gpus)] for node in local.nodes}
        places, ward = GpuLocator(addresses), VirtualGpuRepair(home, virtual)
        names = tuple(node.name for node in local.nodes)
        figures = VirtualHealthSource(names, lambda node: device_path(home, node) if virtual.uuids(node) else None)
    else:
        uuids = {node: [str(uuid) for uuid in own] for node, own in local.devices.items()}
        real = _real_figures(uuids)
        places = GpuLocator({} if real is None else real.addresses(), one_machine=True)
        figures, ward = real, PhysicalGpuRepair(real, uuids)
    sources = FindingSources(ledger, places, LocalOwners(), figures, lambda job, rank: RankLog(log_path(job, rank)))
    return sources, ward


def _real_figures(uuids: Mapping[NodeName, Sequence[str]]) -> NvmlHealthSource | None:
    try:
        return NvmlHealthSource(uuids)
    except NvmlUnavailable:
        return None


class VirtualGpuRepair:
    """Virtual GPUs: a reset is done at once, whatever else has to be done is for people."""

    def __init__(self, home: Path, virtual: VirtualGpus) -> None:
        self._home, self._virtual = home, virtual

    def _gpus(self, target: Target) -> Sequence[int]:
        count = len(self._virtual.uuids(target.node))
        return range(count) if target.gpu == WHOLE_NODE else (target.gpu,)

    def in_use(self, target: Target) -> bool:
        try:
            found = self._virtual.read(target.node)
        except InputError:
            return False
        return any(gpu.processes for gpu in found if gpu.index in self._gpus(target))

    def reset(self, target: Target) -> bool:
        try:
            for gpu in self._gpus(target):
                reset(device_path(self._home, target.node), gpu)
        except InputError:
            return False
        return bool(self._gpus(target))

    def burn_in(self, target: Target) -> BurnInRun | None:
        if not self._virtual.has_libraries:
            return None  # they are being compiled, or cannot be: then no program sees the GPUs
        env = self._virtual.environment(target.node, os.environ)
        return BurnInRun([str(gpu) for gpu in self._gpus(target)], env, _VIRTUAL_BURN_S)


class PhysicalGpuRepair:
    """The GPUs of this machine. A reset needs rights that a server should not have: people do it."""

    def __init__(self, figures: NvmlHealthSource | None, uuids: Mapping[NodeName, Sequence[str]]) -> None:
        self._figures, self._uuids = figures, uuids

    def _gpus(self, target: Target) -> Sequence[str]:
        own = self._uuids[target.node]
        return own if target.gpu == WHOLE_NODE else own[target.gpu : target.gpu + 1]

    def in_use(self, target: Target) -> bool:
        figures = self._figures
        return figures is not None and any(figures.in_use(uuid) for uuid in self._gpus(target))

    def reset(self, target: Target) -> bool:
        return False

    def burn_in(self, target: Target) -> BurnInRun | None:
        return BurnInRun(self._gpus(target), os.environ, _BURN_S)
