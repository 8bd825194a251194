"""Tokens that change while we run: in a file that somebody else rewrites, or fetched before they expire."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batuta.backends.kube.client.errors import AccessError, Unauthorized

_log = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 1.0
_LEAST_BETWEEN_S: Final = 10.0
"""Fetches follow each other no faster than this, whatever the API server thinks of what they give."""
_MARGIN_S: Final = 300.0


class TokenFile:
    """The token that stands in a file now: a service account's is replaced about once an hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._value = ""
        self._next_look_s = 0.0
        self._look()
        if not self._value:
            raise AccessError(f"there is no token in {path}")

    async def authorization(self) -> str:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._look()
        return self._value

    def reject(self, value: str) -> None:
        self._next_look_s = 0.0

    def _look(self) -> None:
        """Reads the file if it changed. One that cannot be read now leaves us with the token that we had."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                token = self._path.read_text().strip()
                self._value = f"Bearer {token}" if token else self._value
                self._seen = seen
        except OSError as error:
            if not self._value:
                raise AccessError(f"the token in {self._path} cannot be read: {error.strerror}") from error
            _log.warning(
                "the token in %s cannot be read: %s; keeping the last one", self._path, error.strerror
            )


@dataclass(frozen=True, slots=True)
class Grant:
    """What a login gave."""

    authorization: str = ""
    """Empty where it gave a client certificate, which is in the TLS context then."""
    expires_at_s: float | None = None
    """Seconds since the epoch; None: it does not say."""


class Renewed:
    """Credentials that are fetched again shortly before they expire, or when the API server refuses them."""

    def __init__(self, fetch: Callable[[], Awaitable[Grant]]) -> None:
        self._fetch = fetch
        self._grant: Grant | None = None
        self._renew_at_s: float | None = None
        self._refused = False
        self._fetched_at_s = -_LEAST_BETWEEN_S
        self._lock = asyncio.Lock()

    async def authorization(self) -> str:
        if self._due():
            async with self._lock:
                if self._due():
                    await self._renew()
        assert self._grant is not None
        return self._grant.authorization

    def reject(self, value: str) -> None:
        if self._grant is not None and value == self._grant.authorization:
            self._refused = True

    def _due(self) -> bool:
        if self._grant is None:
            return True
        soon = self._renew_at_s is not None and time.time() >= self._renew_at_s
        return (soon or self._refused) and time.monotonic() - self._fetched_at_s >= _LEAST_BETWEEN_S

    async def _renew(self) -> None:
        self._fetched_at_s = time.monotonic()
        try:
            grant = await self._fetch()
        except AccessError as error:
            if self._grant is None or self._refused:
                raise Unauthorized(str(error), status=401, reason="Unauthorized") from error
            _log.warning("%s; keeping the credentials that we have", error)
            return
        self._grant, self._refused = grant, False
        self._renew_at_s = None
        if grant.expires_at_s is not None:
            left_s = max(0.0, grant.expires_at_s - time.time())
            self._renew_at_s = grant.expires_at_s - min(_MARGIN_S, left_s / 5.0)
