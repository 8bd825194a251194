"""TLS of an operator's port: the certificate that it shows, and the authority by which it knows other operators.

Both are read again every few minutes. A certificate that has changed is shown to the next client; connections that
are open go on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from batuta.api.http_server import load_certificate
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, NotFound
from batuta.backends.kube.operator_config import OperatorTls, TlsMode
from batuta.spec.problem import InputError

_log = logging.getLogger("batuta.operator")
_TRY_AGAIN_S: Final = 2.0
_MOST_PEM_BYTES: Final = 1 << 20
_UPGRADE: Final = "its objects are of an older version (batuta install --apply, or helm upgrade)"


@dataclass(frozen=True, slots=True)
class ServedCertificate:
    """What a server shows, as PEM, and who has signed it."""

    chain: bytes
    key: bytes = field(repr=False)
    authority: bytes  # empty: one that the system knows


ReadCertificate: TypeAlias = Callable[[], Awaitable[ServedCertificate]]


class ServerTls:
    """For one event loop. Nothing may be asked of an operator while there is `trouble`."""

    def __init__(self, config: OperatorTls) -> None:
        """Raises InputError for files that cannot be used."""
        self._config = config
        self._shown: ServedCertificate | None = None
        self.trouble = "the certificate of this operator was not read yet"
        self.server_name = next(iter(config.names), "localhost")  # what other operators expect of the certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.trust = ssl.create_default_context()
        """Whom this operator believes to be another one; another object when that has changed."""
        if config.mode is TlsMode.FILES:
            try:
                self._show(_read_folder(Path(config.folder)))
            except OSError as error:
                raise InputError.of(
                    f"api.tls.folder {config.folder}: {error}", fix="tls.crt, tls.key and ca.crt as PEM, of one pair"
                ) from None
        else:
            self._show(_own_certificate(config))  # until the shared one is read: probes do not look at it
            self.trouble = "the certificate that operators share was not read yet"

    async def run(self, api: Api, namespace: str) -> None:
        """Shows the certificate of now, for ever."""
        read = self._reader(api, namespace)
        while True:
            try:
                self._show(await read())
                self.trouble, pause_s = "", float(self._config.refresh_seconds)
            except (ApiError, OSError) as error:
                said = f"{error}: {_UPGRADE}" if isinstance(error, Forbidden | NotFound) else str(error)
                _log.error("cannot read the certificate: %s", said)
                if self.trouble:  # it shows none that clients know
                    self.trouble = f"cannot read the certificate: {said}"
                pause_s = min(_TRY_AGAIN_S, self._config.refresh_seconds)
            await asyncio.sleep(pause_s)

    def _reader(self, api: Api, namespace: str) -> ReadCertificate:
        config = self._config
        if config.mode is TlsMode.FILES:

            async def read_files() -> ServedCertificate:
                return await asyncio.to_thread(_read_folder, Path(config.folder))

            return read_files
        from batuta.backends.kube.tls.shared_certificate import SharedCertificate

        shared = SharedCertificate(api, namespace, config.secret, config.config_map, config.names)

        async def read_shared() -> ServedCertificate:
            found = await shared.read()
            return ServedCertificate(found.server.certificate, found.server.key, found.authority.certificate)

        return read_shared

    def _show(self, found: ServedCertificate) -> None:
        """Raises OSError for what cannot be used; what is shown stays as it was."""
        shown = self._shown
        if found == shown:
            return
        trust = self.trust
        if shown is None or found.authority != shown.authority:
            trust = ssl.create_default_context()
            if found.authority:
                trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                trust.load_verify_locations(cadata=found.authority.decode("ascii", "ignore"))
        load_certificate(self.context, found.chain, found.key)
        if shown is not None:
            _log.info("another certificate is shown from now on")
        self._shown, self.trust = found, trust
        if self._config.mode is TlsMode.FILES:
            self.trouble = ""


def server_tls(config: OperatorTls) -> ServerTls | None:
    return None if config.mode is TlsMode.OFF else ServerTls(config)


def _own_certificate(config: OperatorTls) -> ServedCertificate:
    from batuta.backends.kube.tls.authority import up_to_date, utc_now

    made = up_to_date(None, config.names, utc_now())
    return ServedCertificate(made.server.certificate, made.server.key, made.authority.certificate)


def _read_folder(folder: Path) -> ServedCertificate:
    authority = folder / "ca.crt"
    return ServedCertificate(
        _read_pem(folder / "tls.crt"),
        _read_pem(folder / "tls.key"),
        _read_pem(authority) if authority.exists() else b"",
    )


def _read_pem(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_PEM_BYTES)
