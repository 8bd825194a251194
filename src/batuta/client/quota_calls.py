"""Changing quota: files that are applied as a whole, objects that are removed or read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from batuta.client.decoding import decode
from batuta.client.errors import AnswerError
from batuta.client.transport import Transport


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """What became of one object: created, changed, unchanged or removed."""

    kind: str
    name: str
    namespace: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class QuotaChanged:
    """What became of each object, and what one should know about them."""

    objects: tuple[ChangedObject, ...] = ()
    notes: tuple[str, ...] = ()


class QuotaCalls:
    """The part of `Client` that is about who may use how much."""

    _transport: Transport

    def quota_objects(self) -> list[dict[str, Any]]:
        """All that holds now, as Kueue's objects."""
        found = self._transport.json("GET", "/quota")
        objects = found.get("objects") if isinstance(found, dict) else None
        if not isinstance(objects, list):
            raise AnswerError("the server's answer has no list of objects")
        return objects

    def apply_quota(self, files: Sequence[tuple[str, str]], *, dry_run: bool = False) -> QuotaChanged:
        """Applies texts of files, each with its name: all or none. Raises ApiError with all problems."""
        written = [{"name": name, "text": text} for name, text in files]
        # Applied twice is applied once.
        body = {"files": written, "dry_run": dry_run}
        return decode(QuotaChanged, self._transport.json("PATCH", "/quota", json=body, repeatable=True))

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> QuotaChanged:
        """Removes an object; a queue in which jobs run goes when they are done."""
        path = f"/quota/{quote(kind, safe='')}/{quote(name, safe='')}"
        params = {"namespace": namespace} if namespace else {}
        return decode(QuotaChanged, self._transport.json("DELETE", path, params=params))
