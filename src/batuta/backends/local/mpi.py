"""Host lists for jobs that start their own workers: mpirun's host file, Horovod's discovery script.

All nodes of local mode are this machine, and both programs would reach any other name than `localhost` by
ssh. So a job's nodes are one host here, with the slots of all of them. A file is replaced as a whole: Horovod
runs the script every second.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

Hosts: TypeAlias = Sequence[tuple[str, int]]
"""Names and slots."""

HERE = "localhost"


class HostfileStyle(StrEnum):
    """How a line says how many slots a host has."""

    OPEN_MPI = "open-mpi"  # localhost slots=4
    MPICH = "mpich"  # localhost:4, Intel MPI and Horovod too


def local_hosts(slots_per_node: Sequence[int]) -> Hosts:
    """A job's nodes as what they are: slots of this machine."""
    return [(HERE, sum(slots_per_node))] if sum(slots_per_node) else []


def write_hostfile(path: Path, hosts: Hosts, style: HostfileStyle = HostfileStyle.OPEN_MPI) -> None:
    """Writes a host file, or a new version of it."""
    separator = " slots=" if style is HostfileStyle.OPEN_MPI else ":"
    _replace(path, "".join(f"{name}{separator}{slots}\n" for name, slots in hosts), 0o644)


def write_discovery_script(script: Path, hosts: Hosts) -> None:
    """Writes a script for `horovodrun --host-discovery-script`: it prints the hosts of the moment it runs."""
    update_discovery(script, hosts)
    _replace(script, f"#!/bin/sh\nexec cat {shlex.quote(str(_list_of(script).absolute()))}\n", 0o755)


def update_discovery(script: Path, hosts: Hosts) -> None:
    """Changes what the discovery script prints."""
    write_hostfile(_list_of(script), hosts, HostfileStyle.MPICH)


def _list_of(script: Path) -> Path:
    return script.with_name(script.name + ".hosts")


def _replace(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    os.replace(draft, path)
