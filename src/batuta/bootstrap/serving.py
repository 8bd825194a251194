"""What all processes of Batuta that serve have in common: signals, sockets, probes and metrics, plain logs.

Light to import: an agent that serves no metrics needs no HTTP server.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import stat
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batuta.backends.local.tenants import check_unexchangeable
from batuta.spec.problem import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_MOST_DESCRIPTORS: Final = 1 << 20
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


def call_at_signals(end: Callable[[], None]) -> None:
    """Calls `end` from the running event loop at SIGINT and SIGTERM. Only the main thread of a process gets signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)


def listen(host: str, port: int, fix: str) -> socket.socket:
    """A socket that listens, or an InputError: a port that is taken is found out before anything else is done."""
    # asyncio turns off Nagle's algorithm only where the protocol is stated. With it, each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError.of(f"cannot listen at {host}:{port}: {error.strerror}", fix=fix) from error
    listener.listen(1024)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A unix socket that every user of this machine may connect to, or an InputError.

    Only root and this user may be able to put another one in its place: clients trust what listens there.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_unexchangeable(path, f"--socket {path}", "--socket /run/batuta/batuta.sock")
        if path.parent.stat().st_mode & 0o022:  # sticky, so it passed: before it is made, any user could make another
            raise InputError.of(
                f"--socket {path}: other users can write to {path.parent}, and could put a socket of theirs there",
                fix="a folder of root's with mode 755, as in --socket /run/batuta/batuta.sock",
            )
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise InputError.of(f"--socket {path}: something else is there", fix="choose another path")
            with socket.socket(socket.AF_UNIX) as trial, suppress(ConnectionRefusedError):
                trial.connect(str(path))
                raise InputError.of(f"--socket {path}: another server listens there", fix="choose another path")
            path.unlink()  # of a server that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o666)
    except OSError as error:
        raise InputError.of(
            f"cannot listen at {path}: {error.strerror or error}", fix="choose another --socket"
        ) from error
    listener.listen(1024)
    return listener


def raise_descriptor_limit() -> int | None:
    """Raises the soft limit on open files to the hard one; returns what it was, None where there is none.

    What this process starts for users should have the former limit again: some programs go through all descriptors
    that they may have, and `select` knows the first 1024 alone.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a lower limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


class ProbesApp:
    """An ASGI application that answers probes, and metrics by a function; everything else is for another."""

    def __init__(
        self,
        trouble: Callable[[], str],
        metrics: Callable[[Scope], Awaitable[str]],
        find_app: Callable[[], Awaitable[ASGIApp]],
        unready: Callable[[], str] = str,
    ) -> None:
        """`trouble` says what is wrong, `unready` why it cannot be asked; empty when nothing is."""
        self._probes = {"/healthz": trouble, "/readyz": unready}
        self._metrics, self._find_app = metrics, find_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse, Response

        if scope["type"] != "http":
            return
        match scope["path"]:
            case "/healthz" | "/readyz" as probe:
                trouble = self._probes[probe]()
                app: ASGIApp = PlainTextResponse(f"{trouble or 'ok'}\n", 503 if trouble else 200)
            case "/metrics":
                app = Response(await self._metrics(scope), media_type=_METRICS)
            case _:
                app = await self._find_app()
        await app(scope, receive, send)


def log_plainly() -> None:
    """Lines on stderr, for processes that have no engine."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
