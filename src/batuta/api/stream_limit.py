"""A limit on streams that stay open: of events, and of logs that are followed.

Each takes a connection, a task and up to two chunks of memory for as long as its client likes. Without a limit
a program that opens streams and forgets them takes the server's descriptors and memory from all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batuta.api.responses import LATER, HttpProblem

MAX_STREAMS = 1_000
MAX_SHARE = 0.75  # of all streams, for the tokens of one user: others are not shut out


class StreamLimit:
    """Counts the open streams by user. Used in the event loop."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self.most = most
        self.most_of_user = max(1, int(most * MAX_SHARE))
        self._open = Counter[str]()

    @property
    def open(self) -> int:
        return self._open.total()

    def respond(
        self, user: str, pieces: AsyncIterator[bytes], media_type: str, headers: dict[str, str]
    ) -> StreamingResponse:
        """Return a stream that counts while it is open. Raises HttpProblem where there are too many."""
        if self.open >= self.most:
            raise HttpProblem(503, f"{self.most} streams are open, and this server serves no more", headers=LATER)
        if self._open[user] >= self.most_of_user:
            detail = f"{user} has {self.most_of_user} open streams, and may have no more: close some"
            raise HttpProblem(429, detail, headers=LATER)
        return _CountedStream(self._open, user, pieces, media_type, headers)


class _CountedStream(StreamingResponse):
    def __init__(
        self,
        counts: Counter[str],
        user: str,
        pieces: AsyncIterator[bytes],
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._counts, self._user = counts, user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Counted here and not in the route, so that whatever ends the request also ends the count.
        self._counts[self._user] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._counts[self._user] -= 1
            if not self._counts[self._user]:
                del self._counts[self._user]
