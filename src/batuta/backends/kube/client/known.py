"""The objects of one kind as far as we know them, and what each piece of news changes about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from batuta.backends.kube.client.kinds import Stored
from batuta.backends.kube.objects import Meta

T = TypeVar("T", bound=Stored)


class Did(StrEnum):
    """What became of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(NamedTuple, Generic[T]):
    """One object came, changed or went. A deleted one is shown as it was last seen."""

    did: Did
    object: T
    old: T | None = None
    """What it was before, as far as we saw it."""


def key_of(metadata: Meta) -> str:
    """`namespace/name`, or the name alone of an object that is in no namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


class Known(Generic[T]):
    """Objects by key. An object that was deleted and made anew is two objects: one goes, one comes."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self.objects: Mapping[str, T] = MappingProxyType(self._objects)

    def replace(self, listed: Iterable[T]) -> list[Change[T]]:
        """A list is the whole truth: what is not in it is gone, though nobody told us."""
        before = dict(self._objects)
        changes: list[Change[T]] = []
        for found in listed:
            old = before.pop(key_of(found.metadata), None)
            if old is None or old.metadata.resource_version != found.metadata.resource_version:
                self._keep(found, old, changes)
        for key, old in before.items():
            del self._objects[key]
            changes.append(Change(Did.DELETED, old, old))
        return changes

    def put(self, found: T, changes: list[Change[T]]) -> None:
        """An object as a watch shows it; one that is older than what we know is dropped."""
        old = self._objects.get(key_of(found.metadata))
        if old is None or newer(found.metadata.resource_version, old.metadata.resource_version):
            self._keep(found, old, changes)

    def drop(self, found: T, changes: list[Change[T]]) -> None:
        """An object that a watch says is gone."""
        key = key_of(found.metadata)
        old = self._objects.get(key)
        # A deletion that we learn of late may be about the predecessor of the object that is there now.
        if old is not None and old.metadata.uid == found.metadata.uid:
            del self._objects[key]
            changes.append(Change(Did.DELETED, found, old))

    def _keep(self, found: T, old: T | None, changes: list[Change[T]]) -> None:
        self._objects[key_of(found.metadata)] = found
        if old is None:
            changes.append(Change(Did.ADDED, found))
        elif old.metadata.uid == found.metadata.uid:
            changes.append(Change(Did.MODIFIED, found, old))
        else:
            changes.append(Change(Did.DELETED, old, old))
            changes.append(Change(Did.ADDED, found))


def newer(version: str, than: str) -> bool:
    """Whether a resource version is later. They are numbers; a server that thinks otherwise is believed."""
    try:
        return int(version) > int(than)
    except ValueError:
        return version != than
