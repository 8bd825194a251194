"""Quota as the OpenAPI document has it: files that clients send, objects that they get."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from batuta.api.asked import Asked

Kind = Literal["ResourceFlavor", "ClusterQueue", "LocalQueue", "Cohort", "WorkloadPriorityClass"]
MOST_FILES = 256


class QuotaFile(Asked):
    """A file as it was written: YAML or JSON, Kueue's objects or queues in short form."""

    name: Annotated[str, StringConstraints(max_length=4096)] = "quota.yaml"
    """How problems name it."""
    text: str


class QuotaPatch(Asked):
    """Files that are applied as a whole, or not at all."""

    files: Annotated[list[QuotaFile], Field(min_length=1, max_length=MOST_FILES)]
    dry_run: bool = False
    """Only say what would change."""


class ChangedObject(BaseModel):
    """What became of one object."""

    kind: Kind | Literal["Configuration"]
    name: str
    namespace: str
    change: Literal["created", "changed", "unchanged", "removed"]


class QuotaChanged(BaseModel):
    """What became of each object, and what one should know about them."""

    objects: list[ChangedObject]
    notes: list[str]


class QuotaObjects(BaseModel):
    """All that holds now, as Kueue's objects (v1beta2)."""

    objects: list[dict[str, Any]]
