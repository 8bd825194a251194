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

from batuta.backends.local.small_files import write_all

DEFAULT_LOG_CAP_BYTES = 64 * 1024 * 1024
DEFAULT_GRACE_S = 60.0

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One run of one replica. A command is an argument list, or the text of a shell script.

    `run_id` has to be unique on this machine, among all servers and for all time: leftovers are killed by it.
    `env` is the whole environment of the command, to which the runner adds `BATUTA_RUN`; `setup_env` is added
    for setup. Setup is skipped when `setup_marker` exists, which is made after it has succeeded.
    `folders` are made where they are not there yet. `checkpoint_request` is the file into which the number of
    a request for a checkpoint is written, `doorbell` the FIFO of a `Watch`.
    """

    run_id: str
    run: Sequence[str] | str
    cwd: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[str] | str | None = None
    setup_env: Mapping[str, str] = field(default_factory=dict)
    setup_marker: Path | None = None
    folders: Sequence[Path] = ()
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


def write_spec(file: int, run_dir: Path, spec: ReplicaSpec) -> None:
    """Writes the spec into a file that is open and locked. Nobody reads it before the runner does."""
    scripts: dict[str, str] = {}

    def arguments(name: str, command: Sequence[str] | str) -> list[str]:
        """How a command is started; one that is a script is written by the runner."""
        if not isinstance(command, str):
            return list(command)
        scripts[name] = command if command.endswith("\n") else command + "\n"
        return [_shell(spec.env.get("PATH")), f"{_text(run_dir)}/{name}"]

    content = {
        "run_id": spec.run_id,
        "setup": arguments("setup.sh", spec.setup) if spec.setup is not None else None,
        "setup_env": dict(spec.setup_env),
        "setup_marker": _text(spec.setup_marker),
        "run": arguments("run.sh", spec.run),
        "folders": list(map(_text, spec.folders)),
        "scripts": scripts,
        "env": dict(spec.env),
        "cwd": _text(spec.cwd),
        "log": _text(spec.log),
        "log_cap_bytes": spec.log_cap_bytes,
        "grace_s": spec.grace_s,
        "time_limit_s": spec.time_limit_s,
        "checkpoint_request": _text(spec.checkpoint_request),
        "doorbell": _text(spec.doorbell),
    }
    # All in ASCII: what is no UTF-8 came out of os.environ as surrogates, and goes back as it was.
    write_all(file, json.dumps(content).encode())


@lru_cache(maxsize=64)
def _shell(path: str | None) -> str:
    """The shell for scripts; looked for once for each search path."""
    return shutil.which("bash", path=path) or "/bin/sh"


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    text = str(path)
    return text if text.startswith("/") else os.path.abspath(text)  # the runner works elsewhere
