"""What the trainer can be told, and how long one of its steps takes with so many GPUs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

SAMPLES = 2048
"""How many examples there are to learn from; an epoch sees each of them once."""


@dataclass(frozen=True, slots=True)
class Options:
    """One training: what decides its course, then what decides its pace."""

    steps: int = 200
    batch: int = 64
    """Samples of a step over all workers, so that a training takes the same course at every size."""
    seed: int = 0
    work_ms: float = 100.0
    comm_ms: float = 2.0
    checkpoint_every: int = 0
    timeout_s: float = 60.0

    def step_s(self, gpus: int) -> float:
        """How long a step takes: the work is divided among the GPUs, each further one adds to the talk."""
        return (self.work_ms / gpus + self.comm_ms * (gpus - 1)) / 1000.0

    @property
    def steps_per_epoch(self) -> int:
        return SAMPLES // self.batch


_HELP = {
    "steps": "steps of the whole training",
    "batch": "samples of a step, of all workers together",
    "seed": "of the data, its order and the first weights",
    "work_ms": "milliseconds that a step takes on one GPU",
    "comm_ms": "milliseconds that each further GPU adds to a step",
    "checkpoint_every": "steps between checkpoints; 0: only when asked, and at the end",
    "timeout_s": "seconds to wait for other workers",
}


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; exits with 2 and a sentence when they make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m batuta.demo.trainer",
        description="Trains a small network by data-parallel SGD, with as many workers as WORLD_SIZE says. "
        "It resumes from $BATUTA_CHECKPOINT_DIR with any number of them, and the losses stay the same.",
    )
    for field in fields(Options):
        kind = type(field.default)
        help = f"{_HELP[field.name]} (default: {field.default:g})"
        parser.add_argument(
            _flag(field.name), dest=field.name, type=kind, default=field.default, metavar="N", help=help
        )
    found = Options(**vars(parser.parse_args(arguments)))
    for name, value in asdict(found).items():
        if not 0 <= value < math.inf:
            parser.error(f"{_flag(name)} must be a number from 0, found {value:g}")
    if not 1 <= found.batch <= SAMPLES:
        parser.error(f"--batch must be within 1..{SAMPLES}, found {found.batch}")
    return found


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")
