"""Whether a task is to be tried out before it is queued (`trial:`), and how.

trial: true                      # or false, where its queue would try it out
trial: {sizes: [1, 2, 4], budget: 5m, each: 45s, priority: 500}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from batuta.spec.duration import parse_duration_s
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import shown
from batuta.spec.task_priority import HIGHEST_PRIORITY, LOWEST_PRIORITY
from batuta.spec.task_yaml import TaskReader
from batuta.spec.yaml_nodes import YamlNode

BUDGET_S = 300.0
SHORTEST_S = 5.0
"""In less nothing can be measured: scripts report every few seconds."""
LONGEST_S = 86_400.0
MOST_SIZES = 16
MOST_GPUS = 100_000
_KEYS = ("sizes", "budget", "each", "priority")


@dataclass(frozen=True, slots=True)
class TrialWishes:
    """What is said about a trial; what is not said is found out from the job."""

    wanted: bool | None = None
    """None: its queue says."""
    sizes: tuple[int, ...] = ()
    """GPUs in all, ascending."""
    budget_s: float | None = None
    each_s: float | None = None
    priority: int | None = None
    """Of the trial runs; None: that of the task."""
    only: bool = False
    """It is tried out and nothing else."""


NO_TRIAL = TrialWishes()


def read_trial(reader: TaskReader, node: YamlNode | None, given: Mapping[str, Any] | None) -> TrialWishes:
    """What stands under `trial`, and over it what a command line says."""
    wishes = NO_TRIAL if node is None else _read(reader, node)
    if given is None:
        return wishes
    said = {key: value for key, value in given.items() if value not in (None, (), [])}
    faults = _faults(said)
    if faults:
        reader.problems += faults
        return wishes
    if "sizes" in said:
        said["sizes"] = tuple(sorted(set(said["sizes"])))
    return replace(wishes, wanted=True, **said)


def _read(reader: TaskReader, node: YamlNode) -> TrialWishes:
    if isinstance(node, yaml.ScalarNode):
        word = reader.word(node, "trial", ("true", "false"))
        return TrialWishes(wanted=None if word is None else word == "true")
    values = reader.section(node, "trial", _KEYS)
    return TrialWishes(
        wanted=True,
        sizes=_sizes(reader, values["sizes"]) if "sizes" in values else (),
        budget_s=_duration(reader, values.get("budget"), "budget"),
        each_s=_duration(reader, values.get("each"), "each"),
        priority=reader.whole(values["priority"], "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if "priority" in values
        else None,
    )


def _sizes(reader: TaskReader, node: YamlNode) -> tuple[int, ...]:
    items = reader.sequence(node, "sizes")
    found = {reader.whole(item, "a size", 1, MOST_GPUS) for item in items}
    if not 1 <= len(items) <= MOST_SIZES:
        reader.fault(node, f"trial has {len(items)} sizes", f"1 to {MOST_SIZES}, for example [1, 2, 4]")
    return tuple(sorted(size for size in found if size is not None))


def _duration(reader: TaskReader, node: YamlNode | None, what: str) -> float | None:
    def parse(text: str) -> float:
        try:
            seconds = parse_duration_s(text)
        except InputError as error:
            raise InputError.of(f"{shown(text)} is not a duration", fix=error.problems[0].fix) from None
        if not SHORTEST_S <= seconds <= LONGEST_S:
            raise InputError.of(f"{shown(text)} is out of range", fix=f"within {SHORTEST_S:g}s..24h")
        return seconds

    return None if node is None else reader.parsed(node, what, parse)


def _faults(said: Mapping[str, Any]) -> list[Problem]:
    """What a command line got wrong."""
    found = [
        Problem(f"--{name}: {said[key]:g} s is out of range", fix=f"within {SHORTEST_S:g}s..24h")
        for key, name in (("budget_s", "budget"), ("each_s", "each"))
        if key in said and not SHORTEST_S <= said[key] <= LONGEST_S
    ]
    sizes = said.get("sizes", ())
    if len(sizes) > MOST_SIZES or not all(1 <= size <= MOST_GPUS for size in sizes):
        listed = ",".join(map(str, sizes[:20]))
        found.append(Problem(f"--sizes: {listed} cannot be tried", fix=f"1 to {MOST_SIZES} numbers of GPUs"))
    priority = said.get("priority", 0)
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        found.append(
            Problem(f"--trial-priority: {priority}", fix=f"within {LOWEST_PRIORITY}..{HIGHEST_PRIORITY}")
        )
    return found
