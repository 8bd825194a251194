"""Logs of replicas: all of it, the tail, a range of bytes, or as they are written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query, Response
from starlette.responses import StreamingResponse

from batuta.api.auth import Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.jobs import find
from batuta.api.problems import Refusal, not_found
from batuta.api.routes import JobIdPath, problems
from batuta.api.views import Shown
from batuta.backends.local.logs import ReplicaLog, Span

router = APIRouter(prefix="/jobs", tags=["logs"])
MEDIA_TYPE = "text/plain; charset=utf-8"
OFFSET = "Batuta-Log-Offset"
"""Where the first byte of an answer lies, counted from the first one that was ever logged."""
_POLL_S = 0.15
_PIECE_BYTES = 256 << 10
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_NOT_ALL_RUN = ("PENDING", "SETTING_UP", "RESIZING", "PREEMPTED")


@router.get(
    "/{job}/logs",
    response_class=Response,
    responses={
        200: {"description": "the log", **_TEXT},
        206: {"description": "a part of it", **_TEXT},
        **problems(404, 416, 501),
    },
)
async def get_logs(
    desk: AtDesk,
    who: Viewer,
    job: JobIdPath,
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    tail: Annotated[int, Query(ge=0, le=1_000_000, description="only the last lines")] | None = None,
    follow: Annotated[bool, Query(description="go on as it is written, until the job is over")] = False,
    range_: Annotated[str, Header(alias="Range", max_length=100)] = "",
) -> Response:
    """The log of one replica. Offsets stay valid when it is rotated; what is no longer there is skipped."""
    shown = await find(desk, job)
    await _check_rank(desk, shown, rank)
    log = ReplicaLog(desk.parts.files.log_path(job, rank))
    span = await anyio.to_thread.run_sync(log.span)
    asked = _RANGE.fullmatch(range_.strip().lower())
    if asked and asked.groups() != ("", "") and tail is None:
        begin, end = _asked_range(asked, span)
    else:
        asked = None
        begin = span.begin if tail is None else await anyio.to_thread.run_sync(log.tail_offset, tail)
        end = span.end
    headers = {OFFSET: str(begin), "Accept-Ranges": "bytes"}
    if follow:
        pieces = _follow(desk, log, job, begin)
        return StreamingResponse(pieces, media_type=MEDIA_TYPE, headers=headers)
    if asked is not None:
        if begin >= end:
            headers["Content-Range"] = f"bytes */{span.end}"
            raise Refusal(416, f"the log has the bytes {span.begin} to {span.end}", headers=headers)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{span.end}"
    status = 200 if asked is None else 206
    return StreamingResponse(_pieces(log, begin, end), status, headers, MEDIA_TYPE)


async def _check_rank(desk: Desk, job: Shown, rank: int) -> None:
    """A job that has not started has no logs yet, which is no mistake for the ranks that it may have."""
    known = await anyio.to_thread.run_sync(desk.parts.files.ranks, job["id"])
    if rank in known:
        return
    # Replicas of a start do not all open their logs at once.
    is_starting = not known or job["state"] in _NOT_ALL_RUN
    if not is_starting or rank >= job["gpus"]["max"] // job["gpus"]["per_node"]:
        raise not_found(f"rank {rank} of job {job['id']}; known: {', '.join(map(str, known)) or 'none'}")


def _asked_range(asked: re.Match[str], span: Span) -> tuple[int, int]:
    first, last = asked.groups()
    if not first:
        return max(span.begin, span.end - int(last)), span.end
    return max(span.begin, int(first)), min(span.end, int(last) + 1) if last else span.end


async def _pieces(log: ReplicaLog, begin: int, end: int) -> AsyncIterator[bytes]:
    while begin < end:
        piece = await anyio.to_thread.run_sync(log.read, begin, min(_PIECE_BYTES, end - begin))
        if not piece.data or piece.begin >= end:
            return
        yield piece.data[: end - piece.begin]
        begin = piece.end


async def _follow(desk: Desk, log: ReplicaLog, job: str, offset: int) -> AsyncIterator[bytes]:
    """Bytes as they are written. No thread is held while there are none."""
    while not desk.feed.closed.is_set():
        # Asked before reading: what was written before the end is then read.
        over = job not in (await desk.look()).rows
        piece = await anyio.to_thread.run_sync(log.read, offset, _PIECE_BYTES)
        if piece.data:
            yield piece.data
            offset = piece.end
        elif over:
            return
        else:
            await anyio.sleep(_POLL_S)
