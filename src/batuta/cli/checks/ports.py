"""The port at which a server listens, or would."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from batuta.cli.checks.finding import Finding, error, note, ok, warning
from batuta.client.address import read_server_file

USUAL_PORT = 7077
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_WITHIN_S = 2.0


def check_ports(home: Path, usual: int = USUAL_PORT) -> Iterator[Finding]:
    """Whether somebody listens where the server says; where there is none, whether its usual port is free."""
    from batuta.bootstrap.local_facts import server_pid

    told = read_server_file(home).get("url")
    parts = urlsplit(str(told)) if told else None
    if parts is None or not parts.hostname or not parts.port:
        yield _usual(usual)
        return
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(parts.hostname, parts.hostname)
    try:
        socket.create_connection((host, parts.port), _WITHIN_S).close()
    except OSError as trouble:
        # A server that was killed leaves its address behind.
        worse = warning if server_pid(home) is None else error
        yield worse("port", f"nobody listens at {told}: {trouble.strerror or trouble}", "batuta up")
        return
    yield ok("port", f"{parts.port} answers")
    if parts.hostname not in _LOOPBACK:
        yield warning(
            "port",
            f"the server listens at {parts.hostname}, and what is said there is not encrypted",
            "only in a network that you trust, or behind a proxy with TLS",
        )


def _usual(port: int) -> Finding:
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("127.0.0.1", port))
        except OSError as trouble:
            if trouble.errno != errno.EADDRINUSE:
                return warning("port", f"{port} cannot be had: {trouble.strerror}", "batuta up --port N")
            return note(
                "port", f"{port} is another program's", "batuta up takes a free one; --port N chooses one"
            )
    return ok("port", f"{port} is free")
