"""Who asks, and what they may do: a bearer token, or the cookie of a session from this very origin."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Protocol

import anyio.to_thread
from fastapi import Depends, Request

from batuta.api.problems import Refusal
from batuta.api.sessions import COOKIE, Sessions
from batuta.core.job import Job
from batuta.store.records import Role, Token, Tokens, hash_of

_RANK = {Role.VIEWER: 0, Role.USER: 1, Role.ADMIN: 2}
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""
_FRESH_S = 2.0
"""Tokens are looked up again after this; a change through the API is seen at once."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="batuta"'}


@dataclass(frozen=True, slots=True)
class Who:
    """The one who asks."""

    user: str
    role: Role
    token_hash: str

    def may(self, role: Role) -> bool:
        return _RANK[self.role] >= _RANK[role]

    def check_own(self, job: Job) -> None:
        """A user changes only their own jobs."""
        if self.role is not Role.ADMIN and job.user != self.user:
            raise Refusal(
                403, f"job {job.id} belongs to {job.user or 'nobody'}: only they, or an admin, change it"
            )


class Bearers(Protocol):
    """Knows whose a token is."""

    async def bearing(self, token: str) -> Who | None:
        """The one who has it; None when it is not valid."""
        ...

    async def find(self, hash_: str) -> Who | None:
        """The same by its hash, which is what a session keeps of it."""
        ...


class StoredBearers:
    """All tokens by hash, read from the store now and then."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known: dict[str, Token] = {}
        self._read_s = float("-inf")

    async def bearing(self, token: str) -> Who | None:
        return await self.find(hash_of(token))

    async def find(self, hash_: str) -> Who | None:
        if time.monotonic() > self._read_s + _FRESH_S:
            await anyio.to_thread.run_sync(self.refresh)
        found = self._known.get(hash_)
        return None if found is None else Who(found.user, found.role, found.hash)

    def refresh(self) -> None:
        """Reads all tokens; called when one was made or revoked."""
        self._known = {token.hash: token for token in self._tokens.all()}
        self._read_s = time.monotonic()


class Guard:
    """Finds out who asks."""

    def __init__(self, bearers: Bearers, sessions: Sessions) -> None:
        self._bearers = bearers
        self._sessions = sessions

    async def who(self, request: Request) -> Who | None:
        """None when nobody says who they are; a refusal when what they say is wrong."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise Refusal(401, "only bearer tokens are known here", headers=_CHALLENGE)
            found = await self._bearers.bearing(token.strip())
        elif cookie := request.cookies.get(COOKIE):
            check_same_origin(request)
            found = await self._bearers.find(self._sessions.token_of(cookie) or "")
        else:
            return None
        if found is None:
            raise Refusal(401, "this token or session is not valid (any more)", headers=_CHALLENGE)
        return found


def check_same_origin(request: Request) -> None:
    """Browsers send cookies along for other pages too; such requests get nowhere."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise Refusal(403, "this session is for its own pages only, not for those of another origin")
    if request.method in SAFE:
        return
    origin = request.headers.get("origin")
    if origin is None and site is None:
        raise Refusal(403, "a change with a session needs the Origin header; programs use a token")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if origin is not None and origin.lower() != own.lower():
        raise Refusal(403, f"a change from another origin ({origin[:100]}) is refused")


async def check_viewer(request: Request) -> Who:
    return await _check(request, Role.VIEWER)


async def _user(request: Request) -> Who:
    return await _check(request, Role.USER)


async def _admin(request: Request) -> Who:
    return await _check(request, Role.ADMIN)


async def _check(request: Request, role: Role) -> Who:
    """Lets in whoever has this role or a higher one."""
    guard: Guard = request.app.state.desk.guard
    who = await guard.who(request)
    if who is None:
        raise Refusal(
            401,
            "say who you are: Authorization: Bearer TOKEN ($BATUTA_TOKEN for the command line); "
            "for a browser, run `batuta dashboard`",
            headers=_CHALLENGE,
        )
    if not who.may(role):
        raise Refusal(403, f"this needs the role {role.value}; {who.user} has {who.role.value}")
    return who


Viewer = Annotated[Who, Depends(check_viewer)]
User = Annotated[Who, Depends(_user)]
Admin = Annotated[Who, Depends(_admin)]
