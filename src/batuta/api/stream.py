"""The stream of server-sent events for one reader, at the reader's own pace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi.sse import format_sse_event

from batuta.api.event_text import Told
from batuta.api.feed import Feed
from batuta.store.journal_writer import JournalWriter

KEEP_ALIVE_S = 15.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a reader wants; empty: all."""

    job: str = ""
    types: frozenset[str] = frozenset()

    def takes(self, told: Told) -> bool:
        return (not self.job or self.job in told.jobs) and (not self.types or told.type in self.types)


async def stream(
    feed: Feed, journal: JournalWriter, after: int | None, wanted: Wanted, *, follow: bool = True
) -> AsyncIterator[bytes]:
    """Frames from event `after` on, or from now on; ends when the server does, or all is told."""
    at = feed.last_seq if after is None else after
    if at > journal.durable_seq or (at < feed.last_seq and at + 1 < journal.first_seq):
        # Other numbers than the reader knows: pruned, or another journal.
        at = feed.last_seq
        yield format_sse_event(event="reset", data_str=f'{{"seq":{at}}}', id=str(at))
    else:
        yield format_sse_event(comment="hello", id=str(at))
    told_up_to, target = at, journal.durable_seq
    while not feed.closed.is_set():
        page = await feed.after(at)
        if page and page[0].seq > at + 1:
            at = told_up_to = feed.last_seq
            yield format_sse_event(event="reset", data_str=f'{{"seq":{at}}}', id=str(at))
            continue
        frames = [told.frame for told in page if wanted.takes(told)]
        if page:
            at = page[-1].seq
            if frames:
                told_up_to = at
                yield b"".join(frames)
        elif not follow and at >= target:
            return
        elif not await feed.wait(KEEP_ALIVE_S):
            # With its place, so that a reader of few events does not go through all of them again.
            yield format_sse_event(comment="keep-alive", id=str(at) if at > told_up_to else None)
            told_up_to = at
