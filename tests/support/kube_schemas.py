"""JSON schemas for kubeconform, made from what an API server publishes about its types."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
_PREFIX = "#/definitions/"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_EITHER: Json = {"anyOf": [{"type": "string"}, {"type": "number"}]}
_GVK = "x-kubernetes-group-version-kind"


def write_schemas(openapi: Json, folder: Path) -> None:
    """One file for each kind of /openapi/v2; none lets a key pass that the API does not know."""
    definitions = {name: _EITHER if name == _QUANTITY else _strict(one) for name, one in openapi["definitions"].items()}
    for name, definition in openapi["definitions"].items():
        for kind in definition.get(_GVK, ()):
            needed = _reachable(name, definitions)
            schema = {"$ref": _PREFIX + name, "definitions": {one: definitions[one] for one in needed}}
            (folder / _file_name(kind)).write_text(json.dumps(schema))


def _file_name(kind: Json) -> str:
    """As kubeconform asks for it: kind, the first word of the group, version."""
    parts = [kind["kind"].lower(), kind["group"].split(".")[0], kind["version"]]
    return "-".join(part for part in parts if part) + ".json"


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return _EITHER
    found = {name: _strict(one) for name, one in schema.items()}
    loose = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not loose:
        found["additionalProperties"] = False
    return found


def _reachable(name: str, definitions: Json) -> set[str]:
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(_references(definitions[one]))
    return seen


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_PREFIX)
        for one in schema.values():
            yield from _references(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _references(one)
