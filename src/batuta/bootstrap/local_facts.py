"""What the command line asks about this machine and about a state directory. Light to import."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batuta.client.errors import ClientError

if TYPE_CHECKING:
    from batuta.bootstrap.local_server import Server, UpOptions

_RUN = re.compile(rb"(?:^|\0)BATUTA_RUN=([^\0]+)")
_RUNNER = re.compile(rb"(?:^|\0)BATUTA_RUNNER=([^\0]+)")
_FOLDER = re.compile(rb"(?:^|\0)BATUTA_CHECKPOINT_DIR=([^\0]+)")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of a job that no runner supervises any more."""

    pid: int
    run: str
    command: str


def run_server(options: UpOptions, ready: Callable[[Server], None], *, demo: bool = False, stay: bool = False) -> int:
    """Serves until it is told to end. What is wrong with the state directory is told as a ClientError."""
    with told_state():
        if demo:
            from batuta.bootstrap.demo import run_demo

            return run_demo(options, stay)
        from batuta.bootstrap.local_server import serve

        return serve(options, ready)


def prepare_home(home: Path) -> None:
    """Makes a state directory. What is wrong with it is told as a ClientError."""
    from batuta.store.state_dir import StateDir

    with told_state():
        StateDir(home).prepare()


def server_pid(home: Path) -> int | None:
    """The process that has a state directory, by its lock; None when it is free."""
    from batuta.store.state_dir import lock_holder

    with told_state():
        holder = lock_holder(home / "lock")
    return None if holder is None else holder.pid


def find_leftovers(home: Path) -> list[Leftover]:
    """Processes of this state directory's jobs whose runner is gone. They should not be there."""
    jobs = os.fsencode(home / "jobs") + b"/"
    supervised: set[bytes] = set()
    marked: dict[int, bytes] = {}
    for pid, environ in _environments():
        runner, run, folder = _RUNNER.search(environ), _RUN.search(environ), _FOLDER.search(environ)
        if runner is not None:
            supervised.add(runner[1])
        elif run is not None and folder is not None and folder[1].startswith(jobs):
            marked[pid] = run[1]
    return [
        Leftover(pid, run.decode(errors="replace"), _command_of(pid))
        for pid, run in sorted(marked.items())
        if run not in supervised
    ]


def _environments() -> Iterator[tuple[int, bytes]]:
    """Of all processes that this user may look at; none where there is no /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in filter(str.isdecimal, names):
        with suppress(OSError):  # gone, or another user's
            yield int(name), Path(f"/proc/{name}/environ").read_bytes()


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def told_state() -> Iterator[None]:
    """Within it, what is wrong with a state directory is told as a ClientError."""
    from batuta.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise ClientError(str(error)) from error
