"""Changing quota: files are applied as a whole, objects removed, and all of it can be read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Response

from batuta.api.asked import NAME
from batuta.api.auth import Admin, Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, not_found
from batuta.api.quota_models import Kind, QuotaChanged, QuotaObjects, QuotaPatch
from batuta.api.routes import CHANGES, problems
from batuta.core import event as ev
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.spec.kueue.change import QuotaChange, find_object, loose_ends, merge, remove
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.kueue.objects import CONFIGURATION, Key
from batuta.spec.kueue.writing import quota_objects
from batuta.spec.problem import InputError

router = APIRouter(prefix="/quota", tags=["queues"])
_NAMESPACE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)?$"


@router.get("", response_model=QuotaObjects, responses=problems())
async def get_quota(desk: AtDesk, who: Viewer) -> Response:
    """All that was said about quota, as objects that can be applied again."""

    def look() -> Response:
        with desk.service.reading() as (world, _):
            quota = world.quota
        return answer({"objects": quota_objects(quota)})

    return await anyio.to_thread.run_sync(look)


@router.patch("", response_model=QuotaChanged, responses=problems(*CHANGES))
async def patch_quota(desk: AtDesk, who: Admin, patch: QuotaPatch) -> Response:
    """Applies files; objects that they do not name stay. With a problem, all are told and nothing changes."""
    texts = [(file.name, file.text) for file in patch.files]
    change = await anyio.to_thread.run_sync(read_quota_texts, texts)
    edit = Edit(lambda quota: merge(quota, change), [one.key for one in change.objects])
    if patch.dry_run:
        await anyio.to_thread.run_sync(_rehearse, desk, edit)
    else:
        await desk.ask(lambda world: edit.make(world, desk.now_s()))
    return answer({"objects": edit.told(change), "notes": [*change.notes, *loose_ends(edit.after)]})


@router.delete("/{kind}/{name}", response_model=QuotaChanged, responses=problems(404, 409, *CHANGES))
async def delete_object(
    desk: AtDesk,
    who: Admin,
    kind: Kind,
    name: Annotated[str, Path(pattern=NAME, description="the object's name")],
    namespace: Annotated[str, Query(pattern=_NAMESPACE, description="of a LocalQueue")] = "",
) -> Response:
    """Removes an object. A ClusterQueue in which jobs run starts nothing more, and goes with the last one."""
    key = Key(kind, name, namespace if kind == "LocalQueue" else "")
    edit = Edit(lambda quota: _without(quota, key), [key])
    await desk.ask(lambda world: edit.make(world, desk.now_s()))
    return answer({"objects": edit.told(), "notes": await anyio.to_thread.run_sync(_farewell, desk, key)})


@dataclass(slots=True)
class Edit:
    """A change on its way to the engine: how quota becomes another one, and what it was and became."""

    change: Callable[[Quota], Quota]
    keys: Sequence[Key]
    before: Quota = field(default_factory=Quota)
    after: Quota = field(default_factory=Quota)

    def make(self, world: World, now_s: float) -> Sequence[ev.Event]:
        """Runs in the engine's thread, on the quota of that moment. Raises what does not go with it."""
        self.before = world.quota
        self.after = self.change(world.quota)
        if self.after == self.before:
            return ()
        return (ev.QuotaSet(max(now_s, world.now_s), self.after),)

    def told(self, change: QuotaChange | None = None) -> list[dict[str, str]]:
        """What became of each object."""
        found = [
            (key, _became(find_object(self.before, key), find_object(self.after, key))) for key in self.keys
        ]
        if change is not None and change.fair_sharing is not None:
            same = self.before.fair_sharing is self.after.fair_sharing
            found.append((Key(CONFIGURATION, "fairSharing"), "unchanged" if same else "changed"))
        return [
            {"kind": key.kind, "name": key.name, "namespace": key.namespace, "change": became}
            for key, became in found
        ]


def _became(before: object, after: object) -> str:
    if after is None:
        return "removed"
    if before is None:
        return "created"
    return "unchanged" if before == after else "changed"


def _rehearse(desk: Desk, edit: Edit) -> None:
    with desk.service.reading() as (world, _):
        edit.make(world, desk.now_s())


def _without(quota: Quota, key: Key) -> Quota:
    if find_object(quota, key) is None:
        raise not_found(str(key))
    try:
        return remove(quota, [key])
    except InputError as error:
        raise Refusal(409, "; ".join(map(str, error.problems))) from None


def _farewell(desk: Desk, key: Key) -> list[str]:
    with desk.service.reading() as (world, _):
        leaving = key.kind == "ClusterQueue" and key.name in world.quota.leaving
    return [f"{key} starts nothing more, and goes when its last job is done"] if leaving else []
