"""How to reach a cluster: its address, whom it may trust, who we are."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from batuta import __version__

USER_AGENT = f"batuta/{__version__}"


class Credentials(Protocol):
    """Who we are, as the Authorization header says it."""

    async def authorization(self) -> str:
        """The header's value, empty for none; renewed when it is about to expire, and cheap when not."""

    def reject(self, value: str) -> None:
        """Notes that the API server did not accept this value: the next `authorization` looks for another."""


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """A value that does not change: a token in a file of settings, or none because a certificate says it."""

    value: str = ""

    async def authorization(self) -> str:
        return self.value

    def reject(self, value: str) -> None:
        """Nothing to be done: there is no other."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way to one API server."""

    server: str
    """Its URL, without a slash at the end."""
    ssl: ssl.SSLContext | None = None
    """None for plain HTTP."""
    credentials: Credentials = FixedCredentials()
    namespace: str = "default"
    """Where objects are when nobody says a namespace."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request: whom we act for."""
    proxy: str | None = None
    tls_server_name: str | None = None
    user_agent: str = USER_AGENT
    source: str = ""
    """Where this comes from, for messages to people."""
