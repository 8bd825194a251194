"""A cluster from a short string such as `16x4:T4,2x8:A100`, or from a file.

The string is a list of COUNTxGPUS[:TYPE]: sixteen nodes with four T4 each, two nodes with eight A100 each.
Without a type the GPUs are of type `gpu`. A text that ends in .yaml or .yml names a cluster file
(`cluster_file`); one that ends in .csv a node list of Alibaba's v2023 trace (`alibaba_nodes`).
"""

from __future__ import annotations

import re
from pathlib import Path

from batuta.core.cluster import Node
from batuta.spec.alibaba_nodes import read_alibaba_nodes
from batuta.spec.cluster_file import read_cluster_file
from batuta.spec.node_group import DEFAULT_TYPE, MOST_GPUS, NodeGroup, build_nodes
from batuta.spec.problem import InputError, Problem

_FIX = "write COUNTxGPUS[:TYPE], such as 16x4:T4,2x8:A100"
_GROUP = re.compile(r"([+-]?[0-9]+)\s*[x×*]\s*([+-]?[0-9]+)\s*(?::(.*))?", re.IGNORECASE | re.DOTALL)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def read_cluster(text: str) -> tuple[Node, ...]:
    """The nodes that a string describes, or that the file it names describes."""
    ending = Path(text.strip()).suffix.lower()
    if ending in (".yaml", ".yml"):
        return read_cluster_file(Path(text.strip()))
    if ending == ".csv":
        return read_alibaba_nodes(Path(text.strip()))
    return parse_cluster_string(text)


def parse_cluster_string(text: str) -> tuple[Node, ...]:
    problems: list[Problem] = []
    groups = [_parse_group(part.strip(), problems) for part in text.split(",")]
    if not text.strip():
        problems = [Problem("the cluster is empty", fix=_FIX)]
    found = [group for group in groups if group is not None]
    total = sum(group.count * group.gpus for group in found)
    if total > MOST_GPUS:
        problems.append(Problem(f"the cluster has {total:,} GPUs", fix=f"at most {MOST_GPUS:,} are possible"))
    if problems:
        raise InputError(problems)
    return build_nodes(found)


def _parse_group(text: str, problems: list[Problem]) -> NodeGroup | None:
    if not text:
        problems.append(Problem("the cluster has an empty part between its commas", fix=_FIX))
        return None
    match = _GROUP.fullmatch(text)
    if match is None:
        problems.append(Problem(f"{_shown(text)} is not a group of nodes", fix=_FIX))
        return None
    sound = True
    for what, digits in (("node", match[1]), ("GPU per node", match[2])):
        # The length comes first: a number of a million digits is not worth turning into one.
        if len(digits) > 12 or int(digits) < 1:
            problems.append(Problem(f"{_shown(text)} needs between one {what} and {MOST_GPUS:,}", fix=_FIX))
            sound = False
    gpu_type = DEFAULT_TYPE if match[3] is None else match[3].strip()
    if not _TYPE.fullmatch(gpu_type):
        problems.append(
            Problem(
                f"{_shown(text)} has no proper GPU type after the colon",
                fix="letters, digits, dots and dashes",
            )
        )
        sound = False
    return NodeGroup(int(match[1]), int(match[2]), gpu_type) if sound else None


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}…"
