"""MPS daemons, one for each card: started where none answers, and told how much a client may have."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batuta.gpu.mps.capability import CONTROL
from batuta.spec.problem import InputError

PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
_ANSWER_WITHIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The daemon of one card. A card of its own means that a client's device 0 is always this one."""

    uuid: str
    memory_mib: int
    folder: Path
    protocol: int = 2
    control: str = CONTROL

    @property
    def pipe(self) -> Path:
        """Where clients reach it."""
        return self.folder / "pipe"

    def environment(self) -> dict[str, str]:
        """What the control program has to be told to mean this daemon."""
        return {
            PIPE_VARIABLE: str(self.pipe),
            LOG_VARIABLE: str(self.folder / "log"),
            "CUDA_VISIBLE_DEVICES": self.uuid,
        }

    def commands(self) -> tuple[str, ...]:
        """For the second protocol: what a client gets that says nothing by itself, the whole card."""
        return (
            f"set_default_device_pinned_mem_limit {self.uuid} {self.memory_mib}M",
            "set_default_active_thread_percentage 100",
        )

    def configuration(self) -> str:
        """For the third protocol: the same as a file."""
        return (
            'schema_version = "1.0"\n\n'
            f"[servers.batuta]\n"
            f'allowed_devices = "{self.uuid}"\n'
            f'pinned_memory_limit = "{self.memory_mib}M"\n'
            f'active_thread_percentage = "100"\n\n'
            "[features.memacct]\nenabled = true\n"
        )

    def ensure(self) -> None:
        """Sees to it that a daemon answers; one that does already is left alone, with its clients."""
        for folder in (self.pipe, self.folder / "log"):
            folder.mkdir(parents=True, exist_ok=True)
        if self._answers():
            return
        if self.protocol >= 3:
            path = self.folder / "mps.toml"
            path.write_text(self.configuration())
            self._run("-d", "-p", "3", "-a", str(path))
            return
        self._run("-d")
        for command in self.commands():
            self._run(said=command)

    def _answers(self) -> bool:
        try:
            if self.protocol >= 3:
                self._run("server", "list")
            else:
                self._run(said="get_default_active_thread_percentage")
        except InputError:
            return False
        return True

    def _run(self, *words: str, said: str = "") -> str:
        """One call of the control program; commands of the second protocol are typed into it."""
        program = shutil.which(self.control)
        if program is None:
            raise InputError.of(f"there is no {self.control} on PATH", fix="--mode preload needs none")
        try:
            done = subprocess.run(
                [program, *words],
                input=f"{said}\n" if said else "",
                capture_output=True,
                text=True,
                check=False,
                timeout=_ANSWER_WITHIN_S,
                env={**os.environ, **self.environment()},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError.of(f"{self.control} does not answer: {error}") from error
        if done.returncode != 0:
            raise InputError.of(
                f"{self.control} {' '.join(words) or said}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout


def client_environment(
    daemon: MpsDaemon, memory_mib: int | None, compute_percent: int | None
) -> Mapping[str, str]:
    """The variables of a container that is a client of a daemon; None: no limit.

    A limit may only be tighter than the daemon's own, so a client that removes its variable gets the card.
    """
    found = {PIPE_VARIABLE: str(daemon.pipe)}
    if compute_percent is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(compute_percent)
    if memory_mib is not None:
        # By number: the daemon has this one card, so it is device 0 of every client.
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_mib}M"
    return found
