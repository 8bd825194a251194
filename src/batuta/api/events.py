"""What happens, as it happens: server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from starlette.responses import StreamingResponse

from batuta.api.asked import JOB_ID
from batuta.api.auth import Viewer
from batuta.api.desk import AtDesk
from batuta.api.problems import bad_input
from batuta.api.routes import Seq, problems
from batuta.api.stream import Wanted, stream
from batuta.store.codec import EVENT_TYPES

router = APIRouter(tags=["events"])
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "a stream of events; `id` is the number in the journal",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
                }
            }
        },
    }
}


@router.get("/events", response_class=Response, responses={**_STREAM, **problems()})
async def follow_events(
    desk: AtDesk,
    who: Viewer,
    after: Seq | None = None,
    job: Annotated[str, Query(pattern=JOB_ID)] | None = None,
    types: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006  (FastAPI copies it)
    follow: Annotated[bool, Query(description="false: ends when all that has happened is told")] = True,
    last_event_id: Annotated[str, Header(max_length=32)] = "",
) -> Response:
    """Events from now on, or after a number (`Last-Event-ID` or `after`). `types` may be joined by commas."""
    wanted = frozenset(name for text in types for name in text.split(",") if name)
    if unknown := sorted(wanted - EVENT_TYPES.keys()):
        raise bad_input(
            f"unknown event types: {', '.join(unknown)[:200]}", f"known: {', '.join(EVENT_TYPES)}"
        )
    if last_event_id.isascii() and last_event_id.isdecimal():
        after = int(last_event_id)
    frames = stream(desk.feed, desk.journal, after, Wanted(job or "", wanted), follow=follow)
    return StreamingResponse(
        frames,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
