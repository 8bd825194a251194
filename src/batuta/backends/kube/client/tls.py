"""Whom we trust and how we show who we are: TLS as a kubeconfig means it."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from batuta.backends.kube.client.errors import AccessError


def trusting(authorities: str | None, *, verify: bool = True) -> ssl.SSLContext:
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


def show_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, whose: str) -> None:
    """Lets new connections of this context show the client certificate (PEM)."""
    expired_at = not_after(certificate)
    if expired_at is not None and expired_at <= datetime.now(UTC):
        raise AccessError(
            f"the client certificate of {whose} expired on {expired_at:%Y-%m-%d %H:%M} UTC; "
            "log in again or renew it"
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
        body = _inside(ssl.PEM_cert_to_DER_cert(first))  # Certificate
        fields = _elements(_inside(body))  # TBSCertificate
        position = 4 if fields[0][0] == 0xA0 else 3  # the version is optional
        kind, time = _elements(fields[position][1])[1]
    except (ValueError, IndexError):
        return None
    return _time(kind, time.decode("ascii"))


def _time(kind: int, text: str) -> datetime | None:
    """A UTCTime (two digits of a year, 1950 to 2049) or a GeneralizedTime."""
    if kind == 0x17:
        text = ("19" if text >= "50" else "20") + text
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _inside(der: bytes) -> bytes:
    return _elements(der)[0][1]


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The elements of a DER sequence: tag and content of each."""
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
