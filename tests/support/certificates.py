"""Certificates of a server on loopback, and clients that believe in them."""

import ssl
from functools import cache

from batuta.api.http_server import load_certificate
from batuta.backends.kube.tls.authority import Certificates, up_to_date, utc_now

NAMES = ("batuta.batuta-system.svc", "localhost", "127.0.0.1")


def loopback_certificates(which: str = "") -> Certificates:
    """Certificates of an authority; another word, another authority."""
    return _made(which)


@cache
def _made(which: str) -> Certificates:
    return up_to_date(None, NAMES, utc_now())


def server_context(which: str = "") -> ssl.SSLContext:
    made = loopback_certificates(which).server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, made.certificate, made.key)
    return context


def client_context(which: str = "") -> ssl.SSLContext:
    return ssl.create_default_context(cadata=loopback_certificates(which).authority.certificate.decode())
