"""The FastAPI application: routers, middleware, OpenAPI document, dashboard and HTTP server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from batuta.api.auth import SAFE_METHODS
from batuta.api.connection_guard import ConnectionGuard
from batuta.api.dependencies import ServerDependencies
from batuta.api.http_server import HttpServer
from batuta.api.middleware import EncodedSlashMiddleware, SecurityMiddleware
from batuta.api.models import ProblemDocument
from batuta.api.request_models import Submit
from batuta.api.responses import HttpProblem, install_error_handlers
from batuta.api.routes import (
    cluster,
    doctor,
    events,
    forecasts,
    jobs,
    logs,
    metrics,
    nodes,
    policy,
    queues,
    submit,
    tokens,
)
from batuta.api.state import AppState, end_streams
from batuta.apitypes.server_proof import PATH as PROOF_PATH

PREFIX = "/api/v1"
_ROUTERS = (
    *(submit.router, jobs.router, logs.router, cluster.router, nodes.router, queues.router),
    *(queues.quota_router, policy.router, policy.shadow_router, forecasts.router, cluster.report_router),
    *(doctor.router, events.router, tokens.router, tokens.session_router),
)
_HARMLESS_ROUTERS = (policy.shadow_router, forecasts.router, tokens.session_router)
"""Whatever the method, they change nothing that a job would notice: a read-only server has them, too."""
_PUBLIC = frozenset(("/healthz", "/readyz", f"{PREFIX}{PROOF_PATH}"))
_NOT_BUILT_PAGE = """<!doctype html><meta charset="utf-8"><title>Batuta</title>
<h1>Batuta runs</h1>
<p>This installation has no dashboard: it was not built into the package.</p>
<p>In the repository: <code>make web</code>. The API is at <a href="/api/v1/openapi.json">/api/v1</a>.</p>
"""
_API_PATHS = ("/api/", "/metrics", "/healthz", "/readyz", "/login")


def create_app(deps: ServerDependencies) -> FastAPI:
    state = AppState(deps)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with state.open():
            yield

    app = FastAPI(
        title="Batuta",
        version=deps.version or "0",
        openapi_url=f"{PREFIX}/openapi.json",
        # Both load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.batuta = state
    # Each directly in the app: routes are matched once more for every level between.
    open_routers = _HARMLESS_ROUTERS if deps.policy_keeper is None else (*_HARMLESS_ROUTERS, policy.router)
    for router in _ROUTERS:
        guards = (Depends(_refuse_changes),) if deps.read_only and router not in open_routers else ()
        app.include_router(router, prefix=PREFIX, dependencies=guards)
    for router in (metrics.router, cluster.health_router, tokens.login_router):
        app.include_router(router)
    serve_dashboard(app, deps.static)
    install_error_handlers(app)
    app.add_middleware(EncodedSlashMiddleware)
    app.add_middleware(SecurityMiddleware, hosts=deps.hosts)
    app.openapi = lambda: _openapi_document(app)  # type: ignore[method-assign]
    return app


async def _refuse_changes(request: Request) -> None:
    state: AppState = request.app.state.batuta
    if request.method not in SAFE_METHODS:
        raise HttpProblem(405, state.deps.read_only)


def login_path(app: FastAPI, token_hash: str) -> str:
    """The path of a link that logs a browser in with a token, once, within a minute."""
    state: AppState = app.state.batuta
    return tokens.login_path(state.sessions.new_code(token_hash))


def _openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with bodies that are read by hand, and authentication."""
    if app.openapi_schema is None:
        state: AppState = app.state.batuta
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        for model in (ProblemDocument, Submit):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        document["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": state.sessions.cookie_name},
        }
        for path, item in document["paths"].items():
            for operation in item.values():
                if path not in _PUBLIC:
                    operation["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = document
    return app.openapi_schema


class Dashboard(StaticFiles):
    """The built dashboard: files with a hash in their name are cached for ever, the page itself never."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            # A path within the dashboard, not a file: its own router resolves it.
            if error.status_code != 404 or "." in path.rpartition("/")[2]:
                raise
            response = await super().get_response("index.html", scope)
        is_hashed = path.startswith("assets/")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        return response


def serve_dashboard(app: FastAPI, folder: Path) -> None:
    """Serve a file of the dashboard where no route matches, or a page that says how to build it."""
    dashboard = Dashboard(directory=folder, html=True, check_dir=False)
    not_found = app.router.default

    async def find(scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_file or scope["path"].startswith(_API_PATHS):
            await not_found(scope, receive, send)
        elif (folder / "index.html").is_file():
            await dashboard(scope, receive, send)
        elif scope["path"] == "/":
            await HTMLResponse(_NOT_BUILT_PAGE)(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    app.router.default = find


class ApiServer(HttpServer):
    """Ends streams of events and logs at a shutdown: uvicorn would wait for them for ever."""

    def __init__(
        self, app: FastAPI, host: str = "127.0.0.1", port: int = 0, guard: ConnectionGuard | None = None
    ) -> None:
        super().__init__(app, host, port, guard, lifespan="on")
        self._api = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams(self._api)
        await super().shutdown(sockets)
