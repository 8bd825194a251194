"""Processes as the kernel shows them in /proc: who descends from whom, and signals for nobody else.

A pid alone names nobody for long: it is used again. A process is named here by its pid and its start time,
and a signal goes through a pidfd that was checked against both.
"""

from __future__ import annotations

import os

from batuta.backends.local.supervisor.light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

Process: TypeAlias = tuple[int, int]
"""A process by its pid and its start time, in clock ticks since the machine started."""


_boot_id: list[str] = []  # once it is known
_CAUGHT_TO_TIDY_UP = (signal.SIGTRAP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGSYS)
"""Nobody handles all of these for their own sake."""


class Entry:
    """One process as /proc/PID/stat tells it."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start = int(fields[19])

    @property
    def process(self) -> Process:
        return self.pid, self.start

    @property
    def dead(self) -> bool:
        """Whether only its exit status is left of it."""
        return self.state in {b"Z", b"X"}


def look_up(pid: int) -> Entry | None:
    """The process that has this pid now."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
        # The name in parentheses may hold anything, also spaces and parentheses.
        return Entry(pid, text[text.rindex(b")") + 2 :].split())
    except (OSError, ValueError, IndexError):
        return None


def start_of(pid: int) -> int | None:
    entry = look_up(pid)
    return entry.start if entry else None


def is_running(process: Process) -> bool:
    """Whether this very process is there and has not exited."""
    entry = look_up(process[0])
    return entry is not None and entry.start == process[1] and not entry.dead


def boot_id() -> str:
    """Which start of the machine this is: after another one, no pid means what it did."""
    if not _boot_id:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
                _boot_id.append(file.read().strip())
        except OSError:
            _boot_id.append("")
    return _boot_id[0]


def all_entries() -> Iterator[Entry]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit() and (entry := look_up(int(name))) is not None:
            yield entry


def descendants(of: set[int]) -> list[Entry]:
    """All that descend from these pids, parents before their children; the dead ones too."""
    children: dict[int, list[Entry]] = {}
    for entry in all_entries():
        children.setdefault(entry.parent, []).append(entry)
    found: list[Entry] = []
    queue = list(of)
    seen = set(of)
    for pid in queue:
        for entry in children.get(pid, ()):
            if entry.pid not in seen:
                seen.add(entry.pid)
                queue.append(entry.pid)
                found.append(entry)
    return found


def send(process: Process, number: int) -> bool:
    """Sends a signal to this very process; False when it is gone or not ours."""
    pid, start = process
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError) as problem:
        if isinstance(problem, ProcessLookupError):
            return False
        pidfd = -1  # an old kernel, another system, or no descriptor left
    try:
        # The pidfd holds on to whoever had the pid when it was opened: so ask for the start time only now.
        if start_of(pid) != start:
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal (without one, most signals end a process).

    bash with a trap on EXIT catches whatever could end it, tidies up and dies of it all the same. Such a
    shell has a handler of its own only if its script speaks of the signal.
    """
    caught = _caught(pid)
    if not caught >> (number - 1) & 1:
        return False
    return not all(caught >> (other - 1) & 1 for other in _CAUGHT_TO_TIDY_UP) or _speaks_of(pid, number)


def _caught(pid: int) -> int:
    """A bit for each signal that the process has a handler for, the lowest for number 1."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def _speaks_of(pid: int, number: int) -> bool:
    """Whether the name of a signal is in the script or the command that a shell was started with."""
    names = [name for name in dir(signal) if name.startswith("SIG") and getattr(signal, name) == number]
    name = names[0][3:].encode()
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(1 << 20).split(b"\0")
        if any(name in word for word in words):
            return True
        script = next((word for word in words[1:] if word and not word.startswith(b"-")), b"")
        with open(os.path.join(os.fsencode(f"/proc/{pid}/cwd"), script), "rb") as file:
            return name in file.read(1 << 20)
    except OSError:
        return False
