"""An OpenAPI v3 schema, as a CRD wants it (structural, without references), of msgspec structs."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

Schema: TypeAlias = dict[str, Any]
_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_LENGTHS: Final = {
    inspect.StrType: ("minLength", "maxLength"),
    inspect.ListType: ("minItems", "maxItems"),
}


def schema_of(kind: type[msgspec.Struct], *, defaults: bool) -> Schema:
    """The schema of a struct. With `defaults`, the API server fills in what the struct would."""
    return _of(inspect.type_info(kind), defaults)


def _of(info: inspect.Type, defaults: bool) -> Schema:
    extra: dict[str, Any] = {}
    more: Schema = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        more |= info.extra_json_schema or {}
        info = info.type
    if "schema" in extra:
        base = dict(extra["schema"])
    elif extra.get("quantity"):
        base = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    else:
        base = _plain(info, defaults)
    return base | more


def _plain(info: inspect.Type, defaults: bool) -> Schema:
    match info:
        case inspect.UnionType():
            return _of(_without_none(info), defaults)
        case inspect.StructType():
            return _struct(info, defaults)
        case inspect.ListType():
            return {"type": "array", "items": _of(info.item_type, defaults), **_lengths(info)}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _of(info.value_type, defaults)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            bounds = {word: value for key, word in _BOUNDS.items() if (value := getattr(info, key)) is not None}
            return {"type": "integer", **bounds}
        case inspect.StrType():
            pattern = {"pattern": info.pattern} if info.pattern else {}
            return {"type": "string", **_lengths(info), **pattern}
    raise TypeError(f"no schema for {info}")


def _struct(info: inspect.StructType, defaults: bool) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for field in info.fields:
        schema = _of(field.type, defaults)
        if defaults and isinstance(field.default, bool | int | str) and field.default != "":
            schema["default"] = field.default
        properties[field.encode_name] = schema
        if _is_required(field.type):
            required.append(field.encode_name)
    found: Schema = {"type": "object", "description": _first_line(info.cls), "properties": properties}
    return found | ({"required": required} if required else {})


def _lengths(info: inspect.StrType | inspect.ListType) -> Schema:
    least, most = _LENGTHS[type(info)]
    found = ((least, info.min_length), (most, info.max_length))
    return {word: value for word, value in found if value is not None}


def _without_none(info: inspect.UnionType) -> inspect.Type:
    (only,) = (one for one in info.types if not isinstance(one, inspect.NoneType))
    return only


def _is_required(info: inspect.Type) -> bool:
    found = False
    while isinstance(info, inspect.Metadata):
        found = found or bool((info.extra or {}).get("required"))
        info = info.type
    return found


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
