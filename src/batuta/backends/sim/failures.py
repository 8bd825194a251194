"""Failures of a simulated cluster: drawn with a seed, or read from a script. See docs/reference/simulator.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from batuta.core.cluster import Node, NodeName
from batuta.spec.problem import InputError, Problem, did_you_mean, read_text
from batuta.spec.quantity import parse_duration_s
from batuta.spec.yaml_reader import YamlNode, YamlReader


class FailureKind(StrEnum):
    """What happens to a node or to one of its GPUs."""

    NODE_LOST = "node-lost"
    NODE_RETURNED = "node-returned"
    GPU_FAILED = "gpu-failed"
    GPU_REPAIRED = "gpu-repaired"
    SLOW = "slow"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """One failure, repair or change of speed."""

    time_s: float
    kind: FailureKind
    node: NodeName
    gpu: int = 0  # which GPU, for gpu-failed and gpu-repaired
    factor: float = 1.0  # speed of the node relative to its own, for slow


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """Mean times; None turns a process off. All times between events are exponential.

    Nodes, their GPUs and stragglers are independent: a GPU may fail while its node is lost.
    """

    until_s: float  # no failure begins after this time; each is always repaired, so that no job waits forever
    seed: int = 0
    node_mtbf_s: float | None = None
    node_mttr_s: float = 3600.0
    gpu_mtbf_s: float | None = None
    gpu_mttr_s: float = 4 * 3600.0
    straggler_mtbf_s: float | None = None
    straggler_mttr_s: float = 1800.0
    straggler_factors: tuple[float, float] = (0.3, 0.8)  # a straggler's speed is drawn evenly from this range

    def problems(self) -> list[Problem]:
        found = []
        for name in (
            *("until_s", "node_mtbf_s", "node_mttr_s", "gpu_mtbf_s", "gpu_mttr_s"),
            *("straggler_mtbf_s", "straggler_mttr_s"),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                found.append(Problem(f"{name} must be a finite number > 0, found {value}"))
        low, high = self.straggler_factors
        if not 0 < low <= high <= 1:
            found.append(Problem(f"straggler factors must be within 0 < low ≤ high ≤ 1, found {low}..{high}"))
        if self.seed < 0:
            found.append(Problem(f"seed must be ≥ 0, found {self.seed}"))
        return found


def read_failures(text: str, nodes: Sequence[Node], until_s: float, seed: int) -> list[FailureRecord]:
    """The records that a text describes: the name of a script, or mean times to draw them from."""
    if Path(text.strip()).suffix.lower() in _SCRIPTS:
        return read_failure_script(Path(text.strip()), nodes)
    return draw_failures(nodes, replace(parse_failure_options(text), until_s=max(until_s, 1.0), seed=seed))


def parse_failure_options(text: str) -> FailureOptions:
    """From `mtbf=30d,mttr=2h,…`; the caller says until when, and the seed."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        field = _NAMES.get(name)
        if field is None:
            fix = did_you_mean(name, list(_NAMES)) or _FIX
            problems.append(Problem(f"failures: {part.strip()!r} is not understood", fix=fix))
            continue
        try:
            if field == "straggler_factors":
                values[field] = (float(value), float(value))
            else:
                values[field] = parse_duration_s(value, name)
        except InputError as error:
            problems.extend(error.problems)
        except ValueError:
            problems.append(Problem(f"{name} must be a number in (0, 1], found {value!r}"))
    options = FailureOptions(until_s=1.0, **values)
    problems += options.problems()
    if (options.node_mtbf_s, options.gpu_mtbf_s, options.straggler_mtbf_s) == (None, None, None):
        problems = problems or [Problem(f"failures: {text!r} does not say how often anything fails", fix=_FIX)]
    if problems:
        raise InputError(problems)
    return options


_SCRIPTS = (".yaml", ".yml", ".jsonl", ".json")
_NAMES = {
    "mtbf": "node_mtbf_s",
    "mttr": "node_mttr_s",
    "gpu-mtbf": "gpu_mtbf_s",
    "gpu-mttr": "gpu_mttr_s",
    "slow-mtbf": "straggler_mtbf_s",
    "slow-mttr": "straggler_mttr_s",
    "slow-factor": "straggler_factors",
}
_FIX = "write it like mtbf=30d,mttr=2h, or name a .yaml or .jsonl script"
_FIELDS = ("time_s", "kind", "node", "gpu", "factor")


def draw_failures(nodes: Sequence[Node], options: FailureOptions) -> list[FailureRecord]:
    """All failures and repairs in order of time. A node's own do not depend on which nodes come after it."""
    problems = options.problems()
    if problems:
        raise InputError(problems)
    found: list[FailureRecord] = []
    for index, node in enumerate(nodes):
        found.extend(_failures_of(index, node, options))
    found.sort(key=attrgetter("time_s"))
    return found


def _failures_of(index: int, node: Node, options: FailureOptions) -> Iterator[FailureRecord]:
    kind = FailureKind
    if options.node_mtbf_s is not None:
        draws = _draws(options.seed, index, 0)
        for begin, end in _periods(draws, options.node_mtbf_s, options.node_mttr_s, options.until_s):
            yield FailureRecord(begin, kind.NODE_LOST, node.name)
            yield FailureRecord(end, kind.NODE_RETURNED, node.name)
    if options.straggler_mtbf_s is not None:
        draws = _draws(options.seed, index, 1)
        low, high = options.straggler_factors
        for begin, end in _periods(draws, options.straggler_mtbf_s, options.straggler_mttr_s, options.until_s):
            factor = low + (high - low) * next(draws)
            yield FailureRecord(begin, kind.SLOW, node.name, factor=factor)
            yield FailureRecord(end, kind.NORMAL, node.name)
    for gpu in range(node.gpus if options.gpu_mtbf_s is not None else 0):
        draws = _draws(options.seed, index, 2 + gpu)
        for begin, end in _periods(draws, options.gpu_mtbf_s or 0.0, options.gpu_mttr_s, options.until_s):
            yield FailureRecord(begin, kind.GPU_FAILED, node.name, gpu)
            yield FailureRecord(end, kind.GPU_REPAIRED, node.name, gpu)


def _draws(seed: int, node: int, process: int) -> Iterator[float]:
    """An endless stream of uniform numbers that belongs to one process of one node."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, node, process))))
    while True:
        yield generator.random()


def _periods(draws: Iterator[float], mtbf_s: float, mttr_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """The beginnings and ends of failures, one after another."""
    end = 0.0
    while True:
        begin = end - mtbf_s * math.log(1.0 - next(draws))
        if begin > until_s:
            return
        end = begin - mttr_s * math.log(1.0 - next(draws))
        yield begin, end


def read_failure_script(path: Path, nodes: Sequence[Node] | None = None) -> list[FailureRecord]:
    """The records of a script in order of time; names are checked where the nodes are given."""
    text = read_text(path)
    reader = YamlReader(str(path))
    by_name = None if nodes is None else {node.name: node for node in nodes}
    records: list[FailureRecord | None] = []
    if path.suffix.lower() == ".jsonl":
        # Every JSON object is YAML too: one reader serves both.
        for above, line in enumerate(text.split("\n")):
            root = reader.compose(line, above) if line.strip() else None
            if root is not None:
                records.append(_read_record(reader, root, by_name))
    elif (root := reader.compose(text)) is not None:
        records = [_read_record(reader, item, by_name) for item in reader.sequence(root, "a failure script")]
    if not records and not reader.problems:
        reader.problems.append(Problem("holds no records", str(path)))
    if reader.problems:
        raise InputError(reader.problems)
    return sorted((record for record in records if record is not None), key=attrgetter("time_s"))


def _read_record(reader: YamlReader, item: YamlNode, by_name: Mapping[NodeName, Node] | None) -> FailureRecord | None:
    values = reader.mapping(item, "a record", _FIELDS)
    if values is None:
        return None
    time_s = reader.number(values["time_s"], "time_s", 0, math.inf) if "time_s" in values else None
    word = reader.text(values["kind"], "kind") if "kind" in values else None
    name = reader.text(values["node"], "node") if "node" in values else None
    for field in ("time_s", "kind", "node"):
        if field not in values:
            reader.fault(item, f"a record needs {field}")
    kind = next((kind for kind in FailureKind if kind.value == word), None)
    if word is not None and kind is None:
        reader.fault(values["kind"], f"unknown kind {word}", did_you_mean(word, [k.value for k in FailureKind]))
    if name is not None and by_name is not None and name not in by_name:
        reader.fault(values["node"], f"the cluster has no node {name}", did_you_mean(name, list(by_name)))
    gpus = by_name[name].gpus if name is not None and by_name is not None and name in by_name else 1_000_000
    wanted = {FailureKind.GPU_FAILED: "gpu", FailureKind.GPU_REPAIRED: "gpu", FailureKind.SLOW: "factor"}
    for field in ("gpu", "factor"):
        if kind is not None and (wanted.get(kind) == field) != (field in values):
            problem = "needs" if field not in values else "has no"
            reader.fault(item, f"a record of kind {kind.value} {problem} {field}")
    gpu = reader.whole(values["gpu"], "gpu", 0, gpus - 1) if "gpu" in values else 0
    factor = reader.number(values["factor"], "factor", 1e-6, 1) if "factor" in values else 1.0
    if time_s is None or kind is None or name is None or gpu is None or factor is None:
        return None
    return FailureRecord(time_s, kind, name, gpu, factor)
