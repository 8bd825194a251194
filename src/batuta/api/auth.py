"""Authentication and authorization: bearer tokens, session cookies for browsers, and peers at a unix socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import anyio.to_thread
from fastapi import Depends, Request

from batuta.api.connection_guard import PEER_UID
from batuta.api.responses import HttpProblem
from batuta.core.job import Job
from batuta.engine.ports import JournalUnavailable
from batuta.store.records import Role, Settings, Token, Tokens, hash_of

_RANK = {Role.VIEWER: 0, Role.USER: 1, Role.ADMIN: 2}
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_FRESH_S = 2.0  # tokens are read again after this; a change through the API is seen at once
COOKIE_PATH = "/api"  # pages and scripts of the dashboard are for all
SESSION_S = 7 * 86_400.0
CODE_S = 60.0
_MAX_CODES = 1_000
_KEY_SETTING = "session-key"
_ENDED_SETTING = "ended-sessions"
_MAX_ENDED = 1_000
PEER_PREFIX = "unix:"  # before the user id, where a session or an audit names a token by its hash
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="batuta"'}


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request."""

    user: str
    role: Role
    token_hash: str

    def may(self, role: Role) -> bool:
        return _RANK[self.role] >= _RANK[role]

    def owns(self, user: str) -> bool:
        """Whether jobs of this user are the caller's to change: they are the user, or an admin."""
        return self.role is Role.ADMIN or user == self.user

    def check_owner(self, job: Job) -> None:
        """Raise HttpProblem unless the caller may change this job: its user, or an admin."""
        if not self.owns(job.user):
            raise HttpProblem(403, f"job {job.id} belongs to {job.user or 'no user'}: only they or an admin change it")


class TokenAuthenticator(Protocol):
    """Finds the caller that a token stands for."""

    async def bearing(self, token: str) -> Caller | None:
        """Return the caller with this token; None when it is not valid."""

    async def find(self, hash_: str) -> Caller | None:
        """Return the caller with the token of this hash, which is what a session stores."""


class StoredTokenAuthenticator:
    """Tokens of the store, read again after a few seconds."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._clock = clock
        self._known: dict[str, Token] = {}
        self._read_s = float("-inf")

    async def bearing(self, token: str) -> Caller | None:
        return await self.find(hash_of(token))

    async def find(self, hash_: str) -> Caller | None:
        if time.monotonic() > self._read_s + _FRESH_S:
            await anyio.to_thread.run_sync(self.refresh)
        found = self._known.get(hash_)
        if found is None or not found.is_valid(self._clock()):
            return None
        return Caller(found.user, found.role, found.hash)

    def refresh(self) -> None:
        """Read all tokens again; called when one was created or revoked."""
        self._known = {token.hash: token for token in self._tokens.all()}
        self._read_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class RequestAuthenticator:
    """Authenticates a request by its bearer token or its session cookie."""

    bearers: TokenAuthenticator
    sessions: Sessions
    peers: PeerAuthenticator | None = None  # None where there is no unix socket

    async def caller(self, request: Request) -> Caller | None:
        """Return the caller; None without credentials. Raises HttpProblem when they are not valid."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise HttpProblem(401, "only bearer tokens are known here", headers=_CHALLENGE)
            found = await self.bearers.bearing(token.strip())
        elif cookie := request.cookies.get(self.sessions.cookie_name):
            check_same_origin(request)
            found = await self.of_session(cookie)
        elif (uid := request.scope.get(PEER_UID)) is not None and self.peers is not None:
            found = self.peers.caller(uid)
            if found is None:
                raise HttpProblem(403, f"user id {uid} has no account on this machine: jobs could not run as it")
        else:
            return None
        if found is None:
            raise HttpProblem(401, "this token or session is not valid (any more)", headers=_CHALLENGE)
        return found

    async def of_session(self, cookie: str) -> Caller | None:
        """Return the caller whose session a cookie is; None when that is over."""
        name = self.sessions.token_of(cookie) or ""
        if not name.startswith(PEER_PREFIX):
            return await self.bearers.find(name)
        return None if self.peers is None else self.peers.caller(int(name.removeprefix(PEER_PREFIX)))


@dataclass(frozen=True, slots=True)
class PeerAuthenticator:
    """Knows callers at the unix socket by the user id that the kernel gives for the other end: they need no token."""

    name_of: Callable[[int], str | None]  # the name of the account with a user id; None where there is none
    admins: frozenset[int]

    def caller(self, uid: int) -> Caller | None:
        """Return the caller with this user id; None when it has no account."""
        name = self.name_of(uid)
        if name is None:
            return None
        return Caller(name, Role.ADMIN if uid in self.admins else Role.USER, f"{PEER_PREFIX}{uid}")


def check_same_origin(request: Request) -> None:
    """Raise HttpProblem for a request of another origin: browsers send the cookie with those, too."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise HttpProblem(403, "this session is for its own pages only, not for those of another origin")
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    if origin is None and site is None:
        raise HttpProblem(403, "a change with a session needs the Origin header; programs use a token")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if origin is not None and origin.lower() != own.lower():
        raise HttpProblem(403, f"a change from another origin ({origin[:100]}) is refused")


async def _authorize(request: Request, role: Role) -> Caller:
    authenticator: RequestAuthenticator = request.app.state.batuta.authenticator
    caller = await authenticator.caller(request)
    if caller is None:
        raise HttpProblem(
            401,
            "say who you are: Authorization: Bearer TOKEN ($BATUTA_TOKEN for the command line); "
            "for a browser, run `batuta dashboard`",
            headers=_CHALLENGE,
        )
    if not caller.may(role):
        raise HttpProblem(403, f"this needs the role {role.value}; {caller.user} has {caller.role.value}")
    return caller


def _check(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    async def authorize(request: Request) -> Caller:
        return await _authorize(request, role)

    return authorize


check_viewer, check_admin = _check(Role.VIEWER), _check(Role.ADMIN)
Viewer = Annotated[Caller, Depends(check_viewer)]
User = Annotated[Caller, Depends(_check(Role.USER))]
Admin = Annotated[Caller, Depends(check_admin)]


class Sessions:
    """How a browser logs in: a link that works once within a minute, then a signed cookie.

    The cookie names a token by its hash, and is valid as long as that token: to revoke it ends its sessions.
    A session also ends at its logout: a copy of the cookie is worth nothing then. The signing key and what was
    ended are kept in the store, so that an open dashboard survives a restart of the server, and no other does.

    Browsers send cookies to all ports of a host: each server's has a name of its own, by the id of its journal.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], journal: str = "") -> None:
        self.cookie_name = f"batuta_session_{journal[:8]}" if journal else "batuta_session"
        self._settings = settings
        self._clock = clock
        self._ended = _load_ended(settings)  # by nonce: until when the cookie would be valid
        self._lock = threading.Lock()
        self._codes: dict[str, tuple[str, float]] = {}
        self._key = _load_signing_key(settings)

    def new_code(self, token_hash: str) -> str:
        # 192 random bits are plenty, and the link fits into a line of a terminal.
        code, now_s = secrets.token_urlsafe(24), self._clock()
        with self._lock:
            self._codes = {known: entry for known, entry in self._codes.items() if entry[1] > now_s}
            if len(self._codes) >= _MAX_CODES:
                self._codes.pop(next(iter(self._codes)))
            self._codes[_digest(code)] = (token_hash, now_s + CODE_S)
        return code

    def use_code(self, code: str) -> str | None:
        """Return the cookie for a code; None when it is unknown, used or expired."""
        with self._lock:
            token_hash, until_s = self._codes.pop(_digest(code), ("", 0.0))
        return self._cookie(token_hash) if self._clock() < until_s else None

    def token_of(self, cookie: str) -> str | None:
        """Return the hash of the token of a cookie; None when its signature is wrong or it has expired."""
        facts = self._facts(cookie)
        return None if facts is None or facts.nonce in self._ended else facts.token

    def end(self, cookie: str) -> None:
        """End the session of a cookie for good. Writes to the disk."""
        facts = self._facts(cookie)
        if facts is None:
            return
        with self._lock:
            now_s = self._clock()
            ended = {nonce: until_s for nonce, until_s in self._ended.items() if until_s > now_s}
            if len(ended) >= _MAX_ENDED:
                # Another key ends all sessions, which is better than to forget that one has ended.
                self._settings.put(_KEY_SETTING, key := secrets.token_hex(32))
                self._key, ended = bytes.fromhex(key), {}
            self._ended = ended | {facts.nonce: facts.until_s}
            self._settings.put(_ENDED_SETTING, json.dumps(self._ended))

    def _facts(self, cookie: str) -> _Session | None:
        """Return what a cookie says; None when its signature is wrong or it has expired."""
        try:
            body, _, mac = cookie.partition(".")
            if not hmac.compare_digest(mac.encode(), self._sign(body).encode()):
                return None
            facts = json.loads(base64.urlsafe_b64decode(body))
            found = _Session(str(facts["token"]), float(facts["until_s"]), str(facts["nonce"]))
        except (ValueError, KeyError, TypeError):
            return None
        return found if self._clock() < found.until_s else None

    def _cookie(self, token_hash: str) -> str:
        facts = {"token": token_hash, "until_s": self._clock() + SESSION_S, "nonce": secrets.token_hex(8)}
        body = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()
        return f"{body}.{self._sign(body)}"

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


class _Session(NamedTuple):
    token: str  # its hash
    until_s: float
    nonce: str


def _load_ended(settings: Settings) -> dict[str, float]:
    try:
        stored = json.loads(settings.get(_ENDED_SETTING) or "{}")
        return {str(nonce): float(until_s) for nonce, until_s in stored.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _load_signing_key(settings: Settings) -> bytes:
    """Return the stored signing key; create it at the first start."""
    stored = settings.get(_KEY_SETTING)
    if stored is None:
        stored = secrets.token_hex(32)
        # On a full disk, sessions end with the server.
        with suppress(JournalUnavailable):
            settings.put(_KEY_SETTING, stored)
    return bytes.fromhex(stored)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
