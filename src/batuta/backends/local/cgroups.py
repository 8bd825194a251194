"""Control groups for the replicas of this machine: where they can be made, and what limits are called there.

Versions 1 and 2 of the kernel's interface differ in folders and names of files alone. Both are described to the runner
in the same words (`plan`), which makes the groups, puts the commands of its replica into them and removes them
(supervisor/containment.py): so they outlive the server, and a new one finds them in the spec of the run.

    <the server's own group>/batuta-<id of the home>/<run id>

All replicas of a server are below one group, whose limits keep memory and process ids for everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc/self")
_NEEDED: Final = ("pids", "memory")
_OPTIONAL: Final = ("cpu", "blkio")
_SHARES_OF_CPU: Final = 1024
_PERIOD_US: Final = 100_000
_CHARGED_AT_ONCE_BYTES: Final = 1 << 20  # a group has reached its limit when less than this is left
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_UNLIMITED: Final = 1 << 60  # version 1 says a number near 2**63 for no limit


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What one replica may have at most."""

    processes: int  # and threads
    memory_bytes: int
    cpus: float | None = None  # None: as many as are idle
    cpu_weight: float = 1.0  # its part of the CPUs when there are not enough, in CPUs


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What all replicas of a server may have together."""

    memory_bytes: int
    cpus: int
    processes: int  # and threads


class Cgroups(ABC):
    """Where this server may make groups for its replicas."""

    @abstractmethod
    def plan(self, run_id: str, limits: ReplicaLimits, shared: SharedLimits) -> dict[str, Any]:
        """Return what the runner has to make, write and read, as plain values for its spec."""


@dataclass(frozen=True, slots=True)
class CgroupsV1(Cgroups):
    """One hierarchy for each controller."""

    base: Mapping[str, Path]  # by controller: the group around those of all replicas

    def plan(self, run_id: str, limits: ReplicaLimits, shared: SharedLimits) -> dict[str, Any]:
        folders = {name: base / run_id for name, base in self.base.items()}
        pids, memory = folders["pids"], folders["memory"]
        outer = self.base["memory"]
        settings: list[tuple[Path, object, bool]] = [
            (pids / "pids.max", limits.processes, True),
            (memory / "memory.limit_in_bytes", limits.memory_bytes, True),
            (memory / "memory.memsw.limit_in_bytes", limits.memory_bytes, False),  # no swap beside it
        ]
        base_settings: list[tuple[Path, object, bool]] = [
            (outer / "memory.use_hierarchy", 1, False),  # always so in newer kernels
            (outer / "memory.limit_in_bytes", shared.memory_bytes, True),
            (self.base["pids"] / "pids.max", shared.processes, True),
        ]
        if (cpu := folders.get("cpu")) is not None:
            base_settings.append((self.base["cpu"] / "cpu.shares", _SHARES_OF_CPU * shared.cpus, False))
            settings.append((cpu / "cpu.shares", max(2, round(_SHARES_OF_CPU * limits.cpu_weight)), False))
            if limits.cpus is not None:
                settings.append((cpu / "cpu.cfs_period_us", _PERIOD_US, False))
                settings.append((cpu / "cpu.cfs_quota_us", max(1000, round(_PERIOD_US * limits.cpus)), False))
        counters = {
            "processes": (pids / "pids.events", "max"),
            "own_processes": (pids / "pids.current", ""),
            "all_processes": (self.base["pids"] / "pids.current", ""),
            "memory": (memory / "memory.oom_control", "oom_kill"),
            "own_memory": (memory / "memory.max_usage_in_bytes", ""),
        }
        return _plan(
            *(list(self.base.values()), list(folders.values()), base_settings, settings, counters),
            notifies=False,
            own_memory_from=limits.memory_bytes - _CHARGED_AT_ONCE_BYTES,
        )


@dataclass(frozen=True, slots=True)
class CgroupsV2(Cgroups):
    """One hierarchy for all controllers."""

    base: Path

    def plan(self, run_id: str, limits: ReplicaLimits, shared: SharedLimits) -> dict[str, Any]:
        base, own = self.base, self.base / run_id
        base_settings: list[tuple[Path, object, bool]] = [
            (base / "memory.max", shared.memory_bytes, True),
            (base / "pids.max", shared.processes, True),
            (base / "cpu.weight", min(10_000, 100 * shared.cpus), False),
            (base / "cgroup.subtree_control", "+pids +memory", True),
            (base / "cgroup.subtree_control", "+cpu", False),
            (base / "cgroup.subtree_control", "+io", False),
        ]
        settings: list[tuple[Path, object, bool]] = [
            (own / "pids.max", limits.processes, True),
            (own / "memory.max", limits.memory_bytes, True),
            (own / "memory.swap.max", 0, False),
            (own / "memory.oom.group", 1, False),  # what is left after the kernel has killed a part is of no use
            (own / "cpu.weight", min(10_000, max(1, round(100 * limits.cpu_weight))), False),
        ]
        if limits.cpus is not None:
            settings.append((own / "cpu.max", f"{max(1000, round(_PERIOD_US * limits.cpus))} {_PERIOD_US}", False))
        counters = {
            "processes": (own / "pids.events", "max"),
            "own_processes": (own / "pids.current", ""),
            "all_processes": (base / "pids.current", ""),
            "memory": (own / "memory.events", "oom_kill"),
            "own_memory": (own / "memory.events", "oom"),
        }
        return _plan([base], [own], base_settings, settings, counters, notifies=True, own_memory_from=1)


def _plan(
    base: list[Path],
    folders: list[Path],
    base_settings: list[tuple[Path, object, bool]],
    settings: list[tuple[Path, object, bool]],
    counters: Mapping[str, tuple[Path, str]],
    *,
    notifies: bool,
    own_memory_from: int,
) -> dict[str, Any]:
    return {
        "base": [str(path) for path in base],
        "base_settings": [(str(path), str(value), needed) for path, value, needed in base_settings],
        "folders": [str(path) for path in folders],
        "settings": [(str(path), str(value), needed) for path, value, needed in settings],
        "counters": {name: (str(path), word) for name, (path, word) in counters.items()},
        "pids_max": str(next(path for path, _, _ in settings if path.name == "pids.max")),
        "notifies": notifies,
        "own_memory_from": own_memory_from,
    }


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy: where it is seen, and this process's own group in it."""

    point: Path
    own: Path


def find_cgroups(home: Path, proc: Path = _PROC) -> Cgroups | None:
    """Return where groups for the jobs of a home can be made; None where this process may not make any.

    The group of this process comes first: an administrator who has put the server into a group means its jobs, too.
    """
    name = f"batuta-{hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]}"
    try:
        v1, v2 = _mounts(proc)
    except OSError:
        return None
    if all(controller in v1 and _is_writable(v1[controller].own) for controller in _NEEDED):
        used = [one for one in (*_NEEDED, *_OPTIONAL) if one in v1 and _is_writable(v1[one].own)]
        return CgroupsV1({controller: v1[controller].own / name for controller in used})
    if v2 is None:
        return None
    for parent in dict.fromkeys((v2.own, v2.point)):
        if _is_writable(parent) and _delegates(parent):
            return CgroupsV2(parent / name)
    return None


def memory_limit_bytes(proc: Path = _PROC) -> int | None:
    """Return the memory limit that this process's own groups set; None where there is none."""
    return _own_limit(proc, "memory", "memory.limit_in_bytes", "memory.max")


def process_limit(proc: Path = _PROC) -> int | None:
    """Return the limit on processes and threads that this process's own groups set; None where there is none."""
    return _own_limit(proc, "pids", "pids.max", "pids.max")


def _own_limit(proc: Path, controller: str, v1_file: str, v2_file: str) -> int | None:
    try:
        v1, v2 = _mounts(proc)
    except OSError:
        return None
    places = [] if controller not in v1 else [(v1[controller], v1_file)]
    places += [] if v2 is None else [(v2, v2_file)]
    found = []
    for mount, file in places:
        for folder in (mount.own, *mount.own.parents):
            with contextlib.suppress(OSError, ValueError):
                found.append(int((folder / file).read_text(encoding="ascii")))
            if folder == mount.point:
                break
    return min((one for one in found if one < _UNLIMITED), default=None)


def _mounts(proc: Path) -> tuple[dict[str, _Mount], _Mount | None]:
    """The hierarchies of version 1 by controller, and that of version 2."""
    own: dict[str, str] = {}
    for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    v1: dict[str, _Mount] = {}
    v2: _Mount | None = None
    for line in (proc / "mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(" "), after.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) for text in fields[3:5])
        if kind == "cgroup2" and v2 is None and "" in own:
            v2 = _Mount(Path(point), _below(point, root, own[""]))
        elif kind == "cgroup":
            for controller in options.split(","):
                if controller in own and controller not in v1:
                    v1[controller] = _Mount(Path(point), _below(point, root, own[controller]))
    return v1, v2


def _below(point: str, root: str, path: str) -> Path:
    """The folder of a group; a container sees only a part of the hierarchy, and itself outside of it perhaps."""
    rest = os.path.relpath(path, root)
    return Path(point) if rest.startswith("..") or rest == "." else Path(point, rest)


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _delegates(parent: Path) -> bool:
    """Whether groups below this one have the controllers; makes it so if need be.

    Only groups without processes of their own, and the root, may do so. If this process and what it has started are
    all that is in it, they move into a group below.
    """
    try:
        available = (parent / "cgroup.controllers").read_text(encoding="ascii").split()
        if not set(_NEEDED) <= set(available):
            return False
        control = parent / "cgroup.subtree_control"
        wanted = " ".join(f"+{one}" for one in (*_NEEDED, "cpu", "io") if one in available)
        if set(_NEEDED) <= set(control.read_text(encoding="ascii").split()):
            return True
        with contextlib.suppress(OSError):
            control.write_text(wanted, encoding="ascii")
            return True
        members = {int(line) for line in (parent / "cgroup.procs").read_text(encoding="ascii").split()}
        if members != {os.getpid()}:
            return False
        leaf = parent / "batuta-server"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        control.write_text(wanted, encoding="ascii")
    except OSError:
        return False
    return True
