"""A cluster from YAML: racks, nodes, wiring, labels.

    racks:                       # racks by name ...
      - name: rack-a
        zone: eu-1               # optional
        nodes:
          - count: 8             # default 1
            gpus: 4
            type: T4             # default gpu
            name: trainer        # default the type: t4-000, t4-001 …; a single node has just this name
            gpu_memory: 16GiB    # default by type
            cpus: 48             # default: not counted
            memory: 192GiB       # default: not counted
            nvlink: [[0, 1], [2, 3]]   # GPUs that NVLink joins; default: up to 8 together
            numa: [[0, 1], [2, 3]]     # GPUs of each NUMA domain; default: two halves from 4 GPUs on
            labels: {pool: train}
            taints: [spot]
    nodes:                       # ... and nodes without one: every 16 in order share rack-0, rack-1 …
      - {count: 2, gpus: 8, type: A100}

A memory without a unit is in GiB.
"""

from __future__ import annotations

import re
from pathlib import Path

from batuta.core.cluster import Node
from batuta.spec.node_group import DEFAULT_TYPE, MOST_GPUS, NodeGroup, build_nodes
from batuta.spec.problem import InputError, Problem
from batuta.spec.text_file import read_text
from batuta.spec.yaml_nodes import YamlNode, YamlReader

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


def read_cluster_file(path: Path) -> tuple[Node, ...]:
    """The nodes of a cluster file, or all its problems with line and column."""
    reader = YamlReader(str(path))
    root = reader.compose(read_text(path))
    groups = _read_groups(reader, root) if root is not None else []
    total = sum(group.count * group.gpus for group in groups)
    if total > MOST_GPUS:
        reader.problems.append(
            Problem(f"the cluster has {total:,} GPUs", str(path), fix=f"at most {MOST_GPUS:,} are possible")
        )
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
    for item in reader.sequence(top["racks"], "racks") if "racks" in top else ():
        rack = reader.mapping(item, "a rack", _RACK)
        if rack is None:
            continue
        name = reader.text(rack["name"], "name") if "name" in rack else None
        if "name" not in rack:
            reader.fault(item, "a rack needs a name")
        elif name in seen:
            reader.fault(rack["name"], f"rack {name} appears twice")
        seen.add(name or "")
        zone = (reader.text(rack["zone"], "zone") if "zone" in rack else None) or ""
        if "nodes" not in rack:
            reader.fault(item, "a rack needs nodes")
            continue
        for node in reader.sequence(rack["nodes"], "nodes"):
            groups += _read_group(reader, node, name or "", zone)
    for node in reader.sequence(top["nodes"], "nodes") if "nodes" in top else ():
        groups += _read_group(reader, node, None, "")
    return groups


def _read_group(reader: YamlReader, item: YamlNode, rack: str | None, zone: str) -> list[NodeGroup]:
    """One group, or none when it has a problem."""
    before = len(reader.problems)
    values = reader.mapping(item, "a node", _NODE)
    if values is None:
        return []
    texts = {key: reader.text(values[key], key) or "" for key in ("type", "name", "zone") if key in values}
    count = reader.whole(values["count"], "count", 1, MOST_GPUS) if "count" in values else 1
    gpus = reader.whole(values["gpus"], "gpus", 1, MOST_GPUS) if "gpus" in values else None
    if "gpus" not in values:
        reader.fault(item, "a node needs gpus", "for example gpus: 4")
    cpus = reader.number(values["cpus"], "cpus", 0, 1e6) if "cpus" in values else 0.0
    group = NodeGroup(
        count=count or 1,
        gpus=gpus or 1,
        gpu_type=texts.get("type", DEFAULT_TYPE),
        name=texts.get("name", ""),
        gpu_memory_mib=_memory_mib(reader, values.get("gpu_memory"), "gpu_memory"),
        cpus_milli=round((cpus or 0.0) * 1000),
        memory_mib=_memory_mib(reader, values.get("memory"), "memory") or 0,
        rack=rack,
        zone=texts.get("zone", zone),
        nvlink=_gpu_groups(reader, values.get("nvlink"), "nvlink", gpus),
        numa=_gpu_groups(reader, values.get("numa"), "numa", gpus),
        labels=_labels(reader, values.get("labels")),
        taints=_taints(reader, values.get("taints")),
    )
    return [group] if len(reader.problems) == before else []


def _memory_mib(reader: YamlReader, node: YamlNode | None, what: str) -> int | None:
    if node is None:
        return None
    text = reader.text(node, what)
    match = _MEMORY.fullmatch(text) if text else None
    if match is not None:
        mib = int(float(match[1]) * _UNIT_BYTES[(match[2] or "").lower()]) // 2**20
        if mib >= 1:
            return mib
    if text:
        reader.fault(node, f"{what} must be an amount of memory, found {text!r}", "for example 16GiB")
    return None


def _gpu_groups(
    reader: YamlReader, node: YamlNode | None, what: str, gpus: int | None
) -> tuple[int, ...] | None:
    """The group of each GPU; every GPU must be in exactly one."""
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


def _labels(reader: YamlReader, node: YamlNode | None) -> tuple[tuple[str, str], ...]:
    pairs = reader.mapping(node, "labels") if node is not None else None
    return tuple((key, reader.text(value, f"label {key}") or "") for key, value in (pairs or {}).items())


def _taints(reader: YamlReader, node: YamlNode | None) -> tuple[str, ...]:
    items = reader.sequence(node, "taints") if node is not None else []
    return tuple(text for item in items if (text := reader.text(item, "a taint")) is not None)
