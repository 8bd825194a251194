"""How a replica is: `state.json` as the runner writes it, and what follows when the runner is gone."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from batuta.backends.local.small_files import read_small, write_json
from batuta.backends.local.supervisor import tree


class Phase(StrEnum):
    """Where a replica is on its way."""

    ABSENT = "absent"  # never started, and nobody is about to
    STARTING = "starting"  # its runner is being started, or takes its first steps
    SETUP = "setup"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"  # no process of it is left (but see survivors)
    LOST = "lost"  # its runner was killed; processes may be left: bury() it

    @property
    def is_alive(self) -> bool:
        return self in {Phase.STARTING, Phase.SETUP, Phase.RUNNING, Phase.STOPPING}


class Why(StrEnum):
    """Why a replica has ended."""

    EXITED = "exited"  # its main process ended by itself, or with 0 while being stopped
    STOPPED = "stopped"
    TIME_LIMIT = "time-limit"
    SETUP_FAILED = "setup-failed"
    CANNOT_START = "cannot-start"
    KILLED = "killed"  # its runner was killed, or the machine went down


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What is known of a replica.

    `exit_code` and `signal` are those of the main process of `run` (of `setup`, when that failed); both are
    None when they could not be learnt. `checkpoint_request` is the number of the last one made. `survivors`
    are processes that not even SIGKILL could end.
    """

    phase: Phase
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
    why: Why | None = None
    error: str = ""
    checkpoint_request: int = 0
    log_dropped_bytes: int = 0
    survivors: tuple[int, ...] = ()

    @property
    def session(self) -> tree.Process | None:
        """The session that the main process led, if this is still the same start of the machine."""
        if self.child_pid is None or self.child_start is None or self.boot_id != tree.boot_id():
            return None
        return self.child_pid, self.child_start

    def lost(self, error: str) -> ReplicaState:
        return dataclasses.replace(self, phase=Phase.LOST, error=error or self.error)

    def killed(self, now_s: float, survivors: tuple[int, ...] = ()) -> ReplicaState:
        return dataclasses.replace(
            self,
            phase=Phase.EXITED,
            why=Why.KILLED,
            ended_s=now_s,
            exit_code=None,
            signal=None,
            survivors=survivors,
        )


_FIELDS = frozenset(field.name for field in dataclasses.fields(ReplicaState))


def read_state(run_dir: Path) -> ReplicaState | None:
    """What the runner wrote last; None when it has written nothing that makes sense."""
    try:
        return _state(json.loads(read_small(f"{run_dir}/state.json")))
    except (OSError, KeyError, TypeError, ValueError):
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
    known["phase"] = Phase(content["phase"])
    known["why"] = None if content.get("why") is None else Why(content["why"])
    known["survivors"] = tuple(content.get("survivors") or ())
    for name in ("runner_pid", "runner_start", "child_pid", "child_start", "exit_code", "signal"):
        if not isinstance(known.get(name), int | None):
            raise TypeError(f"{name} is a whole number")
    return ReplicaState(**known)
