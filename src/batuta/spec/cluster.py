"""A cluster from a short string such as `16x4:T4,2x8:A100`, a YAML file or a node list: docs/reference/simulator.md."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batuta.core.cluster import Node
from batuta.spec.problem import InputError, Problem, read_text
from batuta.spec.quantity import shown
from batuta.spec.yaml_reader import YamlNode, YamlReader

DEFAULT_TYPE = "gpu"
MOST_GPUS = 1_000_000
NODES_PER_RACK = 16
NVLINK_GPUS = 8
GPU_MEMORY_MIB = {
    "k80": 12_288,
    "p100": 16_384,
    "v100": 16_384,
    "v100m16": 16_384,
    "v100m32": 32_768,
    "t4": 16_384,
    "a10": 24_576,
    "a10g": 24_576,
    "l4": 24_576,
    "l40s": 49_152,
    "a30": 24_576,
    "a100": 40_960,
    "a100-80gb": 81_920,
    "h100": 81_920,
    "h200": 144_384,
    "b200": 184_320,
}
"""By type, as the vendor states it; other types have 16 GiB unless the cluster file says otherwise."""
_OTHER_MEMORY_MIB = 16_384
_CSV_COLUMNS = ["sn", "cpu_milli", "memory_mib", "gpu", "model"]
_TOP = ("racks", "nodes")
_RACK = ("name", "zone", "nodes")
_NODE = (
    *("count", "gpus", "type", "name", "gpu_memory", "cpus", "memory", "zone"),
    *("nvlink", "numa", "labels", "taints"),
)
_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGT]i?B?)?", re.IGNORECASE)
_UNIT_BYTES = {"": 2**30} | {
    unit + ending: base**power
    for power, unit in enumerate("kmgt", start=1)
    for base, endings in ((1000, ("b",)), (1024, ("", "i", "ib")))
    for ending in endings
}
_FIX = "write COUNTxGPUS[:TYPE], such as 16x4:T4,2x8:A100"
_GROUP = re.compile(r"([+-]?[0-9]+)\s*[x×*]\s*([+-]?[0-9]+)\s*(?::(.*))?", re.IGNORECASE | re.DOTALL)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` equal nodes."""

    count: int
    gpus: int
    gpu_type: str = DEFAULT_TYPE
    name: str = ""  # the name of a single node, the beginning of the names of several; empty: the GPU type
    rack: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of `Node`; None and what is absent follow from the GPUs."""

    @property
    def prefix(self) -> str:
        return self.name or re.sub(r"[^a-z0-9]+", "-", self.gpu_type.lower()).strip("-") or DEFAULT_TYPE

    def template(self) -> Node:
        """Return one of the nodes. NVLink joins up to 8 GPUs of it; NUMA splits 4 and more GPUs into two halves."""
        gpus, half = range(self.gpus), (self.gpus + 1) // 2
        derived: dict[str, Any] = {
            "gpu_memory_mib": GPU_MEMORY_MIB.get(self.gpu_type.lower(), _OTHER_MEMORY_MIB),
            "nvlink": () if self.gpus <= NVLINK_GPUS else tuple(gpu // NVLINK_GPUS for gpu in gpus),
            "numa": () if self.gpus < 4 else tuple(gpu // half for gpu in gpus),
        }
        given = {key: value for key, value in self.others.items() if value is not None}
        return Node(self.name, self.gpus, self.gpu_type, **derived | given)


def build_nodes(groups: Sequence[NodeGroup]) -> tuple[Node, ...]:
    """The nodes in order.

    - Names are `t4-000`, `t4-001` …; a type that comes again goes on counting.
    - Nodes without a rack of their own fill `rack-0`, `rack-1` … with 16 each, in order.
    """
    totals: Counter[str] = Counter()
    for group in groups:
        totals[group.prefix] += group.count
    taken = {group.rack for group in groups if group.rack}
    free_racks = (name for name in (f"rack-{number}" for number in range(MOST_GPUS)) if name not in taken)
    used: Counter[str] = Counter()
    nodes: list[Node] = []
    unracked = 0
    rack = ""
    for group in groups:
        template, total = group.template(), totals[group.prefix]
        for _ in range(group.count):
            if group.rack is None:
                if unracked % NODES_PER_RACK == 0:
                    rack = next(free_racks)
                unracked += 1
            name = f"{group.prefix}-{used[group.prefix]:0{max(3, len(str(total - 1)))}d}"
            name = group.name if group.name and total == 1 else name
            nodes.append(replace(template, name=name, rack=rack if group.rack is None else group.rack))
            used[group.prefix] += 1
    return tuple(nodes)


def read_alibaba_nodes(path: Path) -> tuple[Node, ...]:
    """Return the nodes of a CSV node list that have GPUs, named as in the file."""
    rows = csv.reader(read_text(path).splitlines())
    header = [name.strip() for name in next(rows)]
    if header != _CSV_COLUMNS:
        fix = f"a node list begins with {','.join(_CSV_COLUMNS)}; other clusters go into a .yaml file"
        message = f"is not a node list: the header is {','.join(header)[:100]}"
        raise InputError.of(message, file=str(path), line=1, fix=fix)
    groups: list[NodeGroup] = []
    problems: list[Problem] = []
    first_line_of: dict[str, int] = {}
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        try:
            group = _read_csv_row(row)
        except ValueError as error:
            problems.append(Problem(str(error), str(path), line))
            continue
        if first_line_of.setdefault(group.name, line) != line:
            problems.append(Problem(f"node {group.name} is on line {first_line_of[group.name]} too", str(path), line))
        if group.gpus:
            groups.append(group)
    if not groups and not problems:
        problems.append(Problem("holds no node with GPUs", str(path)))
    if problems:
        raise InputError(problems)
    return build_nodes(groups)


def _read_csv_row(row: list[str]) -> NodeGroup:
    if len(row) != len(_CSV_COLUMNS):
        raise ValueError(f"{len(row)} columns, the header has {len(_CSV_COLUMNS)}")
    name, *numbers, model = (cell.strip() for cell in row)
    for column, text in zip(_CSV_COLUMNS[1:4], numbers, strict=True):
        if not (text.isascii() and text.isdecimal()) or len(text) > 12:
            raise ValueError(f"{column} must be a whole number ≥ 0, found {text!r}")
    cpus_milli, memory_mib, gpus = map(int, numbers)
    if not name or gpus > MOST_GPUS or (gpus and not model):
        raise ValueError(f"a node needs a name, a GPU model and at most {MOST_GPUS:,} GPUs, found {row}")
    return NodeGroup(1, gpus, model or "gpu", name, others={"cpus_milli": cpus_milli, "memory_mib": memory_mib})


def read_cluster_file(path: Path) -> tuple[Node, ...]:
    """Return the nodes of a cluster file. Raises InputError with every problem and its position."""
    reader = YamlReader(str(path))
    root = reader.compose(read_text(path))
    groups = _read_groups(reader, root) if root is not None else []
    total = sum(group.count * group.gpus for group in groups)
    if total > MOST_GPUS:
        fix = f"at most {MOST_GPUS:,} are possible"
        reader.problems.append(Problem(f"the cluster has {total:,} GPUs", str(path), fix=fix))
    if not groups and not reader.problems:
        reader.problems.append(Problem("holds no nodes", str(path), fix="list them under nodes or racks"))
    if reader.problems:
        raise InputError(reader.problems)
    nodes = build_nodes(groups)
    names = [node.name for node in nodes]
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise InputError([Problem(f"two nodes have the name {name}", str(path)) for name in twice])
    return nodes


def _read_groups(reader: YamlReader, root: YamlNode) -> list[NodeGroup]:
    groups: list[NodeGroup] = []
    top = reader.mapping(root, "the cluster", _TOP) or {}
    seen: set[str] = set()
    for item in reader.sequence(top.get("racks"), "racks"):
        rack = reader.mapping(item, "a rack", _RACK)
        if rack is None:
            continue
        name = reader.text(rack.get("name"), "name")
        if "name" not in rack:
            reader.fault(item, "a rack needs a name")
        elif name in seen:
            reader.fault(rack["name"], f"rack {name} appears twice")
        seen.add(name or "")
        zone = reader.text(rack.get("zone"), "zone") or ""
        if "nodes" not in rack:
            reader.fault(item, "a rack needs nodes")
        for node in reader.sequence(rack.get("nodes"), "nodes"):
            groups += _read_group(reader, node, name or "", zone)
    for node in reader.sequence(top.get("nodes"), "nodes"):
        groups += _read_group(reader, node, None, "")
    return groups


def _read_group(reader: YamlReader, item: YamlNode, rack: str | None, zone: str) -> list[NodeGroup]:
    before = len(reader.problems)
    values = reader.mapping(item, "a node", _NODE)
    if values is None:
        return []
    texts = {key: reader.text(values[key], key) or "" for key in ("type", "name", "zone") if key in values}
    gpus = reader.whole(values.get("gpus"), "gpus", 1, MOST_GPUS)
    if "gpus" not in values:
        reader.fault(item, "a node needs gpus", "for example gpus: 4")
    count = reader.whole(values.get("count"), "count", 1, MOST_GPUS) or 1
    labels = reader.mapping(values.get("labels"), "labels") or {}
    taints = [reader.text(taint, "a taint") for taint in reader.sequence(values.get("taints"), "taints")]
    others = {
        "gpu_memory_mib": _memory_mib(reader, values.get("gpu_memory"), "gpu_memory"),
        "cpus_milli": round((reader.number(values.get("cpus"), "cpus", 0, 1e6) or 0.0) * 1000),
        "memory_mib": _memory_mib(reader, values.get("memory"), "memory"),
        "zone": texts.get("zone", zone),
        "nvlink": _gpu_groups(reader, values.get("nvlink"), "nvlink", gpus),
        "numa": _gpu_groups(reader, values.get("numa"), "numa", gpus),
        "labels": tuple((key, reader.text(value, f"label {key}") or "") for key, value in labels.items()),
        "taints": tuple(text for text in taints if text is not None),
    }
    group = NodeGroup(count, gpus or 1, texts.get("type", DEFAULT_TYPE), texts.get("name", ""), rack, others)
    return [group] if len(reader.problems) == before else []


def _memory_mib(reader: YamlReader, node: YamlNode | None, what: str) -> int | None:
    text = reader.text(node, what)
    match = _MEMORY.fullmatch(text) if text else None
    mib = int(float(match[1]) * _UNIT_BYTES[(match[2] or "").lower()]) // 2**20 if match else 0
    if mib >= 1:
        return mib
    if node is not None and text:
        reader.fault(node, f"{what} must be an amount of memory, found {text!r}", "for example 16GiB")
    return None


def _gpu_groups(reader: YamlReader, node: YamlNode | None, what: str, gpus: int | None) -> tuple[int, ...] | None:
    if node is None or gpus is None:
        return None
    before = len(reader.problems)
    group_of: dict[int, int] = {}
    for number, group in enumerate(reader.sequence(node, what)):
        for item in reader.sequence(group, f"a group of {what}"):
            gpu = reader.whole(item, f"a GPU of {what}", 0, gpus - 1)
            if gpu in group_of:
                reader.fault(item, f"GPU {gpu} is in two groups of {what}")
            elif gpu is not None:
                group_of[gpu] = number
    missing = [gpu for gpu in range(gpus) if gpu not in group_of]
    if missing and len(reader.problems) == before:
        some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        reader.fault(node, f"{what} leaves out GPU {some}", "name every GPU once, such as [[0, 1], [2, 3]]")
    return None if missing else tuple(group_of[gpu] for gpu in range(gpus))


def read_cluster(text: str) -> tuple[Node, ...]:
    """Return the nodes that a string describes, or the file that it names."""
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
        problems.append(Problem(f"{shown(text)} is not a group of nodes", fix=_FIX))
        return None
    # Check the length first: int() of a million digits is slow.
    found = [
        Problem(f"{shown(text)} needs between one {what} and {MOST_GPUS:,}", fix=_FIX)
        for what, digits in (("node", match[1]), ("GPU per node", match[2]))
        if len(digits) > 12 or int(digits) < 1
    ]
    gpu_type = DEFAULT_TYPE if match[3] is None else match[3].strip()
    if not _TYPE.fullmatch(gpu_type):
        message = f"{shown(text)} has no proper GPU type after the colon"
        found.append(Problem(message, fix="letters, digits, dots and dashes"))
    problems += found
    return None if found else NodeGroup(int(match[1]), int(match[2]), gpu_type)
