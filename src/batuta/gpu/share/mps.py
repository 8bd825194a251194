"""Hold shares of GPUs by NVIDIA's Multi-Process Service and by the kernel's dmem controller."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from batuta.spec.problem import InputError

CGROUPS: Final = Path("/sys/fs/cgroup")
_VENDOR: Final = "nvidia"
_DEEPEST: Final = 5  # how many folders down a pod's cgroup is at most: of the kubelet's root, its class, and the pod
CONTROL: Final = "nvidia-cuda-mps-control"
_V3_WORDS: Final = ("server", "namespace")  # modules that only the third protocol's help lists
_HELP_TIMEOUT_S: Final = 10.0
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
_CONTROL_TIMEOUT_S: Final = 15.0
SHARED_MEMORY: Final = Path("/dev/shm")
"""Where a server and its clients meet, by files whose place cannot be chosen."""
_SHM_FOLDER: Final = "batuta-mps"
_OPEN_TO_ALL: Final = 0o1777
_WITH_OWN_SHM: Final = f'mount --bind "$0" {SHARED_MEMORY} && exec "$@"'


class CgroupUnavailable(OSError):
    """A pod has no cgroup, or its memory cannot be limited."""


def read_regions(cgroups: Path = CGROUPS) -> Mapping[str, str]:
    """Return the regions of NVIDIA's GPUs by PCI address; empty without the controller."""
    try:
        if "dmem" not in (cgroups / "cgroup.controllers").read_text().split():
            return {}
        lines = (cgroups / "dmem.capacity").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        region = line.split(" ")[0]
        vendor, _, rest = region.partition("/")
        if vendor == _VENDOR and rest:
            found[rest.partition("/")[0].lower()[-12:]] = region
    return found


def pod_cgroup(uid: str, cgroups: Path = CGROUPS) -> Path:
    """Return the cgroup folder of a pod, in either spelling of the kubelet."""
    names = (f"pod{uid}", f"*-pod{uid.replace('-', '_')}.slice")
    for depth in range(1, _DEEPEST + 1):
        for name in names:
            for found in cgroups.glob("*/" * depth + name):
                return found
    raise CgroupUnavailable(f"there is no cgroup of pod {uid} below {cgroups}")


def limit_memory(folder: Path, region: str, most_bytes: int, cgroups: Path = CGROUPS) -> None:
    """Limit the memory of a region for the processes below a cgroup, or raise CgroupUnavailable."""
    try:
        below = folder.relative_to(cgroups).parents
        for parent in (cgroups / one for one in reversed(below)):
            control = parent / "cgroup.subtree_control"
            # The kubelet enables the controllers that it knows below; this is not one of them.
            if "dmem" not in control.read_text().split():
                control.write_text("+dmem")
        (folder / "dmem.max").write_text(f"{region} {most_bytes}\n")
    except OSError as error:
        raise CgroupUnavailable(f"cannot limit {region} in {folder}: {error}") from error


class EnforcementMode(StrEnum):
    """How shares are enforced, from the strictest to the one that every node can have."""

    AUTO = "auto"  # the strictest of what the node can do
    DMEM = "dmem"  # memory by the kernel's dmem controller, compute by MPS v3
    MPS = "mps"  # both by MPS
    PRELOAD = "preload"  # both by Batuta's library in the container


@dataclass(frozen=True, slots=True)
class Capability:
    """What a node has for enforcing shares."""

    regions: Mapping[str, str] = field(default_factory=dict)
    """Regions of the dmem controller by the GPU's PCI address; empty: there are none."""
    mps_protocol: int = 0  # the newest protocol of the MPS control program; 0: there is none

    def missing(self, mode: EnforcementMode) -> list[str]:
        """Return what a mode needs that the node lacks."""
        needs = {
            EnforcementMode.DMEM: [
                (bool(self.regions), "the cgroup v2 controller dmem with regions of the GPU driver"),
                (self.mps_protocol >= 3, "MPS v3 (driver 615 or newer)"),
            ],
            EnforcementMode.MPS: [(self.mps_protocol >= 2, f"{CONTROL} on PATH")],
        }
        return [need for is_there, need in needs.get(mode, []) if not is_there]

    def choose(self, wanted: EnforcementMode) -> EnforcementMode:
        """Return the mode to use, or raise InputError if the node lacks what the wanted mode needs."""
        if wanted is EnforcementMode.AUTO:
            return next(
                mode
                for mode in (EnforcementMode.DMEM, EnforcementMode.MPS, EnforcementMode.PRELOAD)
                if not self.missing(mode)
            )
        if missing := self.missing(wanted):
            raise InputError.of(
                f"--mode {wanted} needs {' and '.join(missing)}",
                fix=f"--mode {self.choose(EnforcementMode.AUTO)} works here",
            )
        return wanted


def detect_capability(cgroups: Path = CGROUPS, control: str = CONTROL) -> Capability:
    """Read the kernel's files, and ask the MPS control program which protocols it knows."""
    return Capability(read_regions(cgroups), _protocol(control))


def _protocol(control: str) -> int:
    program = shutil.which(control)
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-p", "3", "-h"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_HELP_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = done.stdout.lower().split()
    return 3 if done.returncode == 0 and all(word in words for word in _V3_WORDS) else 2


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The MPS daemon of one GPU. With one daemon per GPU, a client's device 0 is always this one."""

    uuid: str
    memory_mib: int
    folder: Path
    protocol: int = 2
    control: str = CONTROL
    shm: Path = SHARED_MEMORY  # the node's: this daemon has a folder of its own in it

    @property
    def pipe(self) -> Path:
        """The folder by which clients reach it."""
        return self.folder / "pipe"

    @property
    def shared_memory(self) -> Path:
        """The folder that this daemon and its clients have as `/dev/shm`, and no other program has."""
        return self.shm / _SHM_FOLDER / self.uuid

    def environment(self) -> dict[str, str]:
        """Return the variables by which the control program addresses this daemon."""
        return {
            PIPE_VARIABLE: str(self.pipe),
            LOG_VARIABLE: str(self.folder / "log"),
            "CUDA_VISIBLE_DEVICES": self.uuid,
        }

    def commands(self) -> tuple[str, ...]:
        """Return the commands of protocol 2 that give a client the whole GPU by default."""
        return (
            f"set_default_device_pinned_mem_limit {self.uuid} {self.memory_mib}M",
            "set_default_active_thread_percentage 100",
        )

    def configuration(self) -> str:
        """Return the same for protocol 3, as a file."""
        return (
            'schema_version = "1.0"\n\n'
            f"[servers.batuta]\n"
            f'allowed_devices = "{self.uuid}"\n'
            f'pinned_memory_limit = "{self.memory_mib}M"\n'
            f'active_thread_percentage = "100"\n\n'
            "[features.memacct]\nenabled = true\n"
        )

    def ensure(self) -> None:
        """Start the daemon unless one answers; a running one is left alone, with its clients."""
        for folder in (self.pipe, self.folder / "log"):
            folder.mkdir(parents=True, exist_ok=True)
        self._make_shared_memory()
        if self._answers():
            return
        if self.protocol >= 3:
            path = self.folder / "mps.toml"
            path.write_text(self.configuration())
            self._run("-d", "-p", "3", "-a", str(path), is_start=True)
            return
        self._run("-d", is_start=True)
        for command in self.commands():
            self._run(command=command)

    def _make_shared_memory(self) -> None:
        """Make the folder; one that another user of the node has put there is refused."""
        for path, mode in ((self.shared_memory.parent, 0o755), (self.shared_memory, _OPEN_TO_ALL)):
            with suppress(FileExistsError):
                path.mkdir()
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise InputError.of(f"{path} is not a folder of this user", fix="remove it")
            path.chmod(mode)

    def _answers(self) -> bool:
        try:
            if self.protocol >= 3:
                self._run("server", "list")
            else:
                self._run(command="get_default_active_thread_percentage")
        except InputError:
            return False
        return True

    def _run(self, *arguments: str, command: str = "", is_start: bool = False) -> str:
        """Call the control program once; commands of protocol 2 go to its standard input.

        A daemon starts in mounts of its own, in which `/dev/shm` is the folder that its clients have there.
        """
        program = shutil.which(self.control)
        if program is None:
            raise InputError.of(f"there is no {self.control} on PATH", fix="--mode preload needs none")
        try:
            done = subprocess.run(
                [*(self._own_mounts() if is_start else ()), program, *arguments],
                input=f"{command}\n" if command else "",
                capture_output=True,
                text=True,
                check=False,
                timeout=_CONTROL_TIMEOUT_S,
                env={**os.environ, **self.environment()},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError.of(f"{self.control} does not answer: {error}") from error
        if done.returncode != 0:
            reason = done.stderr.strip() or done.stdout.strip()
            raise InputError.of(f"{self.control} {' '.join(arguments) or command}: {reason}")
        return done.stdout

    def _own_mounts(self) -> tuple[str, ...]:
        return ("unshare", "--mount", "sh", "-c", _WITH_OWN_SHM, str(self.shared_memory))


def client_environment(daemon: MpsDaemon, memory_mib: int | None, compute_percent: int | None) -> Mapping[str, str]:
    """Return the variables of a container that is a client of a daemon; None: no limit.

    A limit may only be tighter than the daemon's own, so a client that removes its variable gets the card.
    """
    found = {PIPE_VARIABLE: str(daemon.pipe)}
    if compute_percent is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(compute_percent)
    if memory_mib is not None:
        # By number: the daemon has this one card, so it is device 0 of every client.
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_mib}M"
    return found
