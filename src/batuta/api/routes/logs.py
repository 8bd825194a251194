"""`/jobs/{job}/logs`: the log of a replica, whole, by range or tail, followed or searched."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query, Response
from starlette.responses import StreamingResponse

from batuta.api.auth import Viewer
from batuta.api.models import LogSearch
from batuta.api.responses import HttpProblem, json_response, not_found
from batuta.api.routes import JobIdPath, problems
from batuta.api.routes.jobs import find_readable_job
from batuta.api.state import AppState, StateDep
from batuta.api.views import JsonObject
from batuta.backends.local.logs import ReplicaLog, Span

router = APIRouter(prefix="/jobs", tags=["logs"])
MEDIA_TYPE = "text/plain; charset=utf-8"
OFFSET = "Batuta-Log-Offset"  # where the first byte of an answer lies, counted from the first one that was ever logged
RANKS = "Batuta-Log-Ranks"  # how many ranks have logged something so far
_POLL_S = 0.15
_PIECE_BYTES = 256 << 10
_LONGEST_LINE = 10_000  # characters of a line that is shown as found
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_NOT_ALL_RUN = ("PENDING", "SETTING_UP", "RESIZING", "PREEMPTED")


@router.get(
    "/{job}/logs",
    response_class=Response,
    responses={
        200: {"description": "the log", **_TEXT},
        206: {"description": "a part of it", **_TEXT},
        **problems(404, 416, 429, 501, 503),
    },
)
async def get_logs(
    state: StateDep,
    caller: Viewer,
    job: JobIdPath,
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    tail: Annotated[int, Query(ge=0, le=1_000_000, description="only the last lines")] | None = None,
    follow: Annotated[bool, Query(description="go on as it is written, until the job is over")] = False,
    range_: Annotated[str, Header(alias="Range", max_length=100)] = "",
) -> Response:
    """The log of one replica. Offsets stay valid when it is rotated; what is no longer there is skipped."""
    shown = await find_readable_job(state, caller, job)
    known = await _check_rank(state, shown, rank)
    log = ReplicaLog(state.deps.files.log_path(job, rank))
    span = await anyio.to_thread.run_sync(log.span)
    asked = _RANGE.fullmatch(range_.strip().lower())
    if asked and asked.groups() != ("", "") and tail is None:
        begin, end = _asked_range(asked, span)
    else:
        asked = None
        begin = span.begin if tail is None else await anyio.to_thread.run_sync(log.tail_offset, tail)
        end = span.end
    headers = {OFFSET: str(begin), RANKS: str(max(known, default=-1) + 1), "Accept-Ranges": "bytes"}
    if follow:
        return state.streams.respond(caller.user, _follow(state, log, job, begin), MEDIA_TYPE, headers)
    if asked is not None:
        if begin >= end:
            headers["Content-Range"] = f"bytes */{span.end}"
            raise HttpProblem(416, f"the log has the bytes {span.begin} to {span.end}", headers=headers)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{span.end}"
    status = 200 if asked is None else 206
    return StreamingResponse(_pieces(log, begin, end), status, headers, MEDIA_TYPE)


@router.get("/{job}/logs/search", response_model=LogSearch, responses=problems(404, 501))
async def search_logs(
    state: StateDep,
    caller: Viewer,
    job: JobIdPath,
    text: Annotated[str, Query(min_length=1, max_length=500, description="as it stands in a line")],
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=5_000, description="only the last lines that match")] = 500,
) -> Response:
    """The lines of one replica's log in which a text stands, in capital letters or small ones."""
    await _check_rank(state, await find_readable_job(state, caller, job), rank)
    log = ReplicaLog(state.deps.files.log_path(job, rank))
    return json_response(await anyio.to_thread.run_sync(_search, log, text, limit, limiter=state.slow_questions))


def _search(log: ReplicaLog, text: str, limit: int) -> dict[str, Any]:
    sought, span = text.casefold(), log.span()
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    total, number = 0, 0
    for line in _lines(log, span):
        number += 1
        if sought in line.casefold():
            total += 1
            found.append({"line": number, "text": line[:_LONGEST_LINE]})
    return {"matches": list(found), "total": total, "lines": number}


def _lines(log: ReplicaLog, span: Span) -> Iterator[str]:
    rest = b""
    for piece in log.pieces(span.begin, span.end):
        *lines, rest = (rest + piece.data).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
        if len(rest) > _PIECE_BYTES:
            # A line without an end is cut, so that it does not fill the memory.
            yield rest.decode("utf-8", "replace")
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace")


async def _check_rank(state: AppState, job: JsonObject, rank: int) -> list[int]:
    """The ranks that have logged something.

    A job that has not started has no logs yet, which is no mistake for the ranks that it may have.
    """
    known = await anyio.to_thread.run_sync(state.deps.files.ranks, job["id"])
    if rank in known:
        return known
    # Replicas of a start do not all open their logs at once.
    is_starting = not known or job["state"] in _NOT_ALL_RUN
    cpu, gpus = job["cpu"], job["gpus"]
    ranks = gpus["max"] // gpus["per_node"] if cpu is None else cpu["replicas"]
    if not is_starting or rank >= ranks:
        raise not_found(f"rank {rank} of job {job['id']}; known: {', '.join(map(str, known)) or 'none'}")
    return known


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


async def _follow(state: AppState, log: ReplicaLog, job: str, offset: int) -> AsyncIterator[bytes]:
    """Bytes as they are written. No thread is held while there are none."""
    while not state.feed.closed.is_set():
        # Asked before reading: what was written before the end is then read.
        over = job not in (await state.snapshot()).keys
        piece = await anyio.to_thread.run_sync(log.read, offset, _PIECE_BYTES)
        if piece.data:
            yield piece.data
            offset = piece.end
        elif over:
            return
        else:
            await anyio.sleep(_POLL_S)
