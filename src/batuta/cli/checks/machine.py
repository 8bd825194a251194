"""This machine: Python, GPUs, the tools that jobs may want."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from batuta.cli.checks.finding import Finding, Severity, note, ok, warning
from batuta.cli.checks.finding import error as bad

NEEDED_PYTHON = (3, 11)
TOOLS = (
    ("torchrun", "kind torch-elastic", "install PyTorch"),
    ("mpirun", "kind mpi", "install Open MPI"),
    ("horovodrun", "kind horovod-elastic", "install Horovod"),
    ("bash", "run and setup", "install bash"),
    ("cc", "virtual GPUs", "install a C compiler"),
    ("nvidia-smi", "NVIDIA's GPUs", "install the driver"),
)


def check_machine(home: Path) -> Iterator[Finding]:
    """All that does not need a server."""
    yield _python()
    yield _gpus()
    for tool, purpose, fix in TOOLS:
        found = shutil.which(tool)
        if found:
            yield ok(tool, found)
        elif tool == "bash":
            yield bad(tool, "is not on the PATH", fix)
        else:
            yield note(tool, f"is not on the PATH; needed for {purpose}", fix)
    yield from _leftovers(home)
    yield from _temporary(home)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < NEEDED_PYTHON:
        return bad("Python", found, "Python 3.11 or newer")
    return ok("Python", found)


def _gpus() -> Finding:
    from batuta.bootstrap.local_facts import count_gpus

    try:
        count = count_gpus()
    except Exception as trouble:  # a driver that is half installed fails in its own ways
        return warning("GPUs", f"NVML fails: {trouble}", "look at nvidia-smi, or use batuta up --virtual")
    if count == 0:
        return note("GPUs", "NVML knows of none on this machine", "batuta up --virtual")
    return ok("GPUs", f"{count} by NVML")


def _leftovers(home: Path) -> Iterator[Finding]:
    from batuta.bootstrap.local_facts import find_leftovers

    found = find_leftovers(home)
    if not found:
        yield ok("processes", "none is left over from a job")
        return
    shown = ", ".join(f"{one.pid} {one.command[:40]}".strip() for one in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    pids = " ".join(str(one.pid) for one in found[:20])
    yield warning("processes", f"{len(found)} are left over from jobs: {shown}{more}", f"kill {pids}")


def _temporary(home: Path) -> Iterator[Finding]:
    """Told only where it is another disk than the state directory's, or nearly full."""
    from batuta.store.room import check_room

    folder = Path(tempfile.gettempdir())
    found = check_room(folder, f"disk of {folder}")
    with suppress(OSError):
        if home.stat().st_dev == folder.stat().st_dev and found.severity is Severity.OK:
            return
    yield found
