"""`file_mounts` where all nodes are this machine: a link at the target to what lies at the source.

A target below `~` is in the server's home, a relative one in the working directory. Links stay when the job
is over: another job may use them by then. What is there already is never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from batuta.spec.task_paths import Mount


class CannotMount(Exception):
    """A mount cannot be had, and a second try would not help."""


def link_mounts(mounts: Iterable[Mount], workdir: Path, home: Path) -> None:
    """Makes what a task wants mounted be seen where it wants it."""
    for mount in mounts:
        target = _place(mount.target.rstrip("/"), workdir, home)
        try:
            if not _is_linked(mount, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(mount, target)
        except OSError as problem:
            raise CannotMount(f"file_mounts: {target} cannot be made: {problem.strerror}") from problem


def _place(target: str, workdir: Path, home: Path) -> Path:
    if target == "~" or target.startswith("~/"):
        return home / target[2:]
    return workdir / target  # an absolute one stays as it is


def _link(mount: Mount, target: Path) -> None:
    try:
        target.symlink_to(mount.source)
    except FileExistsError:
        if not _is_linked(mount, target):  # another job may have been faster
            raise


def _is_linked(mount: Mount, target: Path) -> bool:
    if not os.path.lexists(target):
        return False
    if os.path.realpath(target) == os.path.realpath(mount.source):
        return True
    raise CannotMount(f"file_mounts: something else than {mount.source} is at {target} already")
