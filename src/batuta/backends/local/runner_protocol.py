"""What server and runner tell each other of a replica: `spec.json` for the runner, `state.json` from it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from batuta.backends.local.files import read_json, write_all, write_json
from batuta.backends.local.supervisor import process_tree

DEFAULT_LOG_CAP_BYTES = 64 * 1024 * 1024
DEFAULT_GRACE_S = 60.0

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class BindMount(NamedTuple):
    """What lies at `source` is seen at `target` by a replica."""

    source: str
    target: str
    optional: bool = False  # left out where the target is something of the user's own, or where no view can be had


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One run of one replica. A command is an argument list, or the text of a shell script.

    `run_id` has to be unique on this machine, among all servers and for all time: leftovers are killed by it. `env` is
    the whole environment of the command, to which the runner adds `BATUTA_RUN`; `setup_env` is added and taken away
    (None) for setup. Setup is skipped when `setup_marker` exists, which is made after it has succeeded; of those with
    the same `setup_lock` one runs at a time; the command starts when all of `setup_awaits` are there. `folders` are
    made where they are not there yet. `checkpoint_request` is the file into which the number of a request for a
    checkpoint is written, `doorbell` the FIFO of a `Watch`. `view` is what setup and the command see beside what is
    there, `view_locks` the folder in which the mount points of all views are noted. `limits` are what the replica may
    have at most (limits.py). `files` are written into the directory of the run, for its owner alone. `cleanup` removes
    the container of a run that has one: then `env` is the environment of the runtime's client, and what runs inside is
    found by `BATUTA_RUN`, which it has from its own. `user` has `uid`, `gid` and `groups` of who the commands run as;
    None: as the runner. `scripts` is where that user finds scripts and `files`; None: in the directory of the run.
    """

    run_id: str
    run: Sequence[str] | str
    cwd: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[str] | str | None = None
    setup_env: Mapping[str, str | None] = field(default_factory=dict)
    setup_marker: Path | None = None
    setup_lock: Path | None = None
    setup_awaits: Sequence[Path] = ()
    folders: Sequence[Path] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    cleanup: Sequence[str] = ()
    log_cap_bytes: int = DEFAULT_LOG_CAP_BYTES
    grace_s: float = DEFAULT_GRACE_S
    time_limit_s: float | None = None
    checkpoint_request: Path | None = None
    doorbell: Path | None = None
    view: Sequence[BindMount] = ()
    view_locks: Path | None = None
    limits: Mapping[str, Any] | None = None
    user: Mapping[str, Any] | None = None
    scripts: Path | None = None

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):
            raise ValueError(f"a run id has letters, digits, '.', '_' and '-' only, found {self.run_id!r}")
        for command in (self.run, self.setup):
            if command is not None and not isinstance(command, str) and not command:
                raise ValueError("a command needs at least one word")


_SPEC_FIELDS = [field.name for field in dataclasses.fields(ReplicaSpec) if field.name not in ("files", "scripts")]


def write_spec(file: int, run_dir: Path, spec: ReplicaSpec) -> None:
    """Writes the spec into a file that is open and locked. Only the runner reads it."""
    scripts: dict[str, str] = dict(spec.files)
    folder = spec.scripts or run_dir

    def arguments(name: str, command: Sequence[str] | str) -> list[str]:
        """How a command is started; one that is a script is written by the runner."""
        if not isinstance(command, str):
            return list(command)
        scripts[name] = command if command.endswith("\n") else command + "\n"
        return [_shell(spec.env.get("PATH")), f"{_text(folder)}/{name}"]

    content = {name: getattr(spec, name) for name in _SPEC_FIELDS} | {
        "setup": arguments("setup.sh", spec.setup) if spec.setup is not None else None,
        "setup_lock": spec.setup_lock or (spec.setup_marker and Path(f"{spec.setup_marker}.lock")),
        "run": arguments("run.sh", spec.run),
        "scripts": scripts,
        "scripts_folder": folder,
        "view": [one._asdict() for one in spec.view],
    }
    # All in ASCII: what is no UTF-8 came out of os.environ as surrogates, and goes back as it was.
    write_all(file, json.dumps(content, default=_text).encode())


@lru_cache(maxsize=64)
def _shell(path: str | None) -> str:
    """The shell for scripts; looked for once for each search path."""
    return shutil.which("bash", path=path) or "/bin/sh"


def _text(path: Path) -> str:
    text = str(path)
    return text if text.startswith("/") else os.path.abspath(text)  # the runner works elsewhere


class ReplicaPhase(StrEnum):
    """Where a replica is on its way."""

    ABSENT = "absent"  # never started, and not about to be
    STARTING = "starting"  # its runner is being started, or takes its first steps
    SETUP = "setup"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"  # no process of it is left (but see survivors)
    LOST = "lost"  # its runner was killed; processes may be left: clean_up() it

    @property
    def is_alive(self) -> bool:
        return self in {ReplicaPhase.STARTING, ReplicaPhase.SETUP, ReplicaPhase.RUNNING, ReplicaPhase.STOPPING}


class ExitReason(StrEnum):
    """Why a replica has ended."""

    EXITED = "exited"  # its main process ended by itself, or with 0 while being stopped
    STOPPED = "stopped"
    TIME_LIMIT = "time-limit"
    SETUP_FAILED = "setup-failed"
    CANNOT_START = "cannot-start"
    PROCESS_LIMIT = "process-limit"  # it had more processes and threads than it may have
    MEMORY_LIMIT = "memory-limit"
    KILLED = "killed"  # its runner was killed, or the machine went down


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What is known of a replica.

    `exit_code` and `signal` are those of the main process of `run` (of `setup`, when that failed); both are
    None when they could not be learnt. `checkpoint_request` is the number of the last one made. `survivors`
    are processes that not even SIGKILL could end.
    """

    phase: ReplicaPhase
    run_id: str = ""
    runner_pid: int | None = None
    runner_start: int | None = None
    boot_id: str = ""
    child_pid: int | None = None
    child_start: int | None = None
    begun_s: float | None = None
    run_begun_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: ExitReason | None = None
    error: str = ""
    checkpoint_request: int = 0
    log_dropped_bytes: int = 0
    survivors: tuple[int, ...] = ()
    limit: float | None = None  # that it has reached, if it ended for that: a count, or bytes

    @property
    def session(self) -> process_tree.Process | None:
        """The session that the main process led, if this is still the same start of the machine."""
        if self.child_pid is None or self.child_start is None or self.boot_id != process_tree.boot_id():
            return None
        return self.child_pid, self.child_start

    def lost(self, error: str) -> ReplicaState:
        return dataclasses.replace(self, phase=ReplicaPhase.LOST, error=error or self.error)

    def killed(self, now_s: float, survivors: tuple[int, ...] = ()) -> ReplicaState:
        return dataclasses.replace(
            self,
            phase=ReplicaPhase.EXITED,
            why=ExitReason.KILLED,
            ended_s=now_s,
            exit_code=None,
            signal=None,
            survivors=survivors,
        )


_FIELDS = frozenset(field.name for field in dataclasses.fields(ReplicaState))


def read_state(run_dir: Path) -> ReplicaState | None:
    """What the runner wrote last; None when it has written nothing that makes sense. CannotTell as `read_json`."""
    try:
        return _state(read_json(f"{run_dir}/state.json"))
    except (KeyError, TypeError, ValueError):
        return None


def write_state(run_dir: Path, state: ReplicaState) -> bool:
    """Writes a state in place of the runner that cannot any more; False when the disk does not let us."""
    try:
        write_json(run_dir / "state.json", dataclasses.asdict(state))
    except OSError:
        return False
    return True


def _state(content: Any) -> ReplicaState:
    if not isinstance(content, dict):
        raise TypeError("a state is an object")
    known = {name: value for name, value in content.items() if name in _FIELDS}
    known["phase"] = ReplicaPhase(content["phase"])
    known["why"] = None if content.get("why") is None else ExitReason(content["why"])
    known["survivors"] = tuple(content.get("survivors") or ())
    for name in ("runner_pid", "runner_start", "child_pid", "child_start", "exit_code", "signal"):
        if not isinstance(known.get(name), int | None):
            raise TypeError(f"{name} is a whole number")
    return ReplicaState(**known)
