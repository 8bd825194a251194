"""What replicas may have at most: from the task file, from the options of the server, or by what this machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batuta.backends.local.cgroups import (
    Cgroups,
    ReplicaLimits,
    SharedLimits,
    find_cgroups,
    memory_limit_bytes,
    process_limit,
)
from batuta.spec.task import Task

_GIB: Final = 2**30
FEWEST_PROCESSES: Final = 4096
_PROCESSES_OF_CPU: Final = 256
_PART_OF_PIDS: Final = 8  # of all processes that the machine can have
_LEAST_PROCESSES: Final = 256
_RESERVED_PIDS: Final = 512
_RESERVED_PART_OF_PIDS: Final = 8
_LEAST_RESERVED_BYTES: Final = _GIB
_RESERVED_PART: Final = 16
_LARGEST_RESERVED_PART: Final = 4
_HIGHEST_SCORE, _LOWEST_SCORE = 900, 100


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What `batuta up` was told about limits. None: by what this machine has."""

    processes: int | None = None  # processes and threads of each node of a job whose task says nothing
    memory_gib: float | None = None  # of each node of a job whose task says nothing
    reserve_memory_gib: float | None = None  # what all jobs together leave to the rest of the machine


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """The limits of this machine's replicas, and how they are enforced."""

    processes: int
    memory_bytes: int
    shared: SharedLimits
    total_bytes: int
    cgroups: Cgroups | None = None  # None: the runner watches
    open_files: int | None = None  # the soft limit that the server had before it raised its own

    def of(self, task: Task, run_id: str, gpus: int, nodes: int = 1) -> dict[str, Any]:
        """Return the limits of a replica that stands for so many nodes of its task, as plain values for its spec.

        `gpus` are those of one node.
        """
        cpus, memory = task.cpus, task.memory_gib
        # An amount with a plus is the least that it needs.
        cap = None if cpus is None or cpus.or_more else cpus.value * nodes
        asked = None if memory is None or memory.or_more else round(memory.value * nodes * _GIB)
        limits = ReplicaLimits(
            processes=min((task.pids_limit or self.processes) * nodes, self.shared.processes),
            memory_bytes=min(asked or self.memory_bytes * nodes, self.shared.memory_bytes),
            cpus=cap if cap is not None and cap < self.shared.cpus else None,
            cpu_weight=min(float(self.shared.cpus), nodes * (cpus.value if cpus is not None else max(1.0, gpus))),
        )
        return {
            "processes": limits.processes,
            "memory_bytes": limits.memory_bytes,
            "all_memory_bytes": self.shared.memory_bytes,
            "all_processes": self.shared.processes,
            "open_files": self.open_files,
            "oom_score_adj": self._score(0.0 if memory is None else memory.value * nodes),
            "cgroup": None if self.cgroups is None else self.cgroups.plan(run_id, limits, self.shared),
        }

    def _score(self, asked_gib: float) -> int:
        """How likely the kernel ends it when memory is short: as on Kubernetes, one that asked for much is spared."""
        score = round(1000 - 1000 * asked_gib * _GIB / self.total_bytes)
        return max(_LOWEST_SCORE, min(_HIGHEST_SCORE, score))


def machine_limits(home: Path, options: LimitOptions, open_files: int | None = None) -> LocalLimits:
    """Return the limits for jobs of this machine."""
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    total = min(page * pages, memory_limit_bytes() or page * pages)
    reserved = max(_LEAST_RESERVED_BYTES, total // _RESERVED_PART)
    if options.reserve_memory_gib is not None:
        reserved = round(options.reserve_memory_gib * _GIB)
    shared = max(total - reserved, total // _LARGEST_RESERVED_PART)
    cpus, pids = os.cpu_count() or 1, _most_pids()
    usual = min(max(FEWEST_PROCESSES, _PROCESSES_OF_CPU * cpus), max(_LEAST_PROCESSES, pids // _PART_OF_PIDS))
    processes = options.processes or usual
    memory = shared if options.memory_gib is None else min(shared, round(options.memory_gib * _GIB))
    all_pids = pids - max(pids // _RESERVED_PART_OF_PIDS, min(_RESERVED_PIDS, pids // _LARGEST_RESERVED_PART))
    limits = SharedLimits(shared, cpus, all_pids)
    return LocalLimits(processes, memory, limits, total, find_cgroups(home), open_files)


def _most_pids() -> int:
    found = [] if (own := process_limit()) is None else [own]
    for name in ("pid_max", "threads-max"):
        try:
            found.append(int(Path("/proc/sys/kernel", name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return min(found, default=1 << 15)
