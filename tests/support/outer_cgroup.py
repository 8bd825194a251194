"""A control group around a test that forks, fills or floods: a fix that fails must not take the machine."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batuta.backends.local.cgroups import CgroupsV1, find_cgroups
from batuta.backends.local.supervisor import process_tree

MOST_PIDS = 1500
MOST_BYTES = 3 * 2**30


@contextmanager
def outer_cgroup(name: str) -> Iterator[dict[str, Path]]:
    """Makes a group with bounds on processes and memory below the present ones; at the end, kills what is left in it.

    The CPU is not bounded: a group of its own would get a small part of a machine that runs other tests.
    """
    found = find_cgroups(Path("/outer") / name) if os.geteuid() == 0 else None
    if not isinstance(found, CgroupsV1):
        pytest.skip("needs root and control groups of version 1")
    groups = {
        controller: found.base[controller].with_name(f"batuta-test-{name}-{os.getpid()}")
        for controller in ("pids", "memory")
    }
    for folder in groups.values():
        folder.mkdir()
    (groups["pids"] / "pids.max").write_text(str(MOST_PIDS))
    (groups["memory"] / "memory.limit_in_bytes").write_text(str(MOST_BYTES))
    try:
        yield groups
    finally:
        (groups["pids"] / "pids.max").write_text("0")
        for folder in groups.values():
            _empty(folder)


def enter(groups: dict[str, Path]) -> None:
    """Puts this process into the groups, with all that it starts from here on."""
    for folder in groups.values():
        (folder / "cgroup.procs").write_text("0")


def shell_prefix(groups: dict[str, Path]) -> list[str]:
    """A command that enters the groups and becomes the command that follows it."""
    joins = "".join(f"echo 0 >{folder}/cgroup.procs && " for folder in groups.values())
    return ["/bin/sh", "-c", f'{joins}exec "$@"', "sh"]


def groups_below(groups: dict[str, Path]) -> list[str]:
    """The groups that others have made inside."""
    return sorted(str(path.relative_to(folder)) for folder in groups.values() for path in folder.rglob("*/"))


def _empty(folder: Path) -> None:
    give_up = time.monotonic() + 20.0
    inside = [*sorted((path for path in folder.rglob("*/")), reverse=True), folder]
    while time.monotonic() < give_up:
        for path in inside:
            if path.exists():
                for pid in (path / "cgroup.procs").read_text().split():
                    if (entry := process_tree.look_up(int(pid))) is not None:
                        process_tree.send(entry.process, 9)
                try:
                    path.rmdir()
                except OSError:
                    continue
        if not folder.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"processes are left in {folder}")
