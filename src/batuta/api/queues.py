"""Queues: look at them, make and change them."""

from __future__ import annotations

from fastapi import APIRouter, Response

from batuta.api.asked import QueuePut
from batuta.api.auth import Admin, Viewer
from batuta.api.cluster_models import Queue, Queues
from batuta.api.desk import AtDesk
from batuta.api.plain_json import answer
from batuta.api.queue_view import view_queues
from batuta.api.routes import CHANGES, QueuePath, problems
from batuta.core import cluster

router = APIRouter(prefix="/queues", tags=["queues"])


@router.get("", response_model=Queues, responses=problems())
async def list_queues(desk: AtDesk, who: Viewer) -> Response:
    """All queues, with what their jobs use."""
    return answer({"queues": view_queues(await desk.look())})


@router.put("/{queue}", response_model=Queue, responses=problems(*CHANGES))
async def put_queue(desk: AtDesk, who: Admin, queue: QueuePath, put: QueuePut) -> Response:
    """Makes a queue, or replaces all that was set about it."""
    wanted = cluster.Queue(queue, tuple(put.quota.items()), put.cohort, put.weight, put.held)
    await desk.ask(desk.operations.set_queue(wanted))
    return answer(next(shown for shown in view_queues(await desk.look()) if shown["name"] == queue))
