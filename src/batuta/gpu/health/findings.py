"""Collect findings in local mode: from the kernel log, metrics of GPUs, and logs of jobs that failed."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from batuta.core.cluster import NodeName, Span
from batuta.core.health_rules import Finding, Source
from batuta.core.health_signals import Figures, FigureSource, findings_in, news
from batuta.core.job import JobId
from batuta.gpu.devices import NvmlUnavailable
from batuta.gpu.health.kernel_log import (
    KMSG,
    MAX_LINE_CHARS,
    KernelError,
    KernelLog,
    LogFile,
    is_device,
    normalize_pci_address,
    open_device,
    open_kernel_log,
    parse_line,
)
from batuta.gpu.health.log_queue import KernelLogQueue, QueuedLine
from batuta.gpu.health.nvml_source import NvmlEventLog, NvmlHealthSource, VirtualHealthSource
from batuta.gpu.health.repair import PhysicalGpuRepair, RepairBackend, VirtualGpuRepair
from batuta.gpu.health.state import HealthState
from batuta.gpu.local_nodes import LocalNodes, VirtualGpus, virtual_log
from batuta.gpu.owners import LocalOwners, Owners

LOOK_S: Final = 10.0
"""Between reads of metrics: they change slowly, and the driver writes what is urgent into the kernel log."""
TAIL_BYTES: Final = 64 << 10  # a program that fails says why at its end. No more of a log is read, however long it is.
_HOST: Final = re.compile(r"(?:^|\s)(?P<host>[\w.-]{1,253})\s+kernel:")
_log = logging.getLogger(__name__)


class GpuLocation(NamedTuple):
    """A GPU, or a node."""

    node: NodeName
    gpu: int | None


class GpuLocator:
    """Finds the GPU that a line of the kernel log is about, by its PCI address and the host in the line."""

    def __init__(self, addresses: Mapping[NodeName, Sequence[str]], *, one_machine: bool = False) -> None:
        """`addresses`: by node those of its GPUs, in their order, in any spelling.

        `one_machine`: all nodes are parts of one machine, whose switches they share.
        """
        self._nodes = tuple(addresses)
        self._one_machine = one_machine or len(self._nodes) == 1
        self._gpus: dict[str, list[GpuLocation]] = {}
        for node, own in addresses.items():
            for gpu, address in enumerate(own):
                self._gpus.setdefault(normalize_pci_address(address), []).append(GpuLocation(node, gpu))

    def of(self, line: str, error: KernelError) -> tuple[GpuLocation, ...]:
        """Return what an error is about: one GPU, or for an error of a switch all nodes of its machine.

        Empty where the GPU is of another machine, or could be one of several.
        """
        named = _HOST.search(line)
        node = named["host"].split(".")[0] if named is not None else ""
        is_known = node in self._nodes
        if error.source is Source.SXID:
            nodes = (node,) if is_known else self._nodes if self._one_machine else ()
            return tuple(GpuLocation(name, None) for name in nodes)
        found = [place for place in self._gpus.get(error.pci, ()) if not is_known or place.node == node]
        return tuple(found) if len(found) == 1 else ()


def read_tail(path: Path, offset: int) -> tuple[list[str], int]:
    """Return the last lines of a log behind an offset, and the offset behind them. A log that shrank is new."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            begin = max(offset if offset <= end else 0, end - TAIL_BYTES)
            file.seek(begin)
            data = file.read(end - begin)
    except OSError:
        return [], offset
    return [line[:MAX_LINE_CHARS] for line in data.decode(errors="replace").splitlines()], end


class FindingSources:
    """All sources of findings; one that is absent is None. The caller holds the lock of the state."""

    def __init__(
        self,
        queue: KernelLogQueue | None,
        locator: GpuLocator,
        owners: Owners,
        figures: FigureSource | None,
        log_path: Callable[[JobId, int], Path],
        *,
        believes_jobs: bool = True,
    ) -> None:
        """`believes_jobs`: whether what jobs say of a GPU may take it from all others."""
        self.believes_jobs = believes_jobs
        self._queue, self._locator, self._owners = queue, locator, owners
        self._figures, self._log_path = figures, log_path
        self._next_look_s = 0.0
        self._open = ExitStack()
        if queue is not None:
            self._open.enter_context(queue)

    def kernel_log(self, state: HealthState) -> list[Finding]:
        """Return the findings of the kernel log behind `state.last_note`, and move that on."""
        queue = self._queue
        if queue is None:
            return []
        queue.collect()
        for sentence in queue.missed:
            _log.warning("kernel log: %s", sentence)
        found: list[Finding] = []
        for line in queue.waiting:
            if line.number > state.last_note:
                found += self._findings(line)
                state.last_note = line.number
        return found

    def _findings(self, queued: QueuedLine) -> Iterator[Finding]:
        error = parse_line(queued.line)
        if error is None:
            return
        owner = self._owners.of(error.pid) if error.pid is not None else None
        jobs = (owner.job,) if owner is not None else ()
        places = self._locator.of(queued.line, error)
        if not places:
            _log.warning("a GPU error that belongs to no GPU, or to several, of this cluster: %s", queued.line)
        for node, gpu in places:
            yield Finding(queued.time_s, node, error.source, error.code, error.text, gpu, jobs)

    def done(self, number: int) -> None:
        """Drop the queued lines up to this number: their findings are stored."""
        if self._queue is not None:
            self._queue.done(number)

    def look(self, *, at_once: bool = False) -> Figures:
        """Read the metrics of all GPUs if it is time. Hold no lock: a driver may take minutes."""
        if self._figures is None or (time.monotonic() < self._next_look_s and not at_once):
            return {}
        self._next_look_s = time.monotonic() + LOOK_S
        return self._figures.read()

    def figures(self, state: HealthState, found: Figures, now_s: float) -> list[Finding]:
        """Return the findings that metrics show for the first time."""
        return list(news(state.machine.rules, state.figures, found, now_s))

    def job_log(self, state: HealthState, job: JobId, workers: Sequence[Span], now_s: float) -> list[Finding]:
        """Return what the ranks of a failed job have logged about GPUs since their logs were last read."""
        found: list[Finding] = []
        for rank, worker in enumerate(workers):
            key = f"{job}/{rank}"
            lines, end = read_tail(self._log_path(job, rank), state.read.get(key, 0))
            is_hearsay = not self.believes_jobs
            own = list(findings_in(state.machine.rules, lines, worker, job, now_s, is_hearsay=is_hearsay))
            if own:
                state.read.pop(key, None)
                state.read[key] = end
            found += own
        return found

    def close(self) -> None:
        self._queue = None
        self._open.close()


def open_log(home: Path, log: Path | None, *, virtual: bool, uuids: Sequence[str] = ()) -> KernelLog | None:
    """Return the log to read; None where there is none that may be read, which is logged.

    Instead of the kernel's own, which often only root may read, NVML reports errors of the GPUs `uuids`.
    """
    if log is None and virtual:
        return LogFile(virtual_log(home), from_start=True)
    wanted = log or KMSG
    if wanted == KMSG or is_device(wanted):
        try:
            os.close(open_device(wanted))
        except OSError as error:
            return _events_instead(f"{wanted} cannot be read ({error.strerror})", uuids)
    return open_kernel_log(wanted)


def _events_instead(why: str, uuids: Sequence[str]) -> KernelLog | None:
    try:
        found = NvmlEventLog(uuids)
    except NvmlUnavailable:
        _log.warning("errors of GPUs are not seen: %s", why)
        return None
    _log.warning("errors of GPUs are heard from NVML, as long as the server runs: %s", why)
    return found


def make_sources(
    home: Path,
    log: Path | str | None,
    local: LocalNodes,
    virtual: VirtualGpus | None,
    log_path: Callable[[JobId, int], Path],
    *,
    believes_jobs: bool = True,
) -> tuple[FindingSources, RepairBackend]:
    """Return what is looked at in local mode, and how its GPUs are repaired."""
    own = [uuid for uuids in local.uuids.values() for uuid in uuids]
    kernel_log = open_log(home, None if log is None else Path(log), virtual=virtual is not None, uuids=own)
    ledger = virtual_log(home).with_name("ledger.json")
    queue = None if kernel_log is None else KernelLogQueue(ledger, kernel_log, time.time)
    figures: FigureSource | None
    repair: RepairBackend
    if virtual is not None:
        # As their files have it: GPU 0 is on bus 1 of its own machine.
        addresses = {node.name: [f"0000:{gpu + 1:02x}:00" for gpu in range(node.gpus)] for node in local.nodes}
        locator, repair = GpuLocator(addresses), VirtualGpuRepair(virtual)
        figures = VirtualHealthSource(tuple(addresses), virtual.path)
    else:
        try:
            real = NvmlHealthSource(local.uuids)
        except NvmlUnavailable:
            real = None
        locator = GpuLocator({} if real is None else real.addresses(), one_machine=True)
        figures, repair = real, PhysicalGpuRepair(real, local.uuids)
    sources = FindingSources(queue, locator, LocalOwners(), figures, log_path, believes_jobs=believes_jobs)
    return sources, repair
