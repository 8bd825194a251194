"""How a browser logs in: a link that works once within a minute, then a signed cookie.

The cookie names the token that the link was asked for with, by its hash, and holds as long as that token
does: who revokes a token ends its sessions. It is signed with a key that is kept in the store, so that an
open dashboard survives a restart of the server, and nothing has to be remembered for each session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress

from batuta.engine.ports import JournalUnavailable
from batuta.store.records import Settings

COOKIE = "batuta_session"
SESSION_S = 7 * 86_400.0
CODE_S = 60.0
_MOST_CODES = 1_000
_KEY = "session-key"


class Sessions:
    """Codes of links, in memory; cookies, by a key of the store."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, tuple[str, float]] = {}
        self._key = _key_of(settings)

    def new_code(self, token_hash: str) -> str:
        """A code for one login as the bearer of a token."""
        # 192 random bits are plenty, and the link fits into a line of a terminal.
        code, now_s = secrets.token_urlsafe(24), self._clock()
        with self._lock:
            self._codes = {known: entry for known, entry in self._codes.items() if entry[1] > now_s}
            if len(self._codes) >= _MOST_CODES:
                self._codes.pop(next(iter(self._codes)))
            self._codes[_digest(code)] = (token_hash, now_s + CODE_S)
        return code

    def use_code(self, code: str) -> str | None:
        """The cookie that a code is good for; None when it is unknown, used or too old."""
        with self._lock:
            token_hash, until_s = self._codes.pop(_digest(code), ("", 0.0))
        return self._cookie(token_hash) if self._clock() < until_s else None

    def token_of(self, cookie: str) -> str | None:
        """The hash of the token that a cookie stands for; None when it is not ours, or too old."""
        try:
            body, _, mac = cookie.partition(".")
            if not hmac.compare_digest(mac.encode(), self._sign(body).encode()):
                return None
            facts = json.loads(base64.urlsafe_b64decode(body))
            return str(facts["token"]) if self._clock() < facts["until_s"] else None
        except (ValueError, KeyError, TypeError):
            return None

    def _cookie(self, token_hash: str) -> str:
        facts = {"token": token_hash, "until_s": self._clock() + SESSION_S, "nonce": secrets.token_hex(8)}
        body = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()
        return f"{body}.{self._sign(body)}"

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def _key_of(settings: Settings) -> bytes:
    """The key that is kept; a new one at the first start."""
    stored = settings.get(_KEY)
    if stored is None:
        stored = secrets.token_hex(32)
        # On a full disk sessions end with the server, which has other troubles then.
        with suppress(JournalUnavailable):
            settings.put(_KEY, stored)
    return bytes.fromhex(stored)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
