"""Which GPUs a node of a task needs: `H100:8`, `{H100: 8}`, `[H100:8, A100:8]`, `H100:0.5`, `4`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import yaml

from batuta.spec.problem import InputError
from batuta.spec.quantity import shown
from batuta.spec.sound_yaml import is_null
from batuta.spec.task_yaml import TaskReader
from batuta.spec.yaml_nodes import YamlNode

ANY = ""
"""The type of a GPU when any will do."""
MOST_PER_NODE = 1024
MOST_ALTERNATIVES = 64
_FIX = "write TYPE:COUNT, for example H100:8, H100 for one, or H100:0.5 for half of one"
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
_COUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """So many GPUs of one type on each node. A count below 1 is a share of one GPU."""

    type: str
    count: float

    def __str__(self) -> str:
        return f"{self.type or 'any'}:{self.count:g}"

    @property
    def gpus(self) -> int:
        """Whole GPUs that are touched: a share lies on one."""
        return math.ceil(self.count)

    @property
    def is_share(self) -> bool:
        return self.count < 1


def parse_accelerator(text: str) -> Accelerator:
    """`H100:8`, `H100` (one), `8` (of any type)."""
    name, colon, count = (part.strip() for part in text.strip().partition(":"))
    if not colon and _COUNT.fullmatch(name):
        name, count = ANY, name
    elif not _TYPE.fullmatch(name) or (colon and not count):
        raise InputError.of(f"{shown(text)} is not an accelerator", fix=_FIX)
    return Accelerator(name, _parse_count(count or "1"))


def parse_accelerators(text: str) -> tuple[Accelerator, ...]:
    """What the command line says: one accelerator, or alternatives with commas between them."""
    found = tuple(parse_accelerator(part) for part in text.split(",")[: MOST_ALTERNATIVES + 1])
    if len(found) > MOST_ALTERNATIVES:
        raise InputError.of(f"more than {MOST_ALTERNATIVES} alternative accelerators")
    return tuple(dict.fromkeys(found))


def read_accelerators(reader: TaskReader, node: YamlNode) -> tuple[Accelerator, ...]:
    """Alternatives in the order of the file; none when nothing is said, or when something is wrong."""
    what = "accelerators"
    if is_null(node):
        return ()
    if isinstance(node, yaml.MappingNode):
        found = _read_mapping(reader, node)
    elif isinstance(node, yaml.SequenceNode):
        found = [reader.parsed(item, what, parse_accelerator) for item in node.value[: MOST_ALTERNATIVES + 1]]
        if not found:
            reader.fault(node, "accelerators must not be an empty list", _FIX)
    else:
        found = [reader.parsed(node, what, parse_accelerator)]
    if len(found) > MOST_ALTERNATIVES:
        reader.fault(node, f"more than {MOST_ALTERNATIVES} alternative accelerators")
        return ()
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _read_mapping(reader: TaskReader, node: yaml.MappingNode) -> list[Accelerator | None]:
    """`{H100: 8, A100: 8}`; also SkyPilot's set `{H100:8, A100:8}`: to YAML, keys without values."""
    found: list[Accelerator | None] = []
    for key, value in node.value[: MOST_ALTERNATIVES + 1]:
        name = reader.text(key, "an accelerator")
        if name is None:
            continue
        if is_null(value):
            found.append(reader.parsed(key, "accelerators", parse_accelerator))
            continue

        def with_name(text: str, name: str = name) -> Accelerator:
            return parse_accelerator(f"{name}:{text}")

        found.append(reader.parsed(value, "accelerators", with_name))
    if not node.value:
        reader.fault(node, "accelerators must not be an empty mapping", _FIX)
    return found


def _parse_count(text: str) -> float:
    count = float(text) if _COUNT.fullmatch(text) else 0.0
    if count > 1 and count == int(count) and count <= MOST_PER_NODE:
        return count
    if not 0.01 <= count <= 1:
        raise InputError.of(
            f"{shown(text)} is not a count of GPUs",
            fix=f"a whole number within 1..{MOST_PER_NODE}, or a share of one GPU within 0.01..1",
        )
    return count
