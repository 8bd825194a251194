"""Kinds of objects: their paths in the API, and the structs that they are decoded into."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from batuta.backends.kube.objects import Batch, Meta, Node, NodeResourceTopology, Pod, PodGroup, PriorityClass

Item = TypeVar("Item")
"""An object, or its JSON where objects are decoded one by one: one of them is malformed, or a Status."""
_log = logging.getLogger(__name__)
_MOST_REMEMBERED = 10_000
_LONGEST_NAME = 320


class Stored(Protocol):
    """An object with a name, a uid and a version: what every kind has."""

    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=Stored)


class ListMeta(msgspec.Struct, rename="camel"):
    """Which moment a list shows, and where its next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Envelope(msgspec.Struct, Generic[Item]):
    """A list as the API server sends it."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Item] | None = None


class WatchEvent(msgspec.Struct, Generic[Item]):
    """One line of a watch."""

    type: str
    object: Item


class ConfigMap(msgspec.Struct, kw_only=True):
    """Texts by name."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    data: dict[str, str] = {}


class Secret(msgspec.Struct, kw_only=True):
    """Bytes by name."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    data: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Secret({self.metadata.name}: {', '.join(sorted(self.data))})"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of object, and the type that it is decoded into."""

    group: str  # empty for the core group
    version: str
    plural: str
    name: str
    type: type[T]
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of all in a namespace, or of all."""
        path = f"{self.root}/{self.plural}"
        if namespace and self.namespaced:
            path = f"{self.root}/namespaces/{segment(namespace)}/{self.plural}"
        if name:
            path = f"{path}/{segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    def decode(self, json: bytes | msgspec.Raw) -> T:
        """One object. A null is as good as nothing, as it is for the API server: zero times come as null."""
        try:
            return self.decoder.decode(json)
        except msgspec.ValidationError:
            return msgspec.convert(_without_nulls(msgspec.json.decode(json)), self.type)

    @cached_property
    def list_decoder(self) -> msgspec.json.Decoder[Envelope[T]]:
        return msgspec.json.Decoder(Envelope[self.type])  # type: ignore[name-defined]

    @cached_property
    def watch_decoder(self) -> msgspec.json.Decoder[WatchEvent[T]]:
        return msgspec.json.Decoder(WatchEvent[self.type])  # type: ignore[name-defined]


def segment(text: str) -> str:
    """One segment of a path: a name from outside never reaches into the next."""
    if text.isascii() and text.replace("-", "").isalnum():
        return text
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


raw_list_decoder: Final = msgspec.json.Decoder(Envelope[msgspec.Raw])
raw_watch_decoder: Final = msgspec.json.Decoder(WatchEvent[msgspec.Raw])

POD: Final = Kind("", "v1", "pods", "Pod", Pod)
NODE: Final = Kind("", "v1", "nodes", "Node", Node, namespaced=False)
NAMESPACE: Final = Kind("", "v1", "namespaces", "Namespace", Batch, namespaced=False)
SERVICE: Final = Kind("", "v1", "services", "Service", Batch)
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRET: Final = Kind("", "v1", "secrets", "Secret", Secret)
EVENT: Final = Kind("events.k8s.io", "v1", "events", "Event", Batch)
JOB: Final = Kind("batch", "v1", "jobs", "Job", Batch)
JOB_SET: Final = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", Batch)
MPI_JOB: Final = Kind("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", Batch)
POD_GROUP: Final = Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", PodGroup)
PRIORITY_CLASS: Final = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", PriorityClass, namespaced=False
)
NODE_TOPOLOGY: Final = Kind(
    "topology.node.k8s.io",
    "v1alpha2",
    "noderesourcetopologies",
    "NodeResourceTopology",
    NodeResourceTopology,
    namespaced=False,
)


class _Identity(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


DEEPEST: Final = 128
"""Levels of an object that are looked at where it is too deep for a decoder, which recurses."""
_TOO_DEEP: Final = b'"\\u0000 deeper than Batuta reads"'
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def cut_deep(json: bytes | msgspec.Raw) -> bytes:
    """The same JSON, with a mark in the place of every list and object that is deeper than `DEEPEST`."""
    raw, depth, kept, parts = bytes(json), 0, 0, list[bytes]()
    for token in _TOKENS.finditer(raw):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                if depth == DEEPEST + 1:
                    parts += [raw[kept : token.start()], _TOO_DEEP]
            case b"]" | b"}":
                depth -= 1
                if depth == DEEPEST:
                    kept = token.end()
    return b"".join([*parts, raw[kept:]]) if depth <= DEEPEST else b"".join(parts)


OnMalformed: TypeAlias = Callable[[Kind[Any], Meta, str, bool], None]
"""Told of each object that cannot be decoded, why, and whether it is gone; whenever a list or a watch shows it."""


class MalformedObjects:
    """Decodes objects one by one; those that cannot be decoded are left out, and told or logged once each."""

    def __init__(self, on_malformed: OnMalformed | None = None) -> None:
        self._told: set[tuple[str, str]] = set()
        self.on_malformed = on_malformed

    def keep_good(self, kind: Kind[T], raws: Iterable[msgspec.Raw]) -> list[T]:
        return [found for raw in raws if (found := self.decode(kind, raw)) is not None]

    def decode(self, kind: Kind[T], raw: msgspec.Raw, *, is_gone: bool = False) -> T | None:
        try:
            if _TOO_DEEP in bytes(raw):
                raise msgspec.DecodeError(f"it is nested more than {DEEPEST} levels deep")
            return kind.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            metadata = _metadata_in(raw)
            if self.on_malformed is not None:
                self.on_malformed(kind, metadata, str(error), is_gone)
            else:
                self._tell(kind, metadata, error)
            return None

    def _tell(self, kind: Kind[Any], metadata: Meta, error: Exception) -> None:
        name = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        who = name[:_LONGEST_NAME] or "without a readable name"
        if (str(kind), who) not in self._told and len(self._told) < _MOST_REMEMBERED:
            self._told.add((str(kind), who))
            _log.warning("%s %s is malformed and left out: %s", kind, who, error)


def _metadata_in(raw: msgspec.Raw) -> Meta:
    """What can be read of an object's metadata: its name, if nothing else."""
    with suppress(msgspec.MsgspecError, RecursionError):
        found = msgspec.json.decode(cut_deep(raw), type=_Named).metadata
        return Meta(name=found.name, namespace=found.namespace, uid=found.uid)
    return Meta()
