"""What /proc tells of a process: whether it is the same one, its control groups, its work on CPU and disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_LONGEST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """What a process has used since it began. A pid and the time of its start are one process for good."""

    pid: int
    start_ticks: int
    cpu_s: float
    read_bytes: int | None = None
    """From disks; None where this may not be seen."""
    written_bytes: int | None = None


def read_work(pid: int, proc: Path = PROC) -> ProcessWork | None:
    """None for a process that has gone, or only waits to be buried."""
    stat = _text(f"{proc}/{pid}/stat")
    state, *fields = stat.rpartition(")")[2].split() or [""]
    if len(fields) < 19 or state in ("Z", "X"):
        return None
    lines = (line.partition(": ") for line in _text(f"{proc}/{pid}/io").splitlines())
    counters = {name: int(value) for name, _, value in lines if value.isdecimal()}
    return ProcessWork(
        pid,
        start_ticks=int(fields[18]),
        cpu_s=(int(fields[10]) + int(fields[11])) / _TICKS_PER_S,
        read_bytes=counters.get("read_bytes"),
        written_bytes=counters.get("write_bytes"),
    )


def read_control_groups(pid: int, proc: Path = PROC) -> str:
    """Its /proc/PID/cgroup; empty where there is none."""
    return _text(f"{proc}/{pid}/cgroup")


def read_environment(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The variables that it was started with; empty where they may not be seen."""
    pairs = (part.partition("=") for part in _text(f"{proc}/{pid}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _text(path: str) -> str:
    try:
        # Once a second for each process on a GPU: a file object would cost more than the reading.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, _LONGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
