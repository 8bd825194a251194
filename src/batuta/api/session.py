"""How a browser logs in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from batuta.api.auth import Viewer
from batuta.api.cluster_models import Session, SessionLink
from batuta.api.desk import AtDesk
from batuta.api.plain_json import answer
from batuta.api.routes import CHANGES, problems
from batuta.api.sessions import COOKIE, SESSION_S

router = APIRouter(tags=["session"])
login_router = APIRouter(include_in_schema=False)
_SPENT = """<!doctype html><meta charset="utf-8"><title>Batuta</title>
<p>This link has been used, or is older than a minute.</p>
<p>For another one, run <code>batuta dashboard</code>.</p>
"""


@router.post("/session-links", response_model=SessionLink, responses=problems(*CHANGES))
async def make_session_link(request: Request, desk: AtDesk, who: Viewer) -> Response:
    """A link that logs a browser in as the asker, once, within a minute."""
    code = desk.sessions.new_code(who.token_hash)
    return answer({"url": f"{request.url.scheme}://{request.headers['host']}{login_path(code)}"})


def login_path(code: str) -> str:
    return f"/login?code={code}"


@router.get("/session", response_model=Session, responses=problems())
async def get_session(who: Viewer) -> Response:
    """Who asks."""
    return answer({"user": who.user, "role": who.role.value})


@router.delete("/session", status_code=204, response_class=Response, responses=problems())
async def end_session(who: Viewer) -> Response:
    """Logs a browser out."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


@login_router.get("/login")
async def log_in(
    request: Request, desk: AtDesk, code: Annotated[str, Query(max_length=128)] = ""
) -> Response:
    cookie = desk.sessions.use_code(code)
    if cookie is None:
        return HTMLResponse(_SPENT, 403)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SESSION_S),
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response
