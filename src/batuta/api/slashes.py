"""Names with a slash in them: a job of a cluster is called `namespace/name`.

In a path such a slash is written as %2F. The framework undoes that before it looks for a route, and would
take the slash for one between two parts of the path. So it is another character until the route is found.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

_STAND_IN = "\x1f"
"""Not part of any name."""


class Slashes:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            scope = {**scope, "path": _path_of(raw)}
        await self._app(scope, receive, send)


def _path_of(raw: bytes) -> str:
    parts = (unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"?")[0].split(b"/"))
    return "/".join(part.replace("/", _STAND_IN) for part in parts)


def with_slashes(name: object) -> object:
    """A part of a path, as its sender wrote it."""
    return name.replace(_STAND_IN, "/") if isinstance(name, str) else name
