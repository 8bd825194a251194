"""The dashboard's files, as they were built into the package."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

_ABSENT = """<!doctype html><meta charset="utf-8"><title>Batuta</title>
<h1>Batuta runs</h1>
<p>This installation has no dashboard: it was not built into the package.</p>
<p>In the repository: <code>make web</code>. The API is at <a href="/api/v1/openapi.json">/api/v1</a>.</p>
"""
_OURS = ("/api/", "/metrics", "/healthz", "/readyz", "/login")


class Dashboard(StaticFiles):
    """Files with a hash in their name never change; the page itself is asked for every time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            # A place within the dashboard, not a file: it finds its way by itself.
            if error.status_code != 404 or "." in path.rpartition("/")[2]:
                raise
            response = await super().get_response("index.html", scope)
        is_hashed = path.startswith("assets/")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        return response


def serve_dashboard(app: FastAPI, folder: Path) -> None:
    """What no route answers is a file of the dashboard; or a page says how to build it."""
    dashboard = Dashboard(directory=folder, html=True, check_dir=False)
    not_found = app.router.default

    async def find(scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_file or scope["path"].startswith(_OURS):
            await not_found(scope, receive, send)
        elif (folder / "index.html").is_file():
            await dashboard(scope, receive, send)
        elif scope["path"] == "/":
            await HTMLResponse(_ABSENT)(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    app.router.default = find
