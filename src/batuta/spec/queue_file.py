"""Queues from YAML.

queues:
  - name: team-a
    quota: {H100: 8, "*": 16}   # GPUs by type, * for all together; default: no limit
    cohort: research            # queues of one cohort lend to each other
    weight: 2                   # default 1
    held: false                 # nothing new starts while it is held
"""

from __future__ import annotations

import re
from pathlib import Path

from batuta.core.cluster import Queue
from batuta.spec.problem import InputError
from batuta.spec.text_file import read_text
from batuta.spec.yaml_nodes import YamlNode, YamlReader

_KEYS = ("name", "quota", "cohort", "weight", "held")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NAME_FIX = "letters, digits, dots, dashes and underscores"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_MOST_GPUS = 10_000_000


def read_queue_file(path: Path) -> tuple[Queue, ...]:
    """The queues of a file, or all its problems with line and column."""
    reader = YamlReader(str(path))
    root = reader.compose(read_text(path))
    top = reader.mapping(root, "the file", ("queues",)) if root is not None else None
    queues: dict[str, Queue] = {}
    if root is not None and top is not None:
        if "queues" not in top:
            reader.fault(root, "has no queues", "queues: [{name: team-a, quota: {H100: 8}}]")
        else:
            for node in reader.sequence(top["queues"], "queues"):
                queue = _read_queue(reader, node)
                if queue is not None and queue.name in queues:
                    reader.fault(node, f"queue {queue.name} appears twice")
                elif queue is not None:
                    queues[queue.name] = queue
    if reader.problems:
        raise InputError(reader.problems)
    return tuple(queues.values())


def _read_queue(reader: YamlReader, node: YamlNode) -> Queue | None:
    values = reader.mapping(node, "a queue", _KEYS)
    if values is None:
        return None
    if "name" not in values:
        reader.fault(node, "a queue needs a name")
        return None
    name = reader.text(values["name"], "name") or ""
    if name and not _NAME.fullmatch(name):
        reader.fault(values["name"], f"a queue cannot have the name {name!r}", _NAME_FIX)
    cohort = (reader.text(values["cohort"], "cohort") or "") if "cohort" in values else ""
    weight = reader.number(values["weight"], "weight", 0, 1e6) if "weight" in values else 1.0
    if weight == 0:
        reader.fault(values["weight"], "weight must be larger than 0")
    return Queue(name, _read_quota(reader, values.get("quota")), cohort, weight or 1.0, _held(reader, values))


def _read_quota(reader: YamlReader, node: YamlNode | None) -> tuple[tuple[str, int], ...]:
    if node is None:
        return ()
    limits = reader.mapping(node, "quota") or {}
    found = [(kind, reader.whole(value, f"quota.{kind}", 0, _MOST_GPUS)) for kind, value in limits.items()]
    return tuple((kind, count) for kind, count in found if count is not None)


def _held(reader: YamlReader, values: dict[str, YamlNode]) -> bool:
    if "held" not in values:
        return False
    text = (reader.text(values["held"], "held") or "").lower()
    if text and text not in _TRUTH:
        reader.fault(values["held"], f"held must be true or false, found {text!r}")
    return _TRUTH.get(text, False)
