"""Lines of the kernel log that tell of GPUs and NVLink switches."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from batuta.core.health_rules import Source

LONGEST: Final = 1000
"""Characters of a line that are looked at: rules with slow patterns do not get to see endless lines."""
_ERROR: Final = re.compile(
    r"""(?:NVRM:\s+Xid|nvidia-nvswitch\d*:\s+(?P<switch>SXid))\s+
        \(PCI:(?P<pci>[0-9a-fA-F]{2,8}(?::[0-9a-fA-F]{2}){1,2}(?:\.[0-7])?)\):\s*
        (?P<code>\d{1,6})(?:,\s*(?P<text>.*))?$""",
    re.VERBOSE,
)
_PID: Final = re.compile(r"\bpid='?(\d{1,10})'?")
_KMSG: Final = re.compile(r"\d{1,5},\d{1,20},(\d{1,20}),[^;]*;")
_UPTIME: Final = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")
_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?(?![\d:])"
)
_SYSLOG: Final = re.compile(r"([A-Z][a-z]{2})\s{1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)\b")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class KernelError(NamedTuple):
    """An Xid or SXid."""

    source: Source
    code: int
    pci: str
    """The address of the GPU or switch: domain, bus and device, as in 0000:3b:00."""
    text: str
    """What follows the code."""
    pid: int | None


def parse_line(line: str) -> KernelError | None:
    """What a line tells, whatever a log daemon wrote before it; None: nothing about GPUs."""
    found = _ERROR.search(line[:LONGEST].rstrip())
    if found is None:
        return None
    text = found["text"] or ""
    pid = _PID.search(text)
    return KernelError(
        Source.SXID if found["switch"] else Source.XID,
        int(found["code"]),
        short_address(found["pci"]),
        text,
        int(pid[1]) if pid is not None else None,
    )


def short_address(pci: str) -> str:
    """One spelling for what NVML, the kernel and the driver spell differently: `0000:3b:00`."""
    parts = pci.lower().split(".")[0].split(":")
    domain = int(parts[0], 16) if len(parts) == 3 else 0
    return f"{domain:04x}:{':'.join(parts[-2:])}"


def stamp_s(line: str) -> float | None:
    """When a line says it was written, in seconds on a clock that only lines of the same log share."""
    head = line[:120]
    if found := _KMSG.match(head):
        return int(found[1]) / 1e6
    if found := _ISO.search(head):
        return _iso_s(found)
    if found := _SYSLOG.search(head):
        return _syslog_s(found)
    found = _UPTIME.search(head)
    return float(found[1]) if found is not None else None


def _iso_s(found: re.Match[str]) -> float | None:
    zone = (found[3] or "Z").replace("Z", "+00:00")
    try:
        whole = datetime.fromisoformat(f"{found[1].replace(' ', 'T')}{zone}")
    except ValueError:
        return None
    return whole.timestamp() + float(f"0.{found[2] or 0}")


def _syslog_s(found: re.Match[str]) -> float | None:
    """Seconds since the year began; which year the line does not say, so every one has a February 29."""
    if found[1] not in _MONTHS:
        return None
    try:
        moment = datetime.fromisoformat(
            f"2000-{_MONTHS.index(found[1]) + 1:02}-{int(found[2]):02}T{found[3]}:{found[4]}:{found[5]}+00:00"
        )
    except ValueError:
        return None
    return moment.timestamp()
