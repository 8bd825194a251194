"""Processes as the kernel shows them in /proc: the descendants of a runner, and signals for them alone.

A pid is used again, so a process is named here by its pid and its start time, and a signal goes through a
pidfd that was checked against both.

Only an answer of the kernel that a process or a file is not there means that it is gone. That it cannot be looked at
(no descriptor or memory is left, the disk has an error, access is denied) says nothing: that is `CannotTell`.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from batuta.backends.local.supervisor.lean_stdlib import PR_SET_CHILD_SUBREAPER, TYPE_CHECKING, prctl, signal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias


Process: TypeAlias = tuple[int, int]
"""A process by its pid and its start time, in clock ticks since the machine started."""


class CannotTell(Exception):
    """Whether something is there cannot be found out now. Nothing may be concluded from it; try again later."""


_GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.ENOTDIR))


def is_gone(problem: OSError) -> bool:
    """Whether the error says that what was looked for is not there; all others say only that it cannot be seen."""
    return problem.errno in _GONE


_boot_id: list[str] = []  # once it is known
_CAUGHT_TO_TIDY_UP = (signal.SIGTRAP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGSYS)
"""A process that catches all of these does so to clean up, not to handle them."""


class Entry:
    """One process as /proc/PID/stat tells it."""

    __slots__ = ("group", "parent", "pid", "resident_pages", "session", "start", "state", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.threads = int(fields[17])
        self.start = int(fields[19])
        self.resident_pages = int(fields[21])

    @property
    def process(self) -> Process:
        return self.pid, self.start

    @property
    def dead(self) -> bool:
        """Whether only its exit status is left of it."""
        return self.state in {b"Z", b"X"}


def look_up(pid: int) -> Entry | None:
    """The process that has this pid now; None when there is none, or no /proc. CannotTell when that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
        # The name in parentheses may hold anything, also spaces and parentheses.
        return Entry(pid, text[text.rindex(b")") + 2 :].split())
    except OSError as problem:
        if is_gone(problem):
            return None
        raise CannotTell(f"process {pid} cannot be looked at: {problem.strerror}") from problem
    except (ValueError, IndexError):
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
        except OSError as problem:
            if not is_gone(problem):
                raise CannotTell(f"which start of the machine this is cannot be read: {problem.strerror}") from problem
            _boot_id.append("")
    return _boot_id[0]


def all_entries() -> Iterator[Entry]:
    """All processes of this machine. CannotTell when not all of them can be seen."""
    try:
        names = os.listdir("/proc")
    except OSError as problem:
        if is_gone(problem):
            return
        raise CannotTell(f"processes cannot be listed: {problem.strerror}") from problem
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


_NOT_OURS = frozenset((errno.EACCES, errno.EPERM))
"""What the kernel says of the environment of another user's process."""


def is_marked(pid: int, mark: bytes) -> bool:
    """Whether the process was started with this variable, `NAME=value`, in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            text = file.read(1 << 20)
    except OSError as problem:
        if is_gone(problem) or problem.errno in _NOT_OURS:
            return False
        raise CannotTell(f"process {pid} cannot be looked at: {problem.strerror}") from problem
    return mark in text.split(b"\0") if mark in text else False


def send(process: Process, number: int) -> bool:
    """Sends a signal to this very process; False when it is gone or not ours. CannotTell when that cannot be seen."""
    pid, start = process
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError) as problem:
        if isinstance(problem, ProcessLookupError):
            return False
        pidfd = -1  # an old kernel, another system, or no descriptor left
    try:
        # The pidfd refers to the process that had the pid when it was opened: compare start times only now.
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
        # The process chooses its words: a FIFO would wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(os.path.join(os.fsencode(f"/proc/{pid}/cwd"), script), flags)
        try:
            return stat.S_ISREG(os.fstat(opened).st_mode) and name in os.read(opened, 1 << 20)
        finally:
            os.close(opened)
    except OSError:
        return False


_LOOKS, _LOOK_AGAIN_S = 20, 0.05


def _send(process: Process, number: int) -> bool:
    """As `send`, for callers that look again anyway."""
    try:
        return send(process, number)
    except CannotTell:
        return False


class ReplicaProcesses:
    """The descendants of this process, and the signals for them.

    On Linux an orphan among them becomes our child. Elsewhere its new parent is unknown; there, what can be
    reached is the group of the main process.

    Of a container, what runs inside carries a mark and may descend from the runtime's own server. It alone is
    asked for anything: the runtime's client ends by itself when the container does.
    """

    def __init__(self, container: str | None = None) -> None:
        """`container` is the id of a run that has one."""
        self.main = 0
        self._mark = None if container is None else f"BATUTA_RUN={container}".encode()
        self.adopts_orphans = prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._told: set[Process] = set()

    def living(self) -> list[Entry]:
        """Parents before their children; none while /proc cannot be read for longer than a second."""
        for _ in range(_LOOKS):
            try:
                return self._look()
            except CannotTell:
                time.sleep(_LOOK_AGAIN_S)
        return []

    def _look(self) -> list[Entry]:
        own = [entry for entry in descendants({os.getpid()}) if not entry.dead]
        if self._mark is None:
            return own
        known = {entry.process for entry in own}
        return own + [entry for entry in self._look_inside() if entry.process not in known]

    def _inside(self) -> list[Entry]:
        """What runs in the container, as far as it can be seen."""
        try:
            return self._look_inside()
        except CannotTell:
            return []

    def _look_inside(self) -> list[Entry]:
        mark = self._mark
        if mark is None:
            return []
        marked = [entry for entry in all_entries() if is_marked(entry.pid, mark)]
        pids = {entry.pid for entry in marked}
        below = [entry for entry in descendants(pids) if entry.pid not in pids] if pids else []
        return [entry for entry in (*marked, *below) if not entry.dead]

    def ask_for_checkpoint(self) -> None:
        """Sends SIGUSR1 to the processes that have a handler for it. It would end all others."""
        for entry in self.living() if self._mark is None else self._inside():
            if catches(entry.pid, signal.SIGUSR1):
                _send(entry.process, signal.SIGUSR1)

    def ask_to_end(self) -> None:
        """Asks all; of a container that does not run yet, the client that fetches its image, say."""
        for entry in self._inside() or self.living():
            self._ask_to_end(entry)
        if self.main and not self.adopts_orphans:
            _signal_group(self.main, signal.SIGTERM)

    def ask_orphans_to_end(self) -> None:
        """Asks processes that were being forked when all were asked, and whose parents have ended since.

        What a process starts in order to end well (to upload its checkpoint, say) has a parent: it is spared.
        """
        if self._mark is None:
            orphans = [entry for entry in self.living() if entry.parent == os.getpid()]
        else:
            inside = self._inside()
            pids = {entry.pid for entry in inside}
            orphans = [entry for entry in inside if entry.parent not in pids]
        for entry in orphans:
            if entry.process not in self._told:
                self._ask_to_end(entry)

    def kill(self, *, groups: bool) -> list[int]:
        """Kills all, and whole groups if they fork faster than we look; the pids that were there."""
        left = self.living()
        for entry in left:
            _send(entry.process, signal.SIGKILL)
            if groups:
                _signal_group(entry.group, signal.SIGKILL)
        if self.main and not self.adopts_orphans:
            _signal_group(self.main, signal.SIGKILL)
        return [entry.pid for entry in left]

    def _ask_to_end(self, entry: Entry) -> None:
        self._told.add(entry.process)
        if _send(entry.process, signal.SIGTERM):
            _send(entry.process, signal.SIGCONT)  # one that is suspended could not hear it


def _signal_group(group: int, number: int) -> None:
    """Signals a group of the replica. No process from outside joins a group of its sessions."""
    if group > 1 and group != os.getpgrp():
        try:
            os.killpg(group, number)
        except OSError:
            return
