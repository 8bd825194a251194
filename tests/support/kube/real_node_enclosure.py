"""Namespaces for a node: its mounts, processes and network are its own, and end with it.

One program (`unshare`) holds them. When it is killed, in whatever way, the kernel ends every process inside:
the container runtime, the kubelet, all containers. With the last of them go the mounts and the network
devices, and with these the other end of the cable to this machine. Only cgroups have to be removed by hand.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Self

from tests.support.kube.control_plane import wait_until
from tests.support.kube.processes import Guard, RunningProgram

CGROUPS = Path("/sys/fs/cgroup")
BRIDGE = "pods"
_OWN_FOLDERS = ("/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni")
"""Paths that the kubelet and the container runtime do not let anyone change: empty ones for the node."""
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""The kubelet would change these for the whole machine; inside, they read as if it had."""
_NAMESPACES = ("--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")
_CONTROLLERS = {"cpu", "cpuset", "memory", "pids"}
"""What the kubelet wants of cgroups."""
_CGROUP = "batuta-tests-"
"""With the number of the process that tests: what others of them left behind can be told."""
_CABLE = "uplink"
_READY_WITHIN_S = 30.0
_COMMAND_WITHIN_S = 30.0


class EnclosureFailed(Exception):
    """The machine did not allow what a node needs; which command, and what it said."""


class Enclosure:
    """Where one real node lives, from `with` to the end of its block. This machine is `gateway` in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.network = _free_network()
        self.cgroup = f"{_CGROUP}{os.getpid()}"
        self._ready = folder / "ready"
        self._stack = ExitStack()

    @property
    def gateway(self) -> IPv4Address:
        """The address of this machine, as the node and its pods see it."""
        return self.network[1]

    @property
    def address(self) -> IPv4Address:
        """The address of the node."""
        return self.network[2]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in _OWN_FOLDERS:
                _make_mount_point(Path(path), stack)
            stack.callback(self._remove_cgroups)
            self._make_cgroups()
            self._guard = Guard()
            stack.callback(self._guard.close)
            holder = self._start_holder()
            stack.callback(holder.stop)
            self._inside = _only_child(holder.pid)
            self._connect()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, program: Path, words: Sequence[str], log: Path) -> RunningProgram:
        """Starts a program inside; it ends with the enclosure."""
        enter, *rest = self._enter()
        running = self._guard.start(_on_path(enter), [*rest, str(program), *words], log)
        self._stack.callback(running.stop)
        return running

    def run(self, *command: str | Path) -> str:
        """What a command prints that is run inside."""
        return _run(*self._enter(), *command)

    def path(self, path: str) -> Path:
        """A path inside, seen from outside."""
        return Path(f"/proc/{self._inside}/root{path}")

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self._inside}", "--mount", "--pid", "--net", "--"]

    def _start_holder(self) -> RunningProgram:
        """The first process inside: it makes the mounts, says that it is ready, and waits for its end."""
        lines = [f"mount -t tmpfs tmpfs {path}" for path in _OWN_FOLDERS]
        for number, (name, value) in enumerate(_KERNEL_SETTINGS.items()):
            pretended = f"/run/setting-{number}"
            lines += [f"echo {value} > {pretended}", f"mount --bind {pretended} /proc/sys/{name}"]
        lines += ["ip link set lo up", f"touch '{self._ready}'", "exec sleep infinity"]
        words = [*_NAMESPACES, "sh", "-ec", "\n".join(lines)]
        holder = self._guard.start(_on_path("unshare"), words, self.folder / "enclosure.log")

        def is_ready() -> bool:
            return self._ready.exists() or not holder.is_alive

        wait_until(is_ready, "the node's namespaces", _READY_WITHIN_S)
        if not holder.is_alive:
            holder.stop()
            raise EnclosureFailed(f"no namespaces for a node; {holder.last_words()}")
        return holder

    def _connect(self) -> None:
        """A bridge inside, with the node's address, and a cable from it to this machine."""
        here = f"bt{self._inside}"
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", _CABLE, "netns", str(self._inside))
        length = self.network.prefixlen
        _run("ip", "address", "add", f"{self.gateway}/{length}", "dev", here)
        _run("ip", "link", "set", here, "up")
        self.run("ip", "link", "add", BRIDGE, "type", "bridge")
        self.run("ip", "address", "add", f"{self.address}/{length}", "dev", BRIDGE)
        self.run("ip", "link", "set", _CABLE, "master", BRIDGE)
        for name in (_CABLE, BRIDGE):
            self.run("ip", "link", "set", name, "up")

    def _make_cgroups(self) -> None:
        for root in _cgroup_roots():
            for stale in root.glob(f"{_CGROUP}*"):
                if not Path(f"/proc/{stale.name.removeprefix(_CGROUP)}").exists():
                    _remove_tree(stale)
            folder = root / self.cgroup
            folder.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                # In version 1 nothing can run in a set of processors that is empty, and a new one is.
                if not is_unified() and (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())

    def _remove_cgroups(self) -> None:
        for root in _cgroup_roots():
            # A process that was killed a moment ago is still in its cgroup.
            top = root / self.cgroup
            wait_until(partial(_remove_tree, top), f"{top} to be empty", _READY_WITHIN_S)


def why_no_enclosure() -> str | None:
    """One line that says what this machine does not allow; None if a node can have all it needs."""
    if os.geteuid() != 0:
        return "namespaces and cgroups need root"
    if not os.access(CGROUPS, os.W_OK):
        return f"cannot make cgroups below {CGROUPS}"
    if is_unified() and (missing := _CONTROLLERS - _words(CGROUPS / "cgroup.subtree_control")):
        return f"new cgroups below {CGROUPS} would be without {', '.join(sorted(missing))}"
    trial = "mount -t tmpfs tmpfs /run && ip link add pods type bridge"
    try:
        _run("unshare", *_NAMESPACES, "sh", "-c", trial)
    except (EnclosureFailed, OSError) as problem:
        return f"no namespaces: {problem}".splitlines()[0]
    return None


def is_unified() -> bool:
    """Whether this machine has cgroups of version 2 only."""
    return (CGROUPS / "cgroup.controllers").exists()


def _cgroup_roots() -> list[Path]:
    """Where a cgroup has to be made: in every hierarchy of version 1, else in the one of version 2."""
    return [CGROUPS] if is_unified() else [path for path in CGROUPS.iterdir() if path.is_dir()]


def _remove_tree(top: Path) -> bool:
    """Removes folders of which all are empty, as cgroups are to those who remove them; whether it could."""
    for folder in [*sorted(top.rglob("*/"), reverse=True), top]:
        _remove_empty(folder)
    return not top.exists()


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


def _free_network() -> IPv4Network:
    """A network of which this machine knows nothing."""
    taken = _run("ip", "-4", "route", "show", "table", "all")
    candidates = [number for number in range(200, 250) if f"10.{number}." not in taken]
    if not candidates:
        raise EnclosureFailed("no free network between 10.200.0.0 and 10.249.0.0")
    # Two tests that are started together must not choose the same.
    return IPv4Network(f"10.{random.SystemRandom().choice(candidates)}.77.0/24")


def _make_mount_point(path: Path, stack: ExitStack) -> None:
    """An empty folder, which goes again if it was not there before."""
    if not path.exists():
        path.mkdir(parents=True)
        stack.callback(_remove_empty, path)


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise EnclosureFailed(f"there is no {name} on PATH")
    return Path(found)


def _run(*command: str | Path) -> str:
    said = subprocess.run(
        [_on_path(str(command[0])), *map(str, command[1:])],
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_WITHIN_S,
    )
    if said.returncode != 0:
        raise EnclosureFailed(f"{' '.join(map(str, command))}: {said.stderr.strip() or said.stdout.strip()}")
    return said.stdout
