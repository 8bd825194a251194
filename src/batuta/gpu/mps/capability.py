"""What a node can do to hold programs to their shares of a GPU, and which way is chosen."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from batuta.gpu.mps.dmem import CGROUPS, read_regions
from batuta.spec.problem import InputError

CONTROL: Final = "nvidia-cuda-mps-control"
_V3_WORDS: Final = ("server", "namespace")
"""Modules that only the third protocol's help lists."""
_ANSWER_WITHIN_S: Final = 10.0


class Mode(StrEnum):
    """How shares are held, from the strictest to the one that every node can have."""

    AUTO = "auto"
    """The strictest of what the node can do."""
    DMEM = "dmem"
    """Memory by the kernel's dmem controller, compute by MPS v3."""
    MPS = "mps"
    """Both by MPS."""
    PRELOAD = "preload"
    """Both by Batuta's library in the container."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What there is on a node."""

    regions: Mapping[str, str] = field(default_factory=dict)
    """Regions of the dmem controller by the card's address on the bus; empty: there are none."""
    mps_protocol: int = 0
    """The newest protocol of the MPS control program; 0: there is none."""

    def missing(self, mode: Mode) -> list[str]:
        """What a mode needs that is not there."""
        needs = {
            Mode.DMEM: [
                (bool(self.regions), "the cgroup v2 controller dmem with regions of the GPU driver"),
                (self.mps_protocol >= 3, "MPS v3 (driver 615 or newer)"),
            ],
            Mode.MPS: [(self.mps_protocol >= 2, f"{CONTROL} on PATH")],
        }
        return [words for is_there, words in needs.get(mode, []) if not is_there]

    def choose(self, wanted: Mode) -> Mode:
        """The mode that is used; a wish that cannot be had is an error."""
        if wanted is Mode.AUTO:
            return next(mode for mode in (Mode.DMEM, Mode.MPS, Mode.PRELOAD) if not self.missing(mode))
        if missing := self.missing(wanted):
            raise InputError.of(
                f"--mode {wanted} needs {' and '.join(missing)}",
                fix=f"--mode {self.choose(Mode.AUTO)} works here",
            )
        return wanted


def detect(cgroups: Path = CGROUPS, control: str = CONTROL) -> Capability:
    """Looks at the kernel's files, and asks the MPS control program which protocols it knows."""
    return Capability(read_regions(cgroups), _protocol(control))


def _protocol(control: str) -> int:
    program = shutil.which(control)
    if program is None:
        return 0
    try:
        said = subprocess.run(
            [program, "-p", "3", "-h"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_WITHIN_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = said.stdout.lower().split()
    return 3 if said.returncode == 0 and all(word in words for word in _V3_WORDS) else 2
