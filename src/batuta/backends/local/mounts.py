"""`file_mounts` and `~/sky_workdir` where all nodes are this machine: seen by the job's processes alone.

Each replica gets a mount namespace of its own (supervisor/mount_namespace.py), in which what a task wants mounted is
bound to where it wants it. Nothing is left at the targets, and what is there already is not touched: it is only not
seen by the job. A target below `~` is in the job's home, a relative one in the working directory.

`~/sky_workdir` is the working directory, as scripts written for SkyPilot expect it. It is part of every view,
and of every replica of a server that runs as root; for others a view takes a user namespace, in which `sudo`
does not work, so it is made for tasks that need it.

Where the machine gives no views, tasks that need one are refused; relative targets are links there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from batuta.backends.local import runner
from batuta.backends.local.runner_protocol import BindMount
from batuta.backends.local.supervisor.mount_namespace import sweep
from batuta.spec.task import Task
from batuta.spec.task_paths import Mount, is_relative_target

_PROBE_S = 20.0


class CannotMount(Exception):
    """A mount cannot be had, and a second try would not help."""


def view_of(task: Task, workdir: Path, home: str, *, is_root: bool) -> list[BindMount]:
    """What a replica sees beside what is there. CannotMount where it needs a view that cannot be had.

    `is_root`: its commands run as root.
    """
    needed = [mount for mount in task.file_mounts if not is_relative_target(mount.target)]
    sky = task.mentions_sky_workdir
    if not (task.file_mounts or sky or is_root) or sys.platform != "linux":
        return []
    if why := why_no_views():
        if needed or sky:
            target = needed[0].target if needed else "~/sky_workdir"
            raise CannotMount(f"{target} cannot be mounted: this machine gives jobs no private mounts ({why})")
        return []
    own = f"{home}/sky_workdir"
    # A working directory inside of it would not be found any more.
    is_inside = os.path.realpath(workdir).startswith(os.path.realpath(own) + "/")
    return [
        BindMount(str(workdir), own, optional=not sky or is_inside),
        *(BindMount(mount.source, place_of(mount.target, workdir, home)) for mount in task.file_mounts),
    ]


def lock_folder() -> Path:
    """Where the mount points that are in use are known to all servers of this user."""
    name = f"batuta-mount-points-{os.geteuid()}"
    folder = Path("/run", name)
    try:
        # Where only root makes folders: in /tmp any user could take the name, and no job of root's would start.
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / name
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.geteuid():
        raise CannotMount(f"{folder} belongs to another user: mount points cannot be noted there")
    return folder


def sweep_mount_points() -> None:
    """Removes the mount points of replicas whose runners were killed; those in use stay."""
    with contextlib.suppress(CannotMount, OSError):
        sweep(str(lock_folder()))


def link_mounts(mounts: Iterable[Mount], workdir: Path) -> None:
    """Makes relative targets be seen where there are no views: by links in the working directory."""
    for mount in mounts:
        target = workdir / mount.target.rstrip("/")
        try:
            if not _is_linked(mount, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(mount.source)
        except OSError as problem:
            # Another job may have been faster.
            if not isinstance(problem, FileExistsError) or not _is_linked(mount, target):
                raise CannotMount(f"file_mounts: {target} cannot be made: {problem.strerror}") from problem


def place_of(target: str, workdir: Path, home: str) -> str:
    """The path of a mount's target: below `~` in the job's home, a relative one in its working directory."""
    if target == "~" or target.startswith("~/"):
        return os.path.normpath(f"{home}/{target[2:]}")
    return os.path.normpath(workdir / target)  # an absolute one stays as it is


def _is_linked(mount: Mount, target: Path) -> bool:
    if not os.path.lexists(target):
        return False
    if os.path.realpath(target) == os.path.realpath(mount.source):
        return True
    raise CannotMount(f"file_mounts: something else than {mount.source} is at {target} already")


@functools.cache
def why_no_views() -> str:
    """Why this machine gives jobs no private views; empty when it does. Found out when it is first asked."""
    if sys.platform != "linux":
        return "this is not Linux"
    words: Sequence[str] = [sys.executable, "-I", "-S", runner.__file__, runner.CAN_MOUNT]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PROBE_S, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)[:200]
    return "" if done.returncode == 0 else (done.stdout.strip() or done.stderr.strip())[-200:] or "it fails"
