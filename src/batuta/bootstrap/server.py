"""`batuta up`: a server that listens, until it is told to end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from batuta.api.app import create_app
from batuta.api.serving import ApiServer
from batuta.bootstrap.local_server import LOOPBACK, Server, UpOptions, built
from batuta.core.idle import IdleRules
from batuta.core.idle_wish import IdleAction
from batuta.engine.retention import Keep
from batuta.spec.problem import InputError

DEFAULT_PORT = 7077

__all__ = ["DEFAULT_PORT", "Keep", "Server", "UpOptions", "idle_rules", "serve"]


def idle_rules(after_s: float, action: str) -> IdleRules:
    """What is done about idle jobs, from the words of the command line."""
    return IdleRules(after_s, IdleAction(action))


def serve(options: UpOptions, ready: Callable[[Server], None] | None = None) -> int:
    """Runs a server until it is told to end; returns the exit code. Jobs go on, unless `batuta down` says no.

    `ready` is called when requests would be answered.
    """
    with built(options) as server:
        listener = _listen(options.listen, options.port)
        server.url = f"http://{_host_in_url(options.listen)}:{listener.getsockname()[1]}"
        http = _HttpServer(create_app(server.parts), lambda: _now_ready(server, ready))
        server.ask_to_end = http.end
        server.service.on_death = lambda error: _engine_died(server, error)
        server.service.start()
        http.run(sockets=[listener])
        server.log.info("ending", keep_jobs=server.keep_jobs)
        if server.service.failure is not None:
            return 1
        if server.keep_jobs:
            _tell_what_goes_on(server)
        return 0


class _HttpServer(ApiServer):
    """Ends at SIGINT and SIGTERM as at any other wish to end, without raising them again."""

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(app)
        self._ready = ready

    def end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _now_ready(server: Server, ready: Callable[[Server], None] | None) -> None:
    _write_server_file(server)
    server.log.info("serving", url=server.url, pid=os.getpid())
    if ready is not None:
        ready(server)


def _tell_what_goes_on(server: Server) -> None:
    """Who presses Ctrl-C may think that all of it ends."""
    with server.service.reading() as (world, _):
        running = sum(placement is not None for placement in world.jobs.placements)
    if running:
        jobs = "1 job runs" if running == 1 else f"{running} jobs run"
        sys.stderr.write(f"{jobs} on, for the next `batuta up` to take over; `batuta down` stops jobs too\n")


def _engine_died(server: Server, error: BaseException) -> None:
    """A server without an engine is of no use: it ends, and a new one finds everything in the journal."""
    server.log.error("the engine has died", exc_info=error)
    sys.stderr.write(f"the engine has died: {error!r}; see {server.state.path / 'server.log'}\n")
    if server.ask_to_end is not None:
        server.ask_to_end()


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port that was asked for; without one, the usual or any other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
        except OSError as error:
            listener.close()
            if port is None and wanted:
                continue
            raise InputError.of(
                f"cannot listen at {host}:{wanted}: {error.strerror}", fix="choose another --port or --listen"
            ) from error
        listener.listen(1024)
        listener.set_inheritable(False)
        return listener
    raise AssertionError("port 0 is always there")


def _host_in_url(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return LOOPBACK if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _write_server_file(server: Server) -> None:
    """Says where the server is to be found, for commands on this machine."""
    facts = {"url": server.url, "pid": os.getpid(), "started_s": server.parts.started_s}
    path = server.state.path / "server.json"
    draft = path.with_name(f".server.json.{secrets.token_hex(4)}")
    draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)
