"""Find the job that owns a process on a GPU, and what the process has used, from /proc."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PROC_MAX_BYTES: Final = 1 << 16
V = TypeVar("V")
_MAX_CACHED: Final = 4096
_JOB: Final = "BATUTA_JOB_ID"
_REPLICA: Final = "BATUTA_REPLICA"
_PROGRESS: Final = "BATUTA_PROGRESS"


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A pod of a job, or a job's replica on this machine."""

    job: str
    pod: str = ""  # the pod, or the replica; empty where a job has no parts
    namespace: str = ""  # of both, on Kubernetes


class Owners(ABC):
    """Finds the owners of processes and GPUs."""

    @abstractmethod
    def of(self, pid: int) -> Owner | None:
        """Return the owner of a process; None for one of the host, or one that has ended."""

    def by_gpu(self) -> Mapping[str, Owner]:
        """Return the owners of whole GPUs, by UUID: for GPUs whose processes cannot be seen."""
        return {}


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """What a process has used since it began. Its pid and start time identify it for good."""

    pid: int
    start_ticks: int
    cpu_s: float
    read_bytes: int | None = None  # from disks; None without permission
    written_bytes: int | None = None


def is_alive(pid: int, start_ticks: int) -> bool:
    """Return whether this very process runs: not another with its pid, and not a zombie.

    One that cannot be looked at (no descriptor is left, say) counts as running: only the kernel says that it ended.
    """
    try:
        fields = _read_stat(pid, PROC)
    except OSError:
        return True
    return bool(fields) and int(fields[18]) == start_ticks


def read_work(pid: int, proc: Path = PROC) -> ProcessWork | None:
    """Return what a process has used; None for one that has ended, is a zombie, or cannot be looked at now."""
    try:
        fields = _read_stat(pid, proc)
    except OSError:
        return None
    if not fields:
        return None
    lines = (line.partition(": ") for line in _text_if_any(f"{proc}/{pid}/io").splitlines())
    counters = {name: int(value) for name, _, value in lines if value.isdecimal()}
    return ProcessWork(
        pid,
        start_ticks=int(fields[18]),
        cpu_s=(int(fields[10]) + int(fields[11])) / _TICKS_PER_S,
        read_bytes=counters.get("read_bytes"),
        written_bytes=counters.get("write_bytes"),
    )


def read_control_groups(pid: int, proc: Path = PROC) -> str:
    return _text_if_any(f"{proc}/{pid}/cgroup")


def read_environment(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Return the variables that it was started with; empty without permission."""
    pairs = (part.partition("=") for part in _text_if_any(f"{proc}/{pid}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _read_stat(pid: int, proc: Path) -> list[str]:
    """Return the fields of /proc/PID/stat behind the state; none for a process that has ended, or is a zombie."""
    state, *fields = _text(f"{proc}/{pid}/stat").rpartition(")")[2].split() or [""]
    return [] if len(fields) < 19 or state in ("Z", "X") else fields


def _text(path: str) -> str:
    """Return what a file of /proc says; empty for a process that is gone. OSError when it cannot be read now."""
    try:
        # Once a second for each process on a GPU: a file object would cost more than the reading.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    try:
        return os.read(file, _PROC_MAX_BYTES).decode(errors="replace")
    except ProcessLookupError:
        return ""
    finally:
        os.close(file)


def _text_if_any(path: str) -> str:
    try:
        return _text(path)
    except OSError:
        return ""


class ProcessCache(Generic[V]):
    """Calls `ask` once for each process. Pids are reused: a process is its pid and its start time."""

    def __init__(self, ask: Callable[[int], V], proc: Path = PROC) -> None:
        self._ask = ask
        self._proc = proc
        self._known: dict[int, tuple[int, V]] = {}

    def of(self, pid: int) -> V | None:
        """Return the answer for a process; None for one that has ended."""
        known = self._known.get(pid)
        try:
            fields = _read_stat(pid, self._proc)
        except OSError:
            return None if known is None else known[1]  # it cannot be looked at now: as it was
        if not fields:
            self._known.pop(pid, None)
            return None
        start_ticks = int(fields[18])
        if known is None or known[0] != start_ticks:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()  # most of them have long ended
            known = self._known[pid] = (start_ticks, self._ask(pid))
        return known[1]


class LocalOwners(Owners):
    """Owners on a machine without Kubernetes: replicas carry their names in their environment.

    A process may claim any name, so no permission may depend on it.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._memo = ProcessCache(self._ask, proc)
        self.progress_files: dict[str, str] = {}  # by job: the file to which its processes report their progress

    def of(self, pid: int) -> Owner | None:
        return self._memo.of(pid)

    def _ask(self, pid: int) -> Owner | None:
        env = read_environment(pid, self._proc)
        job = env.get(_JOB, "")
        if job and env.get(_PROGRESS):
            self.progress_files[job] = env[_PROGRESS]
        return Owner(job, pod=env.get(_REPLICA, "")) if job else None
