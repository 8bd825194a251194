"""The node list of Alibaba's v2023 trace: `sn,cpu_milli,memory_mib,gpu,model`, one node per row."""

from __future__ import annotations

import csv
from pathlib import Path

from batuta.core.cluster import Node
from batuta.spec.node_group import MOST_GPUS, NodeGroup, build_nodes
from batuta.spec.problem import InputError, Problem
from batuta.spec.text_file import read_text

COLUMNS = ["sn", "cpu_milli", "memory_mib", "gpu", "model"]


def read_alibaba_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes that have GPUs, named as in the file."""
    rows = csv.reader(read_text(path).splitlines())
    header = [name.strip() for name in next(rows)]
    if header != COLUMNS:
        raise InputError.of(
            f"is not a node list: the header is {','.join(header)[:100]}",
            file=str(path),
            line=1,
            fix=f"a node list begins with {','.join(COLUMNS)}; other clusters go into a .yaml file",
        )
    groups: list[NodeGroup] = []
    problems: list[Problem] = []
    first_line_of: dict[str, int] = {}
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        try:
            group = _group(row)
        except ValueError as error:
            problems.append(Problem(str(error), str(path), line))
            continue
        if first_line_of.setdefault(group.name, line) != line:
            problems.append(
                Problem(f"node {group.name} is on line {first_line_of[group.name]} too", str(path), line)
            )
        if group.gpus:
            groups.append(group)
    if not groups and not problems:
        problems.append(Problem("holds no node with GPUs", str(path)))
    if problems:
        raise InputError(problems)
    return build_nodes(groups)


def _group(row: list[str]) -> NodeGroup:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} columns, the header has {len(COLUMNS)}")
    name, *numbers, model = (cell.strip() for cell in row)
    for column, text in zip(COLUMNS[1:4], numbers, strict=True):
        if not (text.isascii() and text.isdecimal()) or len(text) > 12:
            raise ValueError(f"{column} must be a whole number ≥ 0, found {text!r}")
    cpus_milli, memory_mib, gpus = map(int, numbers)
    if not name or gpus > MOST_GPUS or (gpus and not model):
        raise ValueError(f"a node needs a name, a GPU model and at most {MOST_GPUS:,} GPUs, found {row}")
    return NodeGroup(1, gpus, model or "gpu", name, cpus_milli=cpus_milli, memory_mib=memory_mib)
