"""Tokens: who may do what."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Response

from batuta.api.asked import TokenPost
from batuta.api.auth import Admin
from batuta.api.cluster_models import TokenList, TokenMade
from batuta.api.desk import AtDesk, Desk
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, not_found
from batuta.api.routes import CHANGES, problems
from batuta.store.records import Role, Token, hash_of

router = APIRouter(prefix="/tokens", tags=["tokens"])


@router.get("", response_model=TokenList, responses=problems())
async def list_tokens(desk: AtDesk, who: Admin) -> Response:
    """All tokens by their hashes; the tokens themselves are not kept."""
    tokens = await anyio.to_thread.run_sync(desk.store.tokens.all)
    return answer({"tokens": [_shown(token) for token in tokens]})


@router.post("", status_code=201, response_model=TokenMade, responses=problems(*CHANGES))
async def make_token(desk: AtDesk, who: Admin, asked: TokenPost) -> Response:
    """Makes a token; it is shown this once."""
    return answer(await anyio.to_thread.run_sync(_make, desk, asked), 201)


def _make(desk: Desk, asked: TokenPost) -> dict[str, Any]:
    now_s = desk.now_s()
    token = desk.store.tokens.create(asked.user, asked.role, now_s)
    desk.bearers.refresh()
    return {"token": token, **_shown(Token(hash_of(token), asked.user, asked.role, now_s))}


@router.delete("/{hash}", status_code=204, response_class=Response, responses=problems(404, 409, *CHANGES))
async def revoke_token(
    desk: AtDesk, who: Admin, hash_: Annotated[str, Path(alias="hash", pattern="^[0-9a-f]{64}$")]
) -> Response:
    """Ends a token, and all sessions that began with it."""
    await anyio.to_thread.run_sync(_revoke, desk, hash_)
    return Response(status_code=204)


def _revoke(desk: Desk, hash_: str) -> None:
    tokens = desk.store.tokens.all()
    admins = [token.hash for token in tokens if token.role is Role.ADMIN]
    if admins == [hash_]:
        raise Refusal(409, "this is the last token of an admin: make another one first")
    revoked = desk.store.tokens.revoke(hash_)
    desk.bearers.refresh()
    if not revoked:
        raise not_found("such token")


def _shown(token: Token) -> dict[str, Any]:
    return {
        "hash": token.hash,
        "user": token.user,
        "role": token.role.value,
        "created_s": token.created_s,
    }
