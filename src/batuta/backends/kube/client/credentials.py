"""Credentials of the client: TLS certificates, and tokens that are replaced before they expire.

Tokens come from a file that the kubelet rewrites, from a program (`exec` in a kubeconfig), or from an OpenID
Connect provider (`auth-provider`, by a refresh token).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from batuta.backends.kube.client import NEEDS_EXTRA
from batuta.backends.kube.client.errors import AccessError, Unauthorized

_log = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 1.0
_LEAST_BETWEEN_S: Final = 10.0
"""Fetches follow each other no faster than this, whatever the API server thinks of what they give."""
_MARGIN_S: Final = 300.0
_LONGEST_LOGIN_S: Final = 60.0
_RENEWAL_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)


class TokenFile:
    """The token that stands in a file now: a service account's is replaced about once an hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._value = ""
        self._next_look_s = 0.0
        self._look()
        if not self._value:
            raise AccessError(f"there is no token in {path}")

    async def authorization(self) -> str:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._look()
        return self._value

    def reject(self, value: str) -> None:
        self._next_look_s = 0.0

    def _look(self) -> None:
        """Reads the file if it changed. One that cannot be read now leaves us with the token that we had."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                token = self._path.read_text().strip()
                self._value = f"Bearer {token}" if token else self._value
                self._seen = seen
        except OSError as error:
            if not self._value:
                raise AccessError(f"the token in {self._path} cannot be read: {error.strerror}") from error
            _log.warning("the token in %s cannot be read: %s; keeping the last one", self._path, error.strerror)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """What a login gave."""

    authorization: str = ""  # empty where it gave a client certificate, which is in the TLS context then
    expires_at_s: float | None = None  # seconds since the epoch; None: it does not say


@dataclass(slots=True, eq=False)
class RefreshingToken:
    """Credentials that are fetched again shortly before they expire, or when the API server refuses them."""

    _fetch: Callable[[], Awaitable[IssuedToken]]
    _grant: IssuedToken | None = None
    _renew_at_s: float = math.inf
    _refused: bool = False
    _fetched_at_s: float = -_LEAST_BETWEEN_S
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def authorization(self) -> str:
        if self._due():
            async with self._lock:
                if self._due():
                    await self._renew()
        assert self._grant is not None
        return self._grant.authorization

    def reject(self, value: str) -> None:
        if self._grant is not None and value == self._grant.authorization:
            self._refused = True

    def _due(self) -> bool:
        if self._grant is None:
            return True
        is_stale = time.time() >= self._renew_at_s or self._refused
        return is_stale and time.monotonic() - self._fetched_at_s >= _LEAST_BETWEEN_S

    async def _renew(self) -> None:
        self._fetched_at_s = time.monotonic()
        try:
            grant = await self._fetch()
        except AccessError as error:
            if self._grant is None or self._refused:
                raise Unauthorized(str(error), status=401, reason="Unauthorized") from error
            _log.warning("%s; keeping the credentials that we have", error)
            return
        self._grant, self._refused, self._renew_at_s = grant, False, math.inf
        if grant.expires_at_s is not None:
            left_s = max(0.0, grant.expires_at_s - time.time())
            self._renew_at_s = grant.expires_at_s - min(_MARGIN_S, left_s / 5.0)


def tls_context(authorities: str | None, *, verify: bool = True) -> ssl.SSLContext:
    """A context that accepts servers of these authorities (PEM); of those that the system trusts for None."""
    try:
        context = ssl.create_default_context(cadata=authorities)
    except ssl.SSLError as error:
        raise AccessError(f"the certificate authority of the cluster cannot be read: {error}") from error
    # Python 3.13 wants extensions that the authorities of many clusters do not have; Kubernetes does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, whose: str) -> None:
    """Lets new connections of this context show the client certificate (PEM)."""
    expired_at = not_after(certificate)
    if expired_at is not None and expired_at <= datetime.now(UTC):
        raise AccessError(
            f"the client certificate of {whose} expired on {expired_at:%Y-%m-%d %H:%M} UTC; log in again or renew it"
        )
    # ssl reads files only; these live for as long as that takes, in a folder that only we may enter.
    with tempfile.TemporaryDirectory(prefix="batuta-") as folder:
        chain, secret = Path(folder, "certificate"), Path(folder, "key")
        chain.write_bytes(certificate)
        secret.write_bytes(key)
        try:
            context.load_cert_chain(chain, secret)
        except ssl.SSLError as error:
            raise AccessError(f"the client certificate and key of {whose} do not fit: {error}") from error


def not_after(certificate: bytes) -> datetime | None:
    """When the first certificate (PEM) expires; None where that cannot be read."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = certificate.decode("ascii", errors="replace")
    try:
        first = text[text.index(begin) : text.index(end) + len(end)]
        [(_, whole)] = _elements(ssl.PEM_cert_to_DER_cert(first))  # Certificate
        fields = _elements(_elements(whole)[0][1])  # TBSCertificate
        position = 4 if fields[0][0] == 0xA0 else 3  # the version is optional
        kind, said = _elements(fields[position][1])[1]
        moment = said.decode("ascii")
        if kind == 0x17:  # a UTCTime has two digits of a year, 1950 to 2049; a GeneralizedTime has four
            moment = ("19" if moment >= "50" else "20") + moment
        return datetime.strptime(moment, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (ValueError, IndexError):
        return None


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element of a DER sequence."""
    found, at = [], 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[at : at + size], "big")
            at += size
        found.append((tag, der[at : at + length]))
        at += length
    return found


def exec_login(
    plugin: Mapping[str, Any], user: str, context: ssl.SSLContext | None
) -> Callable[[], Awaitable[IssuedToken]]:
    """How to run this plugin. A certificate that it gives goes into the TLS context."""

    async def fetch() -> IssuedToken:
        given = await _run(plugin, user)
        if (certificate := given.get("clientCertificateData")) and context is not None:
            load_client_certificate(context, certificate.encode(), given.get("clientKeyData", "").encode(), user)
        elif not given.get("token"):
            raise AccessError(f"{_named(plugin, user)} gave neither a token nor a certificate")
        token = given.get("token")
        return IssuedToken(f"Bearer {token}" if token else "", _moment(given.get("expirationTimestamp")))

    return fetch


async def _run(plugin: Mapping[str, Any], user: str) -> dict[str, Any]:
    try:
        from kubernetes_asyncio.config import ConfigException
        from kubernetes_asyncio.config.exec_provider import ExecProvider
        from kubernetes_asyncio.config.kube_config import ConfigNode
    except ImportError as error:
        raise AccessError(NEEDS_EXTRA) from error
    try:
        async with asyncio.timeout(_LONGEST_LOGIN_S):
            given: dict[str, Any] = await ExecProvider(ConfigNode("exec", dict(plugin))).run()
    except FileNotFoundError as error:
        hint = plugin.get("installHint")
        raise AccessError(f"{_named(plugin, user)} is not installed{f': {hint}' if hint else ''}") from error
    except TimeoutError as error:
        raise AccessError(f"{_named(plugin, user)} took more than {_LONGEST_LOGIN_S:.0f} s") from error
    except (ConfigException, OSError) as error:
        raise AccessError(f"{_named(plugin, user)} failed: {error}") from error
    return given


def _named(plugin: Mapping[str, Any], user: str) -> str:
    return f"the login program {plugin.get('command')!r} of {user}"


def _moment(timestamp: str | None) -> float | None:
    if not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def oidc_login(
    config: Mapping[str, str], user: str, keep: Callable[[Mapping[str, str]], None]
) -> Callable[[], Awaitable[IssuedToken]]:
    """How to get an id token. The first time it is the one in the file, if it is still good.

    `keep` gets new tokens: an issuer may allow each refresh token once, and other programs need them too.
    """
    tokens = {name: config[name] for name in ("id-token", "refresh-token") if config.get(name)}
    first = True

    async def fetch() -> IssuedToken:
        nonlocal first
        held = tokens.get("id-token", "")
        ends_at_s = _expiry(held)
        if not first or not held or (ends_at_s is not None and ends_at_s - time.time() < 30.0):
            tokens.update(await _refresh(config, tokens, user))
            keep(tokens)
            held = tokens["id-token"]
        first = False
        return IssuedToken(f"Bearer {held}", _expiry(held))

    return fetch


async def _refresh(config: Mapping[str, str], tokens: Mapping[str, str], user: str) -> dict[str, str]:
    if not tokens.get("refresh-token"):
        raise AccessError(f"the id token of {user} is expired, and there is no refresh token; log in again")
    try:
        issuer, client = config["idp-issuer-url"].rstrip("/"), config["client-id"]
    except KeyError as error:
        raise AccessError(f"the oidc auth-provider of {user} has no {error.args[0]!r}") from error
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh-token"], "client_id": client}
    if secret := config.get("client-secret"):
        form["client_secret"] = secret
    try:
        connector = aiohttp.TCPConnector(ssl=tls_context(_authorities(config)))
        async with aiohttp.ClientSession(connector=connector, timeout=_RENEWAL_TIMEOUT) as session:
            async with session.get(f"{issuer}/.well-known/openid-configuration") as answer:
                endpoint = (await _json(answer, issuer))["token_endpoint"]
            async with session.post(endpoint, data=form) as answer:
                given = await _json(answer, issuer)
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError) as error:
        raise AccessError(f"cannot renew the login of {user} at {issuer}: {error}") from error
    if not given.get("id_token"):
        raise AccessError(f"{issuer} gave no id token for {user}; log in again")
    renewed = {"id-token": given["id_token"], "refresh-token": given.get("refresh_token")}
    return {name: value for name, value in renewed.items() if value}


async def _json(answer: aiohttp.ClientResponse, issuer: str) -> dict[str, Any]:
    text = await answer.text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if answer.status != 200 or not isinstance(found, dict):
        said = found.get("error_description") or found.get("error") if isinstance(found, dict) else ""
        raise AccessError(f"{issuer} refused to renew the login: {said or f'HTTP {answer.status}'}")
    return found


def _authorities(config: Mapping[str, str]) -> str | None:
    if data := config.get("idp-certificate-authority-data"):
        return base64.b64decode(data).decode()
    if path := config.get("idp-certificate-authority"):
        with open(path, encoding="utf-8") as file:
            return file.read()
    return None


def _expiry(token: str) -> float | None:
    """When a JSON web token expires; it is the API server that checks it, so nothing is verified here."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
