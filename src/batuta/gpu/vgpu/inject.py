"""Harming virtual GPUs: Xid errors, heat, memory errors, links that fail; and healing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.vgpu.device_file import opened
from batuta.gpu.vgpu.kernel_log import write_xid
from batuta.gpu.vgpu.layout import Device, DeviceFile
from batuta.gpu.vgpu.snapshot import is_alive
from batuta.spec.problem import InputError, Problem

_SINGLE_BIT, _DOUBLE_BIT, _XID = 0x1, 0x2, 0x8

OFF_THE_BUS = 79
UNCORRECTABLE = frozenset({48, 95})
"""Xids after which every context on the device has to end. Others are reported, and nothing else happens."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What is to be done to one GPU. What is None or 0 stays as it is."""

    xid: int | None = None
    temperature_c: int | None = None
    """From now on, whatever the load; 0: as the load says."""
    corrected: int = 0
    uncorrected: int = 0
    remapped_rows: int = 0
    remap_failed: bool = False
    link_down: int | None = None
    heal: bool = False
    """First, all is well again; counters that outlive a restart stay."""

    def problems(self) -> list[Problem]:
        """All that is wrong with it."""
        temperature_c = self.temperature_c or 0
        counts = {"ecc-corrected": self.corrected, "ecc-uncorrected": self.uncorrected}
        counts["remapped-rows"] = self.remapped_rows
        problems = [
            Problem(f"--{name}: how many more, not {count}") for name, count in counts.items() if count < 0
        ]
        if self == Harm():
            problems.append(Problem("inject what?", fix="as in --xid 79, --temperature 95 or --heal"))
        if self.xid is not None and not 1 <= self.xid <= 999:
            problems.append(Problem(f"--xid: from 1 to 999, not {self.xid}"))
        if not -50 <= temperature_c <= 200:
            problems.append(Problem(f"--temperature: from -50 to 200 °C, not {temperature_c}"))
        return problems


def inject(path: Path, gpu: int, harm: Harm, log: Path | None = None) -> None:
    """Does it; programs that wait for NVML's events are told.

    `log`: where the driver's line about an Xid is added, as of a host that is called as the file.
    """
    problems = harm.problems()
    with opened(path) as file:
        if not 0 <= gpu < file.devices_count:
            problems.append(Problem(f"there is no GPU {gpu}", fix=f"0 to {file.devices_count - 1}"))
        elif harm.link_down is not None and not 0 <= harm.link_down < file.devices[gpu].links:
            problems.append(
                Problem(f"GPU {gpu} has {file.devices[gpu].links} links, and no {harm.link_down}")
            )
        elif (harm.remapped_rows or harm.remap_failed) and not file.devices[gpu].row_remap:
            problems.append(Problem(f"GPU {gpu} is of a model that remaps no rows"))
        if problems:
            raise InputError(problems)
        if log is not None and harm.xid is not None:
            # Before anything happens: programs may fail at once, and whoever asks why has to find it.
            device = file.devices[gpu]
            blamed = None if harm.xid == OFF_THE_BUS else _process_on(file, gpu)
            write_xid(log, path.stem, device.pci_bus_id.decode(), harm.xid, blamed)
        _do(file.devices[gpu], harm)


def reset(path: Path, gpu: int) -> None:
    """What a reset of a real GPU mends: contexts that an error ended, counters since the driver was loaded,
    rows that wait. One that is off the bus, has no spare row or a broken link stays so.
    """
    with opened(path) as file:
        device = file.devices[gpu]
        device.uncorrectable = device.remap_pending = 0
        device.ecc_volatile[0] = device.ecc_volatile[1] = 0


def _process_on(file: DeviceFile, gpu: int) -> tuple[int, str] | None:
    """Whom a driver would blame for an error: the first who computes there; pid and name."""
    for slot in file.processes:
        if slot.taken and slot.use[gpu].contexts and is_alive(slot.pid, slot.start_ticks):
            return slot.pid, _name_of(slot.pid)
    return None


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "<unknown>"


def _do(device: Device, harm: Harm) -> None:
    if harm.heal:
        _heal(device)
    if harm.temperature_c is not None:
        device.fixed_celsius = harm.temperature_c
    for place, count in enumerate((harm.corrected, harm.uncorrected)):
        device.ecc_volatile[place] += count
        device.ecc_aggregate[place] += count
        if count:
            _report(device, (_SINGLE_BIT, _DOUBLE_BIT)[place], 0)
    device.remapped_uncorrectable += harm.remapped_rows
    device.remap_pending |= harm.remapped_rows > 0
    device.remap_failed |= harm.remap_failed
    if harm.link_down is not None:
        device.links_down |= 1 << harm.link_down
    if harm.xid is not None:
        device.lost |= harm.xid == OFF_THE_BUS
        device.uncorrectable |= harm.xid in UNCORRECTABLE
        _report(device, _XID, harm.xid)


def _heal(device: Device) -> None:
    device.lost = device.uncorrectable = 0
    device.fixed_celsius = device.links_down = 0
    device.remap_pending = device.remap_failed = 0
    device.ecc_volatile[0] = device.ecc_volatile[1] = 0


def _report(device: Device, kind: int, data: int) -> None:
    event = device.events[device.next_event % len(device.events)]
    event.type, event.data = kind, data
    device.next_event += 1
