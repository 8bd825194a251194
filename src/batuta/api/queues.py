"""Queues: look at them, make and change them. What many jobs use is counted in another thread."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.asked import QueuePut
from batuta.api.auth import Admin, Viewer
from batuta.api.desk import AtDesk
from batuta.api.picture import Picture
from batuta.api.plain_json import answer
from batuta.api.problems import not_found
from batuta.api.queue_models import Queue, QueueDetail, Queues
from batuta.api.queue_view import find_queue, view_detail, view_queue, view_queues
from batuta.api.quota_changes import Edit
from batuta.api.routes import CHANGES, Limit, QueuePath, problems
from batuta.quota.use import QueueUse
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.short_form import queue_change

router = APIRouter(prefix="/queues", tags=["queues"])


@router.get("", response_model=Queues, responses=problems())
async def list_queues(desk: AtDesk, who: Viewer) -> Response:
    """All queues and cohorts, with what their jobs use of which quota."""
    picture = await desk.look()
    return await anyio.to_thread.run_sync(lambda: answer(view_queues(picture)))


@router.get("/{queue}", response_model=QueueDetail, responses=problems(404))
async def get_queue(desk: AtDesk, who: Viewer, queue: QueuePath, limit: Limit = 100) -> Response:
    """One queue: who waits in it in which order and why, and who has its quota."""
    picture = await desk.look()
    return await anyio.to_thread.run_sync(lambda: answer(view_detail(picture, _find(picture, queue), limit)))


@router.put("/{queue}", response_model=Queue, responses=problems(*CHANGES))
async def put_queue(desk: AtDesk, who: Admin, queue: QueuePath, put: QueuePut) -> Response:
    """Makes a queue in few words, or replaces all that was set about it. `PATCH /quota` can say more."""
    change = queue_change(queue, put.quota, put.cohort, put.weight, held=put.held)
    edit = Edit(lambda quota: merge(quota, change), [one.key for one in change.objects])
    await desk.ask(lambda world: edit.make(world, desk.now_s()))
    picture = await desk.look()
    return await anyio.to_thread.run_sync(lambda: answer(view_queue(picture, _find(picture, queue))))


def _find(picture: Picture, queue: str) -> QueueUse:
    found = find_queue(picture, queue)
    if found is None:
        raise not_found(f"queue {queue}")
    return found
