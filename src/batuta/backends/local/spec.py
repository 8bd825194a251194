"""What a runner is told about its replica: `spec.json` in the directory of the run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

DEFAULT_LOG_CAP_BYTES = 64 * 1024 * 1024
DEFAULT_GRACE_S = 60.0

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One run of one replica. A command is an argument list, or the text of a shell script.

    `run_id` has to be unique on this machine, among all servers and for all time: leftovers are killed by it.
    `env` is the whole environment of the command, to which the runner adds `BATUTA_RUN`; `setup_env` is added
    for setup. Setup is skipped when `setup_marker` exists, which is made after it has succeeded.
    `checkpoint_request` is the file into which the number of a request for a checkpoint is written,
    `doorbell` the FIFO of a `Watch`.
    """

    run_id: str
    run: Sequence[str] | str
    cwd: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[str] | str | None = None
    setup_env: Mapping[str, str] = field(default_factory=dict)
    setup_marker: Path | None = None
    log_cap_bytes: int = DEFAULT_LOG_CAP_BYTES
    grace_s: float = DEFAULT_GRACE_S
    time_limit_s: float | None = None
    checkpoint_request: Path | None = None
    doorbell: Path | None = None

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):
            raise ValueError(f"a run id has letters, digits, '.', '_' and '-' only, found {self.run_id!r}")
        for command in (self.run, self.setup):
            if command is not None and not isinstance(command, str) and not command:
                raise ValueError("a command needs at least one word")


def write_spec(run_dir: Path, spec: ReplicaSpec) -> None:
    """Writes the spec, and its scripts before it, so that a spec that can be read is complete."""
    content = {
        "run_id": spec.run_id,
        "setup": _arguments(run_dir / "setup.sh", spec.setup, spec.env) if spec.setup is not None else None,
        "setup_env": dict(spec.setup_env),
        "setup_marker": _text(spec.setup_marker),
        "run": _arguments(run_dir / "run.sh", spec.run, spec.env),
        "env": dict(spec.env),
        "cwd": _text(spec.cwd),
        "log": _text(spec.log),
        "log_cap_bytes": spec.log_cap_bytes,
        "grace_s": spec.grace_s,
        "time_limit_s": spec.time_limit_s,
        "checkpoint_request": _text(spec.checkpoint_request),
        "doorbell": _text(spec.doorbell),
    }
    _write(run_dir / "spec.json", json.dumps(content) + "\n")


def _arguments(script: Path, command: Sequence[str] | str, env: Mapping[str, str]) -> list[str]:
    if not isinstance(command, str):
        return list(command)
    _write(script, command if command.endswith("\n") else command + "\n")
    return [_shell(env.get("PATH")), str(script.absolute())]


@lru_cache(maxsize=64)
def _shell(path: str | None) -> str:
    """The shell for scripts; looked for once for each search path."""
    return shutil.which("bash", path=path) or "/bin/sh"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())  # the runner works elsewhere


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".new")
    # Secrets are in here. What is no UTF-8 came out of os.environ as surrogates, and goes back as it was.
    with open(draft, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as file:
        file.write(text)
    draft.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
