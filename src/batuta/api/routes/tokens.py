"""`/tokens`, `/session-links`, `/session` and `/login`: API tokens and browser sessions."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from batuta.api.auth import COOKIE_PATH, SESSION_S, Admin, Viewer
from batuta.api.connection_guard import PEER_UID
from batuta.api.models import ServerProof, Session, SessionLink, TokenList, TokenMade
from batuta.api.request_models import TokenPost
from batuta.api.responses import HttpProblem, json_response, not_found
from batuta.api.routes import CHANGES, problems
from batuta.api.state import AppState, StateDep
from batuta.apitypes.server_proof import NONCE
from batuta.apitypes.server_proof import PATH as PROOF_PATH
from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import EngineStopped
from batuta.store.records import Role, Token, hash_of

router = APIRouter(prefix="/tokens", tags=["tokens"])


@router.get("", response_model=TokenList, responses=problems())
async def list_tokens(state: StateDep, caller: Admin) -> Response:
    """All tokens by their hashes; the tokens themselves are not kept."""
    tokens = await anyio.to_thread.run_sync(state.store.tokens.all)
    return json_response({"tokens": [_view_token(token) for token in tokens]})


@router.post("", status_code=201, response_model=TokenMade, responses=problems(*CHANGES))
async def make_token(state: StateDep, caller: Admin, asked: TokenPost) -> Response:
    """Makes a token; it is shown this once."""
    made = await anyio.to_thread.run_sync(_make, state, asked)
    await state.record_action(caller, "token.create", f"{asked.user} ({asked.role.value}), {made['hash'][:16]}")
    return json_response(made, 201)


def _make(state: AppState, asked: TokenPost) -> dict[str, Any]:
    now_s = state.now_s()
    expires_s = None if asked.valid_s is None else now_s + asked.valid_s
    token = state.store.tokens.create(asked.user, asked.role, now_s, expires_s)
    state.stored_tokens.refresh()
    return {"token": token, **_view_token(Token(hash_of(token), asked.user, asked.role, now_s, expires_s))}


@router.delete("/{hash}", status_code=204, response_class=Response, responses=problems(404, 409, *CHANGES))
async def revoke_token(
    state: StateDep, caller: Admin, hash_: Annotated[str, Path(alias="hash", pattern="^[0-9a-f]{64}$")]
) -> Response:
    """Ends a token, and all sessions that began with it."""
    await anyio.to_thread.run_sync(_revoke, state, hash_)
    await state.record_action(caller, "token.revoke", hash_[:16])
    return Response(status_code=204)


def _revoke(state: AppState, hash_: str) -> None:
    tokens, now_s = state.store.tokens.all(), state.now_s()
    admins = [token.hash for token in tokens if token.role is Role.ADMIN and token.is_valid(now_s)]
    if admins == [hash_]:
        raise HttpProblem(409, "this is the last token of an admin: make another one first")
    revoked = state.store.tokens.revoke(hash_)
    state.stored_tokens.refresh()
    if not revoked:
        raise not_found("such token")


def _view_token(token: Token) -> dict[str, Any]:
    return {
        "hash": token.hash,
        "user": token.user,
        "role": token.role.value,
        "created_s": token.created_s,
        "expires_s": token.expires_s,
    }


session_router = APIRouter(tags=["session"])
login_router = APIRouter(include_in_schema=False)
_LINK_EXPIRED_PAGE = """<!doctype html><meta charset="utf-8"><title>Batuta</title>
<p>This link has been used, or is older than a minute.</p>
<p>For another one, run <code>batuta dashboard</code>.</p>
"""


@session_router.post("/session-links", response_model=SessionLink, responses=problems(*CHANGES))
async def make_session_link(request: Request, state: StateDep, caller: Viewer) -> Response:
    """A link that logs a browser in as the asker, once, within a minute."""
    code = state.sessions.new_code(caller.token_hash)
    at = f"{request.url.scheme}://{request.headers['host']}"
    if PEER_UID in request.scope and state.deps.web_url is not None:
        at = state.deps.web_url()  # no browser comes through a unix socket
    return json_response({"url": f"{at}{login_path(code)}"})


def login_path(code: str) -> str:
    return f"/login?code={code}"


@session_router.get("/session", response_model=Session, responses=problems())
async def get_session(caller: Viewer) -> Response:
    """Who asks."""
    return json_response({"user": caller.user, "role": caller.role.value})


@session_router.delete("/session", status_code=204, response_class=Response, responses=problems())
async def end_session(request: Request, state: StateDep, caller: Viewer) -> Response:
    """Logs a browser out: the session ends at the server, and the browser forgets its cookie."""
    name = state.sessions.cookie_name
    if cookie := request.cookies.get(name):
        await anyio.to_thread.run_sync(state.sessions.end, cookie)
        await state.record_action(caller, "session.end")
    response = Response(status_code=204)
    response.delete_cookie(name, path=COOKIE_PATH, httponly=True, samesite="strict")
    return response


@session_router.get(PROOF_PATH, response_model=ServerProof, responses=problems(404))
async def prove_server(state: StateDep, nonce: Annotated[str, Query(pattern=f"^{NONCE.pattern}$")]) -> Response:
    """Shows that this is the server of its state directory, for clients that are about to send a token."""
    if state.deps.prove is None:
        raise not_found("state directory here: trust this server by its certificate")
    return json_response({"proof": state.deps.prove(nonce)})


@login_router.get("/login")
async def log_in(request: Request, state: StateDep, code: Annotated[str, Query(max_length=128)] = "") -> Response:
    cookie = state.sessions.use_code(code)
    if cookie is None:
        return HTMLResponse(_LINK_EXPIRED_PAGE, 403)
    caller = await state.authenticator.of_session(cookie)
    if caller is not None:
        with suppress(JournalUnavailable, EngineStopped, TimeoutError):  # to look is still possible
            await state.record_action(caller, "session.begin")
    response = RedirectResponse("/", 303)
    response.set_cookie(
        state.sessions.cookie_name,
        cookie,
        max_age=int(SESSION_S),
        path=COOKIE_PATH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response
