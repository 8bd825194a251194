"""What a command line may say over what a task file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batuta.spec.problem import InputError, Problem
from batuta.spec.task_env import parse_env_file, parse_env_options
from batuta.spec.text_file import read_text

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Overrides:
    """None leaves what the file says. `env` has the values of `--env-file` below those of `--env`."""

    name: str | None = None
    gpus: str | None = None
    num_nodes: int | str | None = None
    """A number, or `auto`."""
    min_nodes: int | None = None
    max_nodes: int | None = None
    queue: str | None = None
    priority: int | str | None = None
    workdir: str | None = None
    trial: Mapping[str, Any] | None = None
    """What `batuta trial` says: sizes, budget_s, each_s, priority, only."""
    env: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_env(
    options: Sequence[str] = (),
    env_files: Sequence[Path] = (),
    environ: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """The values of all `--env-file` and `--env`: later ones win, options win over files."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for path in env_files:
        try:
            values |= parse_env_file(read_text(path), str(path))
        except InputError as error:
            problems += error.problems
    try:
        values |= parse_env_options(options, environ)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return values
