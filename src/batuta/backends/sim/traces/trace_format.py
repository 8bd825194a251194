"""What every trace format tells about itself, and what every reader is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from batuta.backends.sim.traces.elasticity import RIGID, Elasticity
from batuta.backends.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that has been read as text."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The file as problems name it."""
        return str(self.path)

    @property
    def title(self) -> str:
        """The workload's name where the file gives none."""
        return self.path.stem

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.text.split("\n") if line.strip()), "").rstrip("\r")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What a reader cannot know from the file."""

    elasticity: Elasticity = RIGID
    profiles: Path | None = None
    """Folder of measured throughputs; None looks beside the trace."""
    seed: int = 0
    """Draws the model that each job trains, where curves are measured ones."""


RIGID_OPTIONS = TraceOptions()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format: its name, how to tell it, how to read it."""

    name: str
    looks: str
    """What such a file looks like, for people."""
    recognises: Callable[[str], bool]
    """Whether a file with this first line is of this format."""
    read: Callable[[TraceFile, TraceOptions], Workload]
    rigid: bool = True
    """Whether its jobs are recorded at one size only, so that `TraceOptions.elasticity` has a say."""
