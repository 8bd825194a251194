"""The app: all routes, and what stands around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi

from batuta.api import (
    cluster,
    doctor,
    events,
    foresight,
    health,
    jobs,
    logs,
    metrics,
    nodes,
    policy,
    problems,
    queues,
    quota_changes,
    report,
    session,
    shadow,
    submit,
    tokens,
)
from batuta.api.asked import Submit
from batuta.api.auth import SAFE
from batuta.api.desk import Desk
from batuta.api.door import Door
from batuta.api.models import ProblemDocument
from batuta.api.pages import serve_dashboard
from batuta.api.parts import ServerParts
from batuta.api.problems import Refusal
from batuta.api.slashes import Slashes

PREFIX = "/api/v1"
_MODULES = (
    submit,
    jobs,
    logs,
    cluster,
    nodes,
    queues,
    quota_changes,
    policy,
    shadow,
    foresight,
    report,
    doctor,
    events,
    tokens,
    session,
)
_ASKING = (shadow, foresight, session)
"""They change nothing that jobs would notice, whatever the method."""
_PUBLIC = frozenset(("/healthz", "/readyz"))


def create_app(parts: ServerParts) -> FastAPI:
    """The HTTP API of a running service, with its dashboard."""
    desk = Desk(parts)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with desk.open():
            yield

    app = FastAPI(
        title="Batuta",
        version=parts.version or "0",
        openapi_url=f"{PREFIX}/openapi.json",
        # Both load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.desk = desk
    api = APIRouter(prefix=PREFIX)
    for module in _MODULES:
        guards = () if module in _ASKING else (Depends(_check_changes),)
        api.include_router(module.router, dependencies=guards)
    for router in (api, metrics.router, health.router, session.login_router):
        app.include_router(router)
    serve_dashboard(app, parts.static)
    problems.install(app)
    app.add_middleware(Slashes)
    app.add_middleware(Door, hosts=parts.hosts)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


async def _check_changes(request: Request) -> None:
    """Refuses what would change something, at a server where that is done elsewhere."""
    desk: Desk = request.app.state.desk
    if desk.parts.read_only and request.method not in SAFE:
        raise Refusal(405, desk.parts.read_only)


def login_path(app: FastAPI, token_hash: str) -> str:
    """The path of a link that logs a browser in as the bearer of a token, once, within a minute."""
    desk: Desk = app.state.desk
    return session.login_path(desk.sessions.new_code(token_hash))


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with what FastAPI cannot know: bodies that are read by hand, and who may ask."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        for model in (ProblemDocument, Submit):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        document["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": "batuta_session"},
        }
        for path, item in document["paths"].items():
            for operation in item.values():
                if path not in _PUBLIC:
                    operation["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = document
    return app.openapi_schema
