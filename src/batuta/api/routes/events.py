"""`/events`: the journal as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Response
from fastapi.sse import format_sse_event

from batuta.api.auth import Admin, Viewer
from batuta.api.event_feed import EventFeed, EventFilter
from batuta.api.event_text import public_event, with_seq
from batuta.api.models import AuditList
from batuta.api.request_models import JOB_ID
from batuta.api.responses import bad_input, json_response
from batuta.api.routes import Seq, TimeS, problems
from batuta.api.state import StateDep
from batuta.store.codec import EVENT_TYPES
from batuta.store.journal import JournalWriter

KEEP_ALIVE_S = 15.0


async def stream_events(
    feed: EventFeed, journal: JournalWriter, after: int | None, wanted: EventFilter, *, follow: bool = True
) -> AsyncIterator[bytes]:
    """Yield frames after event `after`, or from now on; without `follow`, up to the newest event."""
    at = feed.last_seq if after is None else after
    if at > journal.durable_seq or (at < feed.last_seq and at + 1 < journal.first_seq):
        # The client has other sequence numbers: events were pruned, or it is another journal.
        at = feed.last_seq
        yield format_sse_event(event="reset", data_str=f'{{"seq":{at}}}', id=str(at))
    else:
        yield format_sse_event(comment="hello", id=str(at))
    sent_up_to, target = at, journal.durable_seq
    while not feed.closed.is_set():
        chunk = await feed.chunk(at, wanted)
        if chunk is not None and chunk.first > at + 1:
            # The events in between were pruned while this client read slowly.
            at = sent_up_to = feed.last_seq
            yield format_sse_event(event="reset", data_str=f'{{"seq":{at}}}', id=str(at))
        elif chunk is not None:
            at = chunk.last
            if chunk.frames:
                sent_up_to = at
                yield chunk.frames
        elif not follow and at >= target:
            return
        elif not await feed.wait(KEEP_ALIVE_S):
            # With its id, so that a client that resumes does not read all events again.
            yield format_sse_event(comment="keep-alive", id=str(at) if at > sent_up_to else None)
            sent_up_to = at


router = APIRouter(tags=["events"])
_MAX_AUDITED = 10_000


@router.get("/audit", response_model=AuditList, responses=problems())
async def list_actions(
    state: StateDep,
    caller: Admin,
    user: Annotated[str, Query(max_length=256)] | None = None,
    job: Annotated[str, Query(pattern=JOB_ID)] | None = None,
    since_s: TimeS | None = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_AUDITED)] = 1_000,
) -> Response:
    """What users did, the newest first: of one user, about one job, from a time on."""
    look = partial(state.journal.texts_by_users, user, job, since_s, limit)
    found = await anyio.to_thread.run_sync(look)
    return json_response({"events": [with_seq(public_event(entry)) for entry in found]})


_FRAME = {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "event", "data")}}
_DESCRIPTION = "a stream of events; `id` is the number in the journal"
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": _DESCRIPTION, "content": {"text/event-stream": {"schema": _FRAME}}}
}


@router.get("/events", response_class=Response, responses={**_STREAM, **problems(429, 503)})
async def follow_events(
    state: StateDep,
    caller: Viewer,
    after: Seq | None = None,
    job: Annotated[str, Query(pattern=JOB_ID)] | None = None,
    types: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006  (FastAPI copies it)
    follow: Annotated[bool, Query(description="false: ends when all that has happened is told")] = True,
    last_event_id: Annotated[str, Header(max_length=32)] = "",
) -> Response:
    """Events from now on, or after a number (`Last-Event-ID` or `after`). `types` may be joined by commas."""
    wanted = frozenset(name for text in types for name in text.split(",") if name)
    if unknown := sorted(wanted - EVENT_TYPES.keys()):
        raise bad_input(f"unknown event types: {', '.join(unknown)[:200]}", f"known: {', '.join(EVENT_TYPES)}")
    if last_event_id.isascii() and last_event_id.isdecimal():
        after = int(last_event_id)
    frames = stream_events(state.feed, state.journal, after, EventFilter(job or "", wanted), follow=follow)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return state.streams.respond(caller.user, frames, "text/event-stream", headers)
