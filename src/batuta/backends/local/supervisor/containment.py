"""Holds one replica to its limits on processes, memory and CPU.

Where the server found control groups, the replica's commands run in groups of their own: the server says in the spec
which folders to make, what to write into them, and which files count violations (cgroups.py). The runner stays
outside, so that it survives to tell. Where there are none, the runner counts the processes and the memory of the
replica from time to time. A replica that has reached a limit is killed, and the reason is told.
"""

from __future__ import annotations

import errno
import os
import time

from batuta.backends.local.supervisor.lean_stdlib import TYPE_CHECKING, signal
from batuta.backends.local.supervisor.process_tree import CannotTell, all_entries, look_up, send

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from batuta.backends.local.supervisor.process_tree import Entry

    Exceeded: TypeAlias = tuple[str, float, str]

PROCESS_LIMIT, MEMORY_LIMIT = "process-limit", "memory-limit"
_LOOK_S = 1.0
_COST_FACTOR = 20.0  # a look that takes long is taken less often: at most a twentieth of the time
_REMOVE_S = 5.0
_SPARE = 16
_ATTEMPTS = 50
_GIB = 2**30


class Containment:
    """The limits of one replica, for its runner."""

    def __init__(self, limits: dict[str, Any] | None) -> None:
        self._limits = limits or {}
        self._plan: dict[str, Any] | None = self._limits.get("cgroup")
        self._counters: dict[str, int] = {}
        self._not_own = 0  # how often it could not fork because all jobs together had too many processes
        self._cost_s = 0.0
        if self._plan is not None:
            try:
                make(self._plan)
                for name, (path, _) in self._plan["counters"].items():
                    self._counters[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    os.read(self._counters[name], 4096)  # from here on a change wakes the poll
            except OSError:
                self.remove()  # it is watched instead
                self._plan = None

    @property
    def wakes(self) -> list[int]:
        """Files that a poll for POLLPRI reports when a counter has changed; the kernel does so for version 2 alone."""
        if self._plan is None or not self._plan["notifies"]:
            return []
        return [self._counters[name] for name in ("processes", "memory")]

    def look_in_s(self) -> float | None:
        """How long until the limits are to be looked at again; None when a poll tells."""
        if not self._limits or self.wakes:
            return None
        return max(_LOOK_S, self._cost_s * _COST_FACTOR)

    def enter(self, uid: int | None = None) -> None:
        """Puts this process, which is about to become a command of the replica, under the limits.

        `uid` is the user that it will be; None: it stays who it is.
        """
        uid = os.geteuid() if uid is None else uid
        import resource

        if self._plan is not None:
            for folder in self._plan["folders"]:
                _write(f"{folder}/cgroup.procs", "0")
        if (score := self._limits.get("oom_score_adj")) is not None:
            _try_write("/proc/self/oom_score_adj", str(score))
        if (files := self._limits.get("open_files")) is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        if self._plan is None and self._limits.get("processes") and uid != 0:
            # The kernel counts all that the user has, and lets root have any number. With some to spare: it is the
            # watch that says what the replica ends for.
            own = int(self._limits["processes"])
            most = _of_user(uid) + own + max(_SPARE, own // 8)
            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))

    def exceeded(self, living: list[Entry] | None = None) -> Exceeded | None:
        """The limit that was reached, if one was: why it ends, the limit, and a sentence.

        `living` are the processes of the replica; they are only needed where there is no control group.
        """
        if not self._limits:
            return None
        if self._plan is not None:
            return self._counted()
        begun = time.monotonic()
        found = self._watched(living or [])
        self._cost_s = time.monotonic() - begun
        return found

    @property
    def is_watched(self) -> bool:
        return bool(self._limits) and self._plan is None

    def forbid_forks(self) -> None:
        """Nothing more can be started inside, so that all can be killed however fast they fork."""
        if self._plan is not None:
            _try_write(self._plan["pids_max"], "0")

    def remove(self) -> None:
        """Removes the groups, of which no process is left."""
        for file in self._counters.values():
            os.close(file)
        self._counters = {}
        if self._plan is not None:
            remove(self._plan)

    def _counted(self) -> Exceeded | None:
        counts = {name: self._count(name) for name in self._counters}
        if counts.get("processes", 0) > self._not_own:
            if not self._are_others_to_blame(counts):
                return _too_many(self._limits["processes"])
            self._not_own = counts["processes"]
        if counts.get("memory"):
            assert self._plan is not None
            own = counts["own_memory"] >= self._plan["own_memory_from"]
            return _out_of_memory(self._limits["memory_bytes" if own else "all_memory_bytes"], shared=not own)
        return None

    def _are_others_to_blame(self, counts: dict[str, int]) -> bool:
        """Whether a process could not be forked because of what all jobs have: the kernel counts that here, too."""
        all_have, own = counts["all_processes"], counts["own_processes"]
        return bool(all_have >= 0.9 * self._limits["all_processes"] and own < 0.5 * self._limits["processes"])

    def _count(self, name: str) -> int:
        assert self._plan is not None
        word = self._plan["counters"][name][1]
        try:
            text = os.pread(self._counters[name], 4096, 0).decode()
        except OSError:
            return 0  # looked at again
        for line in text.splitlines():
            key, _, value = line.rpartition(" ")
            if key == word:
                return int(value)
        return 0

    def _watched(self, living: list[Entry]) -> Exceeded | None:
        most, most_bytes = self._limits["processes"], self._limits["memory_bytes"]
        if sum(entry.threads for entry in living) > most:
            return _too_many(most)
        page = os.sysconf("SC_PAGE_SIZE")
        # What processes share is counted for each of them; only when that is too much it is worth to count exactly.
        if sum(entry.resident_pages for entry in living) * page <= most_bytes:
            return None
        if sum(_proportional_bytes(entry) for entry in living) > most_bytes:
            return _out_of_memory(most_bytes)
        return None


def _too_many(most: int) -> Exceeded:
    return PROCESS_LIMIT, float(most), f"stopped: more than {most} processes and threads"


def _out_of_memory(most_bytes: int, *, shared: bool = False) -> Exceeded:
    whose = "all jobs of this machine together may have" if shared else "limit"
    return MEMORY_LIMIT, float(most_bytes), f"out of memory: {whose} {most_bytes / _GIB:.3g} GiB"


def make(plan: dict[str, Any]) -> None:
    """Makes the groups of a replica, and the one around those of all, which the last replica to end removes."""
    for attempt in range(_ATTEMPTS):
        for folder in plan["base"]:
            try:
                os.mkdir(folder, 0o755)
            except FileExistsError:
                continue
        for path, value, is_needed in plan["base_settings"]:
            _set(path, value, is_needed=is_needed)
        try:
            for folder in plan["folders"]:
                os.mkdir(folder, 0o755)
            break
        except FileNotFoundError:
            if attempt + 1 == _ATTEMPTS:
                raise
            remove({**plan, "base": []})  # another replica has ended, and taken the outer one along
    for path, value, is_needed in plan["settings"]:
        _set(path, value, is_needed=is_needed)


def kill_all(plan: dict[str, Any]) -> None:
    """Kills what is in the groups of a replica whose runner is gone."""
    _try_write(plan["pids_max"], "0")
    for folder in plan["folders"]:
        for pid in _members(folder):
            if (entry := look_up(pid)) is not None:
                send(entry.process, signal.SIGKILL)


def remove(plan: dict[str, Any]) -> None:
    """Removes the groups of a replica. A process that has just been killed keeps its groups for a moment."""
    give_up = time.monotonic() + _REMOVE_S
    for folder in plan["folders"]:
        while _is_busy(folder) and time.monotonic() < give_up:
            time.sleep(0.01)
    for folder in plan["base"]:
        _is_busy(folder)


def _is_busy(folder: str) -> bool:
    """Whether the group could not be removed because something is still in it."""
    try:
        os.rmdir(folder)
    except OSError as problem:
        return problem.errno == errno.EBUSY
    return False


def _members(folder: str) -> list[int]:
    try:
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            return [int(line) for line in file]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise CannotTell(f"{folder}: {problem.strerror}") from problem


def _set(path: str, value: str, *, is_needed: bool) -> None:
    if is_needed:
        _write(path, value)
    else:
        _try_write(path, value)


def _write(path: str, value: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


def _try_write(path: str, value: str) -> None:
    try:
        _write(path, value)
    except OSError:
        return


def _of_user(own: int) -> int:
    """How many processes and threads a user has."""
    count = 0
    try:
        for entry in all_entries():
            try:
                if os.stat(f"/proc/{entry.pid}").st_uid == own:
                    count += entry.threads
            except OSError:
                continue
    except CannotTell:
        pass
    return count


def _proportional_bytes(entry: Entry) -> int:
    """The memory of a process; of what it shares with others, its part."""
    try:
        with open(f"/proc/{entry.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0
