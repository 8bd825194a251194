"""Custom resources: their fields as msgspec structs, rules between fields, tolerant decoding, times, and their CRD.

A model declares its fields once. The decoder, the checks of an object that got past the schema, and the
CustomResourceDefinition come from that declaration. A rule is CEL for the API server, which refuses what breaks
it, and Python for Batuta, which checks objects that got past the API server.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import yaml
from msgspec import Meta, inspect

from batuta.backends.kube import names, objects

Schema: TypeAlias = dict[str, Any]
Int32: TypeAlias = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64: TypeAlias = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LONGEST_NAME: Final = 50
"""Characters of an object's name: the names of its pods are host names, which have 63."""
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MOST_FAULTS: Final = 32
_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_LENGTHS: Final = {inspect.StrType: ("minLength", "maxLength"), inspect.ListType: ("minItems", "maxItems")}

StructT = TypeVar("StructT", bound=msgspec.Struct)
SpecT = TypeVar("SpecT", bound=msgspec.Struct)
StatusT = TypeVar("StatusT", bound=msgspec.Struct)


class Resource(msgspec.Struct, Generic[SpecT, StatusT], kw_only=True, dict=True):
    """An object. Decoding it never fails: faults of `spec` and `status` are found when they are first read."""

    spec_type: ClassVar[type[Any]]
    status_type: ClassVar[type[Any]]
    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    raw_spec: Any = msgspec.field(default=None, name="spec")
    raw_status: Any = msgspec.field(default=None, name="status")

    @property
    def id(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def spec(self) -> SpecT:
        """What the user wants, without what could not be read."""
        return self._read[0]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What could not be read in `spec`, as sentences with the place and the fix."""
        return self._read[1]

    @cached_property
    def status(self) -> StatusT:
        """What the operator wrote; empty where that cannot be read, for it will be written again."""
        status: StatusT = read_tolerantly(self.raw_status or {}, self.status_type, "status")[0]
        return status

    @property
    def is_over(self) -> bool:
        return objects.has_condition(self.raw_status, "Complete", "Failed")

    @cached_property
    def _read(self) -> tuple[SpecT, tuple[str, ...]]:
        return read_tolerantly(self.raw_spec, self.spec_type, "spec")


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule at a place of the schema; `holds` says the same in Python (None: about a change)."""

    at: str
    """The object that `self` is, and that `holds` is asked about; empty for the whole object."""
    cel: str
    message: str
    field: str = ""
    """The field to blame, below `at`."""
    holds: Callable[[Any], bool] | None = None


class Column(NamedTuple):
    """What `kubectl get` shows of an object."""

    name: str
    type: str
    path: str
    is_wide: bool = False
    """Only with `-o wide`."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind, as the API server is told of it."""

    kind: str
    plural: str
    short: str
    description: str
    spec: Schema
    status: Schema
    columns: Sequence[Column]
    rules: Sequence[Rule]
    module: str
    """Who makes the file, and whose neighbour `model.py` is where the fields are declared."""
    subresources: Mapping[str, Any] = field(default_factory=dict)
    """Beside the status."""

    def build(self) -> dict[str, Any]:
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{names.GROUP}"},
            "spec": {
                "group": names.GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short],
                    "categories": ["all"],
                },
                "versions": [self._version()],
            },
        }

    def to_yaml(self) -> str:
        """The file in the Helm chart."""
        model = "/".join(self.module.split(".")[:-1])
        head = f"# Made by: python -m {self.module}\n# The source of truth is src/{model}/model.py\n"
        return head + yaml.dump(
            self.build(), Dumper=_NoAliases, sort_keys=False, width=110, allow_unicode=True, default_flow_style=False
        )

    def _version(self) -> dict[str, Any]:
        return {
            "name": names.VERSION,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": self._schema()},
            "subresources": {"status": {}, **self.subresources},
            "additionalPrinterColumns": [
                {"name": one.name, "type": one.type, "jsonPath": one.path} | ({"priority": 1} if one.is_wide else {})
                for one in self.columns
            ],
        }

    def _schema(self) -> Schema:
        root: Schema = {
            "type": "object",
            "description": self.description,
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": self.spec,
                "status": self.status,
            },
        }
        for rule in self.rules:
            put_rule(root, rule)
        return root


class _NoAliases(yaml.SafeDumper):
    """Parts of the schema are used more than once; a reader wants to see them each time."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_tolerantly(value: Any, kind: type[StructT], root: str) -> tuple[StructT, tuple[str, ...]]:
    """The value as far as it can be read, and what cannot. `root` is the value's own place."""
    faults: list[str] = []
    while len(faults) < _MOST_FAULTS:
        try:
            return msgspec.convert(value, kind), tuple(faults)
        except msgspec.ValidationError as error:
            what, path = _taken_apart(str(error))
        if not faults:
            value = copy.deepcopy(value)
        faults.append(f"{'.'.join((root, *path))}: {what}")
        if not path or not _drop(value, path):
            break
    return kind(), tuple(faults)


def time_text(time_s: float) -> str:
    """A time as the API server writes it."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def broken(rules: Sequence[Rule], value: Resource[Any, Any]) -> list[str]:
    """The messages of the rules that an object breaks, each with its field."""
    return [
        f"{'.'.join(filter(None, (rule.at, rule.field))) or 'metadata.name'}: {rule.message}"
        for rule in rules
        if rule.holds is not None and (one := _at(value, rule.at)) is not None and not rule.holds(one)
    ]


def _at(value: Any, path: str) -> Any:
    """The part of an object at a place of its schema; None where it has none."""
    for name in _attributes(path):
        value = getattr(value, name, None)
    return value


@cache
def _attributes(path: str) -> tuple[str, ...]:
    return tuple(re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key) for key in path.split(".") if key)


def doc(description: str, **constraints: Any) -> Meta:
    """What a field means, for the CRD, and what holds of its values."""
    return Meta(description=description, **constraints)


def name_rule() -> Rule:
    """The rule for the names of objects whose pods get names made of theirs."""
    return Rule(
        "",
        f"size(self.metadata.name) <= {LONGEST_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
        f"the name becomes part of host names: at most {LONGEST_NAME} letters, digits and dashes, "
        "beginning with a letter",
        holds=lambda one: (
            len(one.metadata.name) <= LONGEST_NAME and bool(re.fullmatch(NAME_PATTERN, one.metadata.name))
        ),
    )


def unchanged(path: str) -> str:
    """The CEL that a field is as it was before an update, or was and is left out."""
    new, old = f"self.{path}", f"oldSelf.{path}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def put_rule(root: Schema, rule: Rule) -> None:
    """Writes a rule to its place below a schema."""
    place = root
    for key in filter(None, rule.at.split(".")):
        place = place["properties"][key]
    said = {"rule": rule.cel, "message": rule.message}
    if rule.field:
        said["fieldPath"] = f".{rule.field}"
    place.setdefault("x-kubernetes-validations", []).append(said)


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
            (only,) = (one for one in info.types if not isinstance(one, inspect.NoneType))
            return _of(only, defaults)
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
    for one in info.fields:
        schema = _of(one.type, defaults)
        if defaults and isinstance(one.default, bool | int | str) and one.default != "":
            schema["default"] = one.default
        properties[one.encode_name] = schema
        if _is_required(one.type):
            required.append(one.encode_name)
    found: Schema = {"type": "object", "description": _first_line(info.cls), "properties": properties}
    return found | ({"required": required} if required else {})


def _lengths(info: inspect.StrType | inspect.ListType) -> Schema:
    least, most = _LENGTHS[type(info)]
    found = ((least, info.min_length), (most, info.max_length))
    return {word: value for word, value in found if value is not None}


def _is_required(info: inspect.Type) -> bool:
    found = False
    while isinstance(info, inspect.Metadata):
        found = found or bool((info.extra or {}).get("required"))
        info = info.type
    return found


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]


def _taken_apart(message: str) -> tuple[str, list[str]]:
    """What is wrong, and the keys that lead there; an element of a list stands for the list."""
    match = _PLACE.fullmatch(message)
    if match is None:
        return message, []
    path: list[str] = []
    for key in filter(None, (match["path"] or "").split(".")):
        name, bracket, _ = key.partition("[")
        path.append(name)
        if bracket:
            break
    what = match["what"]
    return (what[:1].lower() + what[1:]).replace("`", ""), path


def _drop(value: Any, path: list[str]) -> bool:
    """Takes out what cannot be read; False when it is not there to be taken out."""
    for key in path[:-1]:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict) or path[-1] not in value:
        return False
    del value[path[-1]]
    return True
