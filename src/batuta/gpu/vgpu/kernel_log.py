"""The kernel log of a machine that is not there: what a driver would write when a virtual GPU is harmed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from batuta.spec.problem import InputError

_WORDS: Final = {
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted",
    48: "DBE (double bit error) ECC Error",
    79: "GPU has fallen off the bus.",
    95: "Uncontained ECC error",
}


def write_xid(log: Path, host: str, pci_bus_id: str, xid: int, process: tuple[int, str] | None) -> None:
    """Adds the line of an Xid, as a log daemon has it that collects the logs of several hosts.

    `process`: pid and name of whom the driver blames; None where it does not know.
    """
    pid, name = (f"{process[0]}", process[1]) if process is not None else ("'<unknown>'", "<unknown>")
    said = f"pid={pid}, name={name}, {_WORDS.get(xid, 'injected')}"
    address = pci_bus_id.lower()[-12:].rpartition(".")[0]
    line = f"{_now()} {host} kernel: NVRM: Xid (PCI:{address}): {xid}, {said}\n"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In one piece, whoever else writes.
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as error:
        raise InputError.of(f"cannot write to {log}: {error.strerror}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
