"""The verbs of the Kubernetes API: reads return structs, writes take plain data."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from batuta.backends.kube.client.access import Access
from batuta.backends.kube.client.errors import Conflict, Gone, NotFound, Unavailable, Unreadable
from batuta.backends.kube.client.kinds import (
    POD,
    Kind,
    ListMeta,
    MalformedObjects,
    Stored,
    cut_deep,
    raw_list_decoder,
    segment,
)
from batuta.backends.kube.client.transport import DEFAULT_LIMITS, Limits, RateLimit, Transport
from batuta.backends.kube.names import FIELD_MANAGER

T = TypeVar("T", bound=Stored)
List: TypeAlias = builtins.list[T]  # `Api.list` hides the builtin from the annotations below it
Body: TypeAlias = Mapping[str, Any] | Sequence[Any] | msgspec.Struct
_APPLY: Final = "application/apply-patch+yaml"
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """What a server has of one API group."""

    resources: Mapping[str, Set[str]] = field(default_factory=dict)
    """By version, in the server's order: the plural names, with subresources as `pods/binding`."""

    def has(self, version: str, plural: str) -> bool:
        return plural in self.resources.get(version, ())

    def version_of(self, plural: str) -> str:
        """The first version, in the server's order, that has this; empty where none does."""
        return next((version for version, plurals in self.resources.items() if plural in plurals), "")


class Patch(StrEnum):
    """How a patch is meant."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Propagation(StrEnum):
    """What becomes of the objects that belong to a deleted one."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"


def query(**parameters: str | int) -> str:
    """The query of a URL, without the parameters that are empty; nothing when all are."""
    pairs = [f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value != ""]
    return f"?{'&'.join(pairs)}" if pairs else ""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The objects that there were at one moment."""

    items: Sequence[T]
    resource_version: str  # that moment: a watch from here misses nothing


class Api:
    """One API server. An async context manager; for one event loop.

    Every method raises an `ApiError`. Reads, `apply`, `delete`, `update` and merge patches are tried again
    after failures, within their time; what must not happen twice is not.
    """

    def __init__(
        self,
        access: Access,
        limits: Limits = DEFAULT_LIMITS,
        rate: RateLimit | None = None,
        manager: str = FIELD_MANAGER,
    ) -> None:
        self.access = access
        self.transport = Transport(access, limits, rate)
        self.manager = manager  # whose fields they are that this client writes
        self.malformed = MalformedObjects()  # the informer's owner may want to be told of them

    async def __aenter__(self) -> Self:
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.__aexit__(*error)

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return _decoded(kind, await self.transport.request("get", "GET", kind.path(namespace, name)))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "", page: int = 0
    ) -> Listing[T]:
        """All objects of a kind in a namespace (empty: in all), at one moment. `page`: how many at a time.

        A malformed object is left out and named in the log.
        """
        items, meta = await self._page(kind, namespace, labels, fields, page, "")
        while meta.continue_:
            try:
                more, meta = await self._page(kind, namespace, labels, fields, page, meta.continue_)
            except Gone:  # it took longer than the server remembers: all at once, then
                items, meta = await self._page(kind, namespace, labels, fields, 0, "")
            else:
                items.extend(more)
        return Listing(items, meta.resource_version)

    async def _page(
        self, kind: Kind[T], namespace: str, labels: str, fields: str, limit: int, begin: str
    ) -> tuple[List[T], ListMeta]:
        path = kind.path(namespace) + query(
            labelSelector=labels, fieldSelector=fields, limit=limit or "", **{"continue": begin}
        )
        got = await self.transport.request("list", "GET", path, limit_s=self.transport.limits.list_s)
        try:
            page = kind.list_decoder.decode(got)
        except (msgspec.ValidationError, RecursionError) as error:
            one_by_one = raw_list_decoder.decode(cut_deep(got) if isinstance(error, RecursionError) else got)
            return self.malformed.keep_good(kind, one_by_one.items or ()), one_by_one.metadata
        except msgspec.DecodeError as error:
            raise Unavailable(f"the list of {kind} is no JSON: {error}") from error
        return page.items or [], page.metadata

    def watch(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        since: str,
        labels: str = "",
        fields: str = "",
        last_s: float = 300.0,
        silence_s: float | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.StreamReader]:
        """The lines of a watch with bookmarks; `Informer` is what makes sense of them."""
        path = kind.path(namespace) + query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=since,
            labelSelector=labels,
            fieldSelector=fields,
            timeoutSeconds=int(last_s),
        )
        return self.transport.stream("watch", path, silence_s)

    async def logs(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        since: str = "",
        timestamps: bool = False,
        silence_s: float | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """What a container wrote, in pieces as they come.

        `since` is a time, of which the API server takes whole seconds. With `timestamps` each line begins
        with its own. Ends with `Unavailable` after `silence_s` without a byte.
        """
        path = POD.path(namespace, pod, "log") + query(
            container=container,
            follow="true" if follow else "",
            tailLines="" if tail is None else tail,
            sinceTime=since,
            timestamps="true" if timestamps else "",
        )
        async with self.transport.stream("logs", path, silence_s) as stream:
            async for piece in stream.iter_any():
                yield piece

    async def discover(self, group: str) -> ServedGroup:
        """The versions and kinds of an API group (core: the empty one); nothing where the server has no such group."""
        if not group:
            return ServedGroup({"v1": await self._plurals("/api/v1")})
        root = f"/apis/{segment(group)}"
        try:
            found = msgspec.json.decode(await self.transport.request("discover", "GET", root))
            versions = [str(one["version"]) for one in found.get("versions") or ()]
            return ServedGroup({version: await self._plurals(f"{root}/{segment(version)}") for version in versions})
        except NotFound:
            return ServedGroup()

    async def _plurals(self, root: str) -> frozenset[str]:
        found = msgspec.json.decode(await self.transport.request("discover", "GET", root))
        return frozenset(one["name"] for one in found.get("resources") or ())

    async def raw(self, method: str, path: str, body: Body | None = None) -> bytes:
        """Any other request, sent once; `path` is encoded already."""
        encoded = None if body is None else _encode(body)
        return await self.transport.request(method.lower(), method, path, encoded)

    async def create(self, kind: Kind[T], body: Body, namespace: str = "", *, dry_run: bool = False) -> T:
        """A new object. Never tried twice unless the server says that it did not try: `apply` may be."""
        path = kind.path(namespace) + query(fieldManager=self.manager, dryRun="All" if dry_run else "")
        return _decoded(kind, await self.transport.request("create", "POST", path, _encode(body)))

    async def apply(
        self, kind: Kind[T], body: Mapping[str, Any], *, manager: str = "", force: bool = False, subresource: str = ""
    ) -> T:
        """Sees to it that an object has these fields (server-side apply), creating it where it is not there.

        Name and namespace are those of the body. `Conflict.fields` says which fields others own; `force`
        takes them over.
        """
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"], subresource) + query(
            fieldManager=manager or self.manager, force="true" if force else ""
        )
        whole = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        got = await self.transport.request("apply", "PATCH", path, _encode(whole), content_type=_APPLY, again=True)
        return _decoded(kind, got)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Body,
        namespace: str = "",
        *,
        how: Patch = Patch.MERGE,
        subresource: str = "",
    ) -> T:
        """Changes a part of an object. A `metadata.resourceVersion` in the body makes it conditional."""
        path = kind.path(namespace, name, subresource) + query(fieldManager=self.manager)
        got = await self.transport.request(
            "patch", "PATCH", path, _encode(body), content_type=how, again=how is Patch.MERGE
        )
        return _decoded(kind, got)

    async def patch_status(self, kind: Kind[T], name: str, status: Body, namespace: str = "") -> T:
        return await self.patch(kind, name, {"status": status}, namespace, subresource="status")

    async def update(self, kind: Kind[T], name: str, body: Body, namespace: str = "") -> T:
        """Replaces an object; with a `metadata.resourceVersion` only the version that we know."""
        path = kind.path(namespace, name) + query(fieldManager=self.manager)
        return _decoded(kind, await self.transport.request("update", "PUT", path, _encode(body), again=True))

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        propagation: Propagation | None = Propagation.BACKGROUND,
    ) -> None:
        """Deletes an object: the very one with this uid and version, where they are given."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {condition: value for condition, value in conditions.items() if value}:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation is not None:
            options["propagationPolicy"] = str(propagation)
        await self.transport.request("delete", "DELETE", kind.path(namespace, name), _encode(options), again=True)

    async def bind(
        self, namespace: str, pod: str, uid: str, node: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Gives the pod with this uid its node, and these annotations in the same write.

        Doing it twice is as good as once: a pod that is bound as asked for already is no conflict.
        """
        metadata: dict[str, Any] = {"name": pod, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = annotations
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self.transport.request("bind", "POST", POD.path(namespace, pod, "binding"), _encode(body), again=True)
        except Conflict:
            now = await self.get(POD, pod, namespace)
            as_asked = now.metadata.uid == uid and now.spec.node_name == node
            if not as_asked or not (annotations or {}).items() <= now.metadata.annotations.items():
                raise


def _decoded(kind: Kind[T], got: bytes) -> T:
    try:
        return kind.decode(got)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"the {kind.name} that the API server sent is malformed: {error}") from error
