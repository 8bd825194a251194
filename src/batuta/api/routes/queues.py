"""`/queues` and `/quota`: read and change queues and Kueue quota objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Response

from batuta.api.auth import Admin, Viewer
from batuta.api.models import Kind, Queue, QueueDetail, Queues, QuotaChanged, QuotaObjects
from batuta.api.queue_views import find_queue, view_detail, view_queue, view_queues
from batuta.api.request_models import NAME, QueuePut, QuotaPatch
from batuta.api.responses import HttpProblem, json_response, not_found
from batuta.api.routes import CHANGES, Limit, QueuePath, problems
from batuta.api.snapshot import WorldSnapshot
from batuta.api.state import AppState, StateDep
from batuta.api.views import JsonObject, filled
from batuta.apitypes.queues import ChangedObject
from batuta.core import event as ev
from batuta.core.quota import DEFAULT_QUEUE, Quota, effective_quota, rest_of, tell_rest
from batuta.core.world import World
from batuta.quota.usage import QueueUse
from batuta.spec.kueue.change import QuotaChange, dangling_references, find_object, merge, remove
from batuta.spec.kueue.export import quota_objects
from batuta.spec.kueue.files import queue_change, read_quota_texts
from batuta.spec.kueue.objects import CONFIGURATION, ObjectKey
from batuta.spec.problem import InputError

router = APIRouter(prefix="/queues", tags=["queues"])


@router.get("", response_model=Queues, responses=problems())
async def list_queues(state: StateDep, caller: Viewer) -> Response:
    """All queues and cohorts, with what their jobs use of which quota."""
    snapshot = await state.snapshot()
    return await anyio.to_thread.run_sync(lambda: json_response(view_queues(snapshot)))


@router.get("/{queue}", response_model=QueueDetail, responses=problems(404))
async def get_queue(state: StateDep, caller: Viewer, queue: QueuePath, limit: Limit = 100) -> Response:
    """One queue: its waiting workloads in order, each with the reason, and the workloads with quota."""
    snapshot = await state.snapshot()
    return await anyio.to_thread.run_sync(lambda: json_response(view_detail(snapshot, _find(snapshot, queue), limit)))


@router.put("/{queue}", response_model=Queue, responses=problems(*CHANGES))
async def put_queue(state: StateDep, caller: Admin, queue: QueuePath, put: QueuePut) -> Response:
    """Makes a queue in few words, or replaces all that was set about it. `PATCH /quota` can say more."""
    change = queue_change(queue, put.quota, put.cohort, put.weight, held=put.held, max_priority=put.max_priority)
    edit = QuotaEdit(lambda quota: merge(quota, change), [one.key for one in change.objects])
    await state.request(lambda world: edit.make(world, state.now_s()), caller)
    snapshot = await state.snapshot()
    return await anyio.to_thread.run_sync(lambda: json_response(view_queue(snapshot, _find(snapshot, queue))))


def _find(snapshot: WorldSnapshot, queue: str) -> QueueUse:
    found = find_queue(snapshot, queue)
    if found is None:
        raise not_found(f"queue {queue}")
    return found


quota_router = APIRouter(prefix="/quota", tags=["queues"])
_NAMESPACE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)?$"


@quota_router.get("", response_model=QuotaObjects, responses=problems())
async def get_quota(state: StateDep, caller: Viewer) -> Response:
    """All that was said about quota, as objects that can be applied again."""

    def look() -> Response:
        with state.service.reading() as (world, _):
            quota = world.quota
        return json_response({"objects": quota_objects(quota)})

    return await anyio.to_thread.run_sync(look)


@quota_router.patch("", response_model=QuotaChanged, responses=problems(*CHANGES))
async def patch_quota(state: StateDep, caller: Admin, patch: QuotaPatch) -> Response:
    """Applies files; objects that they do not name stay. With a problem, all are told and nothing changes."""
    texts = [(file.name, file.text) for file in patch.files]
    change = await anyio.to_thread.run_sync(read_quota_texts, texts)
    edit = QuotaEdit(lambda quota: merge(quota, change), [one.key for one in change.objects])
    if patch.dry_run:
        await anyio.to_thread.run_sync(_dry_run, state, edit)
    else:
        await state.request(lambda world: edit.make(world, state.now_s()), caller)
    return json_response(
        {
            "objects": edit.summary(change),
            "notes": [*change.notes, *dangling_references(edit.after), *edit.default_queue_notes],
        }
    )


@quota_router.delete("/{kind}/{name}", response_model=QuotaChanged, responses=problems(404, 409, *CHANGES))
async def delete_object(
    state: StateDep,
    caller: Admin,
    kind: Kind,
    name: Annotated[str, Path(pattern=NAME, description="the object's name")],
    namespace: Annotated[str, Query(pattern=_NAMESPACE, description="of a LocalQueue")] = "",
) -> Response:
    """Removes an object. A ClusterQueue in which jobs run starts nothing more, and goes with the last one."""
    key = ObjectKey(kind, name, namespace if kind == "LocalQueue" else "")
    edit = QuotaEdit(lambda quota: _without(quota, key), [key])
    await state.request(lambda world: edit.make(world, state.now_s()), caller)
    notes = await anyio.to_thread.run_sync(_removal_notes, state, key)
    return json_response({"objects": edit.summary(), "notes": [*notes, *edit.default_queue_notes]})


@dataclass(slots=True)
class QuotaEdit:
    """A change of quota in progress: how to change it, and the quota before and after."""

    change: Callable[[Quota], Quota]
    keys: Sequence[ObjectKey]
    before: Quota = field(default_factory=Quota)
    after: Quota = field(default_factory=Quota)
    default_queue_notes: list[str] = field(default_factory=list)  # what the change means for jobs that name no queue

    def make(self, world: World, now_s: float) -> Sequence[ev.Event]:
        """Apply the change to the quota of this moment, in the engine's thread. Raises InputError."""
        self.before = world.quota
        self.after = self.change(world.quota)
        if self.after == self.before:
            return ()
        self.default_queue_notes = _default_queue_notes(world, self.after)
        return (ev.QuotaSet(max(now_s, world.now_s), self.after),)

    def summary(self, change: QuotaChange | None = None) -> list[JsonObject]:
        """Return what became of each object."""
        found = [(key, _outcome(find_object(self.before, key), find_object(self.after, key))) for key in self.keys]
        if change is not None and change.fair_sharing is not None:
            same = self.before.fair_sharing is self.after.fair_sharing
            found.append((ObjectKey(CONFIGURATION, "fairSharing"), "unchanged" if same else "changed"))
        return [filled(ChangedObject, key, change=became) for key, became in found]


def _outcome(before: object, after: object) -> str:
    if after is None:
        return "removed"
    if before is None:
        return "created"
    return "unchanged" if before == after else "changed"


def _default_queue_notes(world: World, after: Quota) -> list[str]:
    """Return notes about the default queue: what it may use now, and whether its jobs use more."""
    holds = effective_quota(after, world.nodes, world.lost)
    rest = rest_of(holds)
    if not rest:
        return []
    ways = {key: holds.way(*key) for key in world.jobs.queues}
    own = [
        placement.size
        for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True)
        if placement is not None
        and (way := ways[job.namespace, job.queue]) is not None
        and way.cluster_queue == DEFAULT_QUEUE
    ]
    notes, left = [tell_rest(holds)], sum(one.left for one in rest)
    if sum(own) > left:
        jobs = "1 job" if len(own) == 1 else f"{len(own)} jobs"
        notes.append(
            f"{jobs} of queue {DEFAULT_QUEUE} had {sum(own)} GPUs; with {left} from now on, jobs shrink, "
            "or stop and wait"
        )
    return notes


def _dry_run(state: AppState, edit: QuotaEdit) -> None:
    with state.service.reading() as (world, _):
        edit.make(world, state.now_s())


def _without(quota: Quota, key: ObjectKey) -> Quota:
    if find_object(quota, key) is None:
        raise not_found(str(key))
    try:
        return remove(quota, [key])
    except InputError as error:
        raise HttpProblem(409, "; ".join(map(str, error.problems))) from None


def _removal_notes(state: AppState, key: ObjectKey) -> list[str]:
    with state.service.reading() as (world, _):
        leaving = key.kind == "ClusterQueue" and key.name in world.quota.leaving
    return [f"{key} starts nothing more, and goes when its last job is done"] if leaving else []
