"""Which processes of this machine belong to a state directory, however they were started."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batuta.backends.local.supervisor import process_tree


@dataclass(frozen=True)
class Found:
    """A process that names the directory in its environment or on its command line."""

    pid: int
    command: str


def processes_of(home: Path) -> list[Found]:
    """All living processes that have to do with a directory: servers, runners, jobs and what these forked."""
    mark = os.fsencode(home)
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        with suppress(OSError):
            folder = Path("/proc", name)
            command = (folder / "cmdline").read_bytes()
            if mark in command or mark in (folder / "environ").read_bytes():
                shown = command.replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(Found(int(name), shown[:200]))
    return found


def wait_for_none(home: Path, within_s: float = 5.0) -> list[Found]:
    """What is still there after some time: nothing, if all is well."""
    give_up = time.monotonic() + within_s
    while (found := processes_of(home)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return found


def end_all(home: Path, within_s: float = 10.0) -> None:
    """Kills all of them: what a test that has failed would leave behind."""
    give_up = time.monotonic() + within_s
    while (found := processes_of(home)) and time.monotonic() < give_up:
        for one in found:
            start = process_tree.start_of(one.pid)
            if start is not None and one in processes_of(home):
                process_tree.send((one.pid, start), signal.SIGKILL)
        time.sleep(0.02)
