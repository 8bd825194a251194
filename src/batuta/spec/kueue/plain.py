"""Plain values (of JSON, of the API server) as the nodes that readers of YAML take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from batuta.spec.problem import InputError
from batuta.spec.yaml_nodes import DEEPEST, PlainPlace, YamlNode

_TAG = "tag:yaml.org,2002:"


def object_node(value: Any) -> YamlNode:
    """The node of an object; problems call it by its kind and name."""
    return _node(value, PlainPlace(_title(value)), 0)


def _title(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "object"
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{value.get('kind') or 'object'} {name or ''}".strip()


def _node(value: Any, place: Any, depth: int) -> YamlNode:
    if depth > DEEPEST:
        raise InputError.of(f"{place.title}: is nested more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        pairs = [
            (_node(str(key), place, depth + 1), _node(one, place, depth + 1)) for key, one in value.items()
        ]
        return yaml.MappingNode(_TAG + "map", pairs, place, place)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [_node(one, place, depth + 1) for one in value]
        return yaml.SequenceNode(_TAG + "seq", items, place, place)
    tag, text = _scalar(value)
    return yaml.ScalarNode(_TAG + tag, text, place, place)


def _scalar(value: Any) -> tuple[str, str]:
    if value is None:
        return "null", "null"
    if isinstance(value, bool):
        return "bool", str(value).lower()
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        return "float", repr(value)
    return "str", str(value)
