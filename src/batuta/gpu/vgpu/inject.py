"""Inject faults into virtual GPUs: Xid errors, heat, memory errors, failed links; and clear them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from batuta.gpu.owners import is_alive
from batuta.gpu.vgpu.device_file import Device, DeviceFile, open_device_file
from batuta.spec.problem import InputError, Problem

_XID_TEXTS: Final = {
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted",
    48: "DBE (double bit error) ECC Error",
    79: "GPU has fallen off the bus.",
    95: "Uncontained ECC error",
}
_SINGLE_BIT, _DOUBLE_BIT, _XID = 0x1, 0x2, 0x8
OFF_THE_BUS = 79
UNCORRECTABLE = frozenset({48, 95})
"""Xids after which every context on the device has to end. Others are reported, and nothing else happens."""


def write_xid(log: Path, host: str, pci_bus_id: str, xid: int, process: tuple[int, str] | None) -> None:
    """Add the driver's line about an Xid to the log of a daemon that collects the logs of several hosts.

    `process`: pid and name that the driver blames; None where it does not know.
    """
    pid, name = (f"{process[0]}", process[1]) if process is not None else ("'<unknown>'", "<unknown>")
    text = f"pid={pid}, name={name}, {_XID_TEXTS.get(xid, 'injected')}"
    address = pci_bus_id.lower()[-12:].rpartition(".")[0]
    line = f"{_now()} {host} kernel: NVRM: Xid (PCI:{address}): {xid}, {text}\n"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In one piece, whatever else writes.
        with open(log, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            file.write(line.encode())
    except OSError as error:
        raise InputError.of(f"cannot write to {log}: {error.strerror}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """The faults to inject into one GPU. A value of None or 0 changes nothing."""

    xid: int | None = None
    temperature_c: int | None = None  # from now on, independent of the load; 0: by the load
    corrected: int = 0
    uncorrected: int = 0
    remapped_rows: int = 0
    remap_failed: bool = False
    link_down: int | None = None
    heal: bool = False  # clear all faults first; counters that outlive a restart stay

    def problems(self) -> list[Problem]:
        temperature_c = self.temperature_c or 0
        counts = {"ecc-corrected": self.corrected, "ecc-uncorrected": self.uncorrected}
        counts["remapped-rows"] = self.remapped_rows
        problems = [Problem(f"--{name}: how many more, not {count}") for name, count in counts.items() if count < 0]
        if self == FaultSpec():
            problems.append(Problem("inject what?", fix="as in --xid 79, --temperature 95 or --heal"))
        if self.xid is not None and not 1 <= self.xid <= 999:
            problems.append(Problem(f"--xid: from 1 to 999, not {self.xid}"))
        if not -50 <= temperature_c <= 200:
            problems.append(Problem(f"--temperature: from -50 to 200 °C, not {temperature_c}"))
        return problems


def inject(path: Path, gpu: int, fault: FaultSpec, log: Path | None = None) -> None:
    """Inject faults; programs that wait for NVML's events get one.

    `log`: the file to which the driver's line about an Xid is added, as of a host named like the device file.
    """
    problems = fault.problems()
    with open_device_file(path) as file:
        if not 0 <= gpu < file.devices_count:
            problems.append(Problem(f"there is no GPU {gpu}", fix=f"0 to {file.devices_count - 1}"))
        elif fault.link_down is not None and not 0 <= fault.link_down < file.devices[gpu].links:
            problems.append(Problem(f"GPU {gpu} has {file.devices[gpu].links} links, and no {fault.link_down}"))
        elif (fault.remapped_rows or fault.remap_failed) and not file.devices[gpu].row_remap:
            problems.append(Problem(f"GPU {gpu} is of a model that remaps no rows"))
        if problems:
            raise InputError(problems)
        if log is not None and fault.xid is not None:
            # Before the fault: programs may fail at once, and the reason has to be there.
            device = file.devices[gpu]
            blamed = None if fault.xid == OFF_THE_BUS else _process_on(file, gpu)
            write_xid(log, path.stem, device.pci_bus_id.decode(), fault.xid, blamed)
        _apply(file.devices[gpu], fault)


def reset(path: Path, gpu: int) -> None:
    """Clear what a reset of a real GPU clears: ended contexts, counters since the driver was loaded, and rows
    that wait. A GPU that is off the bus, has no spare row or a broken link stays so.
    """
    with open_device_file(path) as file:
        device = file.devices[gpu]
        device.uncorrectable = device.remap_pending = 0
        device.ecc_volatile[0] = device.ecc_volatile[1] = 0


def _process_on(file: DeviceFile, gpu: int) -> tuple[int, str] | None:
    """Return the process that a driver would blame for an error, the first that computes there: pid, name."""
    for slot in file.processes:
        if slot.taken and slot.use[gpu].contexts and is_alive(slot.pid, slot.start_ticks):
            return slot.pid, _name_of(slot.pid)
    return None


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "<unknown>"


def _apply(device: Device, fault: FaultSpec) -> None:
    if fault.heal:
        _heal(device)
    if fault.temperature_c is not None:
        device.fixed_celsius = fault.temperature_c
    for place, count in enumerate((fault.corrected, fault.uncorrected)):
        device.ecc_volatile[place] += count
        device.ecc_aggregate[place] += count
        if count:
            _report(device, (_SINGLE_BIT, _DOUBLE_BIT)[place], 0)
    device.remapped_uncorrectable += fault.remapped_rows
    device.remap_pending |= fault.remapped_rows > 0
    device.remap_failed |= fault.remap_failed
    if fault.link_down is not None:
        device.links_down |= 1 << fault.link_down
    if fault.xid is not None:
        device.lost |= fault.xid == OFF_THE_BUS
        device.uncorrectable |= fault.xid in UNCORRECTABLE
        _report(device, _XID, fault.xid)


def _heal(device: Device) -> None:
    device.lost = device.uncorrectable = 0
    device.fixed_celsius = device.links_down = 0
    device.remap_pending = device.remap_failed = 0
    device.ecc_volatile[0] = device.ecc_volatile[1] = 0


def _report(device: Device, kind: int, data: int) -> None:
    event = device.events[device.next_event % len(device.events)]
    event.type, event.data = kind, data
    device.next_event += 1
