"""Keeps the objects of one kind as the API server has them: lists once, then watches, through all failures.

A watch is resumed from the last version that it showed (bookmarks keep that fresh). Where the server no
longer remembers it, the objects are listed again, and the difference to the `ObjectStore` gives the changes
that were missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import aiohttp
import msgspec

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Gone, Status, Unavailable, error_from
from batuta.backends.kube.client.kinds import DEEPEST, Kind, Stored, WatchEvent, cut_deep, raw_watch_decoder
from batuta.backends.kube.client.transport import Backoff
from batuta.backends.kube.objects import Meta

T = TypeVar("T", bound=Stored)
_log = logging.getLogger(__name__)
_SHORT_S = 1.0
_TOO_NEW = "ResourceVersionTooLarge"


class ChangeType(StrEnum):
    """What became of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(NamedTuple, Generic[T]):
    """One object came, changed or went. A deleted one is shown as it was last seen."""

    did: ChangeType
    object: T
    old: T | None = None  # what it was before, as far as we saw it


def key_of(metadata: Meta) -> str:
    """`namespace/name`, or the name alone of an object that is in no namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


class ObjectStore(Generic[T]):
    """Objects by key. An object that was deleted and made anew is two objects: one goes, one comes."""

    def __init__(self, slim: Callable[[T], T] | None = None) -> None:
        """`slim`: what is kept of an object, beside what was told; it has name, uid and version at least."""
        self._slim = slim
        self._objects: dict[str, T] = {}
        self.objects: Mapping[str, T] = MappingProxyType(self._objects)

    def replace(self, listed: Iterable[T]) -> list[Change[T]]:
        """A list is the whole truth: what is not in it is gone, though no watch event said so."""
        before = dict(self._objects)
        changes: list[Change[T]] = []
        for found in listed:
            old = before.pop(key_of(found.metadata), None)
            if old is None or old.metadata.resource_version != found.metadata.resource_version:
                self._keep(found, old, changes)
        for key, old in before.items():
            del self._objects[key]
            changes.append(Change(ChangeType.DELETED, old, old))
        return changes

    def put(self, found: T, changes: list[Change[T]]) -> None:
        """An object as a watch shows it; one that is older than what we know is dropped."""
        old = self._objects.get(key_of(found.metadata))
        if old is None or newer(found.metadata.resource_version, old.metadata.resource_version):
            self._keep(found, old, changes)

    def drop(self, found: T, changes: list[Change[T]]) -> None:
        key = key_of(found.metadata)
        old = self._objects.get(key)
        # A deletion that we learn of late may be about the predecessor of the object that is there now.
        if old is not None and old.metadata.uid == found.metadata.uid:
            del self._objects[key]
            changes.append(Change(ChangeType.DELETED, found, old))

    def _keep(self, found: T, old: T | None, changes: list[Change[T]]) -> None:
        self._objects[key_of(found.metadata)] = found if self._slim is None else self._slim(found)
        if old is None:
            changes.append(Change(ChangeType.ADDED, found))
        elif old.metadata.uid == found.metadata.uid:
            changes.append(Change(ChangeType.MODIFIED, found, old))
        else:
            changes.append(Change(ChangeType.DELETED, old, old))
            changes.append(Change(ChangeType.ADDED, found))


def newer(version: str, than: str) -> bool:
    """Whether a resource version is later. They are numbers; a server that thinks otherwise is believed."""
    try:
        return int(version) > int(than)
    except ValueError:
        return version != than


OnChanges: TypeAlias = Callable[[Sequence[Change[T]]], None]


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """How long an informer waits for what."""

    last_s: float = 300.0  # about how long one watch lasts; up to twice that, at random, so that not all end together
    silence_s: float = 120.0  # a connection without a byte for so long is dead: bookmarks come about every minute
    first_retry_s: float = 0.2
    longest_retry_s: float = 10.0
    page: int = 1000


DEFAULT_TIMING: Final = WatchTiming()


class Informer(Generic[T]):
    """The objects of a kind, and a call for every batch of changes to them.

    `on` is called on the event loop with all changes that have arrived; while it runs, nothing else does.
    What it raises ends `run`: changes that were not taken in cannot be made good here.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind[T],
        on: OnChanges[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        timing: WatchTiming = DEFAULT_TIMING,
        slim: Callable[[T], T] | None = None,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()  # set once the first list has been told
        self.resource_version = ""
        """The moment that `objects` shows; empty before the first list, and when the next step is a list."""
        self.failure: ApiError | None = None  # why there is no connection just now; None while there is
        self._api = api
        self._on = on
        self._namespace = namespace
        self._selectors = {"labels": labels, "fields": fields}
        self._timing = timing
        self._known = ObjectStore[T](slim)
        self._back_off = Backoff(timing.first_retry_s, timing.longest_retry_s)

    @property
    def objects(self) -> Mapping[str, T]:
        """By `namespace/name`, or by name where the kind has no namespaces. A live view."""
        return self._known.objects

    async def run(self) -> None:
        while True:
            try:
                if not self.resource_version:
                    await self._list()
                await self._watch()
            except Gone as error:
                _log.info("%s: listing again: %s", self.kind, error)
                self.resource_version = ""
                await self._pause(error)
            except ApiError as error:
                if error.has_cause(_TOO_NEW):  # the server was restored from a backup
                    self.resource_version = ""
                if type(self.failure) is not type(error):  # a failure that is met again is not logged again
                    _log.warning("%s: %s; trying again", self.kind, error)
                self.failure = error
                await self._pause(error)

    async def _list(self) -> None:
        listing = await self._api.list(self.kind, self._namespace, page=self._timing.page, **self._selectors)
        changes = self._known.replace(listing.items)
        self.resource_version = listing.resource_version
        self.failure = None
        if changes:
            self._on(changes)
        self.synced.set()

    async def _watch(self) -> None:
        """One connection, until the server ends it or it fails."""
        timing = self._timing
        begun_s, version = time.monotonic(), self.resource_version
        try:
            async with self._api.watch(
                self.kind,
                self._namespace,
                since=version,
                last_s=timing.last_s * (1.0 + random.random()),
                silence_s=timing.silence_s,
                **self._selectors,
            ) as stream:
                self.failure = None
                await self._read(stream)
        finally:
            lasted = time.monotonic() - begun_s >= _SHORT_S
            if lasted and self.failure is None:
                self._back_off.reset()
        if not lasted and self.resource_version == version:
            raise Unavailable(f"watch of {self.kind}: the API server ends it at once")

    async def _read(self, stream: aiohttp.StreamReader) -> None:
        rest = b""
        while piece := await stream.readany():
            whole, newline, tail = piece.rpartition(b"\n")
            if newline:
                self._take(rest + whole)
                rest = tail
            else:
                rest += piece

    def _take(self, lines: bytes) -> None:
        """Decodes all lines that have arrived, keeps the objects, and tells of them in one call."""
        changes: list[Change[T]] = []
        failed: ApiError | None = None
        try:
            events = self.kind.watch_decoder.decode_lines(lines)
            if any(event.type == "ERROR" for event in events):  # a Status may pass for a poor object
                events, failed = self._one_by_one(lines)
        except (msgspec.MsgspecError, RecursionError):
            events, failed = self._one_by_one(lines)
        for event in events:
            self._note(event, changes)
        if events:
            if self._back_off.failures > 1:
                _log.info("%s: in touch with the API server again", self.kind)
            self._back_off.reset()
        if changes:
            self._on(changes)
        if failed is not None:
            raise failed

    def _note(self, event: WatchEvent[T], changes: list[Change[T]]) -> None:
        match event.type:
            case "ADDED" | "MODIFIED":
                self._known.put(event.object, changes)
            case "DELETED":
                self._known.drop(event.object, changes)
        # The version is that of the object, and what a bookmark is for.
        self.resource_version = event.object.metadata.resource_version or self.resource_version

    def _one_by_one(self, lines: bytes) -> tuple[list[WatchEvent[T]], ApiError | None]:
        """The events among lines of which at least one is no object of this kind: an error, or malformed."""
        events: list[WatchEvent[T]] = []
        for line in lines.splitlines():
            try:
                event = raw_watch_decoder.decode(cut_deep(line) if len(line) > DEEPEST else line)
            except msgspec.MsgspecError as error:
                return events, Unavailable(f"watch of {self.kind}: not a line of a watch: {error}")
            if event.type == "ERROR":
                return events, _error_in(event.object)
            found = self._api.malformed.decode(self.kind, event.object, is_gone=event.type == "DELETED")
            if found is not None:
                events.append(WatchEvent(event.type, found))
        return events, None

    async def _pause(self, error: ApiError) -> None:
        await asyncio.sleep(max(self._back_off.next_s(), error.retry_after_s or 0.0))


def _error_in(status: msgspec.Raw) -> ApiError:
    try:
        return error_from(msgspec.json.decode(status, type=Status))
    except msgspec.MsgspecError as error:
        return Unavailable(f"the watch ended with an error that cannot be read: {error}")
