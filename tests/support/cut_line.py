"""A line to a PostgreSQL server that can be cut at the worst moment."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from types import TracebackType

from tests.support.postgres import PostgresServer

_COMMITTED = b"COMMIT\0"
"""In the server's answer to a transaction that is done."""


class Cut(Enum):
    """What happens to the next thing that is said."""

    NOTHING = auto()
    REQUEST = auto()
    """The client's next words do not reach the server; both ends are told that the line is dead."""
    ANSWER = auto()
    """The server commits, and the client never hears of it; both ends are told that the line is dead."""
    SILENTLY = auto()
    """As ANSWER, but the server is not told: it keeps the session, as after the loss of a machine."""


class CutLine:
    """Stands between a store and its server, and carries every byte until it is told to cut."""

    def __init__(self, server: PostgresServer) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="batuta-line-"))
        self.server = server
        self.next = Cut.NOTHING
        self.was_cut = threading.Event()
        self.connections = 0
        """How often somebody has asked for one."""
        self._kept: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.folder / server.socket_name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, schema: str | None = None) -> str:
        return self.server.url(schema, self.folder)

    def forget_sessions(self) -> None:
        """Tells the server at last about the lines that were cut silently."""
        while self._kept:
            _end(self._kept.pop())

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    upstream.connect(str(self.server.folder / self.server.socket_name))
                except OSError:
                    _end(client)
                    _end(upstream)
                    continue
                for source, target, is_client in ((client, upstream, True), (upstream, client, False)):
                    threading.Thread(target=self._carry, args=(source, target, is_client), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_last_word(data, is_client):
                    how, self.next = self.next, Cut.NOTHING
                    if how is Cut.SILENTLY:
                        self._kept.append(source)
                        _end(target)
                        self.was_cut.set()
                        return
                    self.was_cut.set()
                    break
                target.sendall(data)
        if source not in self._kept and target not in self._kept:
            _end(source)
            _end(target)

    def _is_last_word(self, data: bytes, is_client: bool) -> bool:
        if is_client:
            return self.next is Cut.REQUEST
        return self.next in (Cut.ANSWER, Cut.SILENTLY) and _COMMITTED in data

    def close(self) -> None:
        _end(self._listener)
        self.forget_sessions()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> CutLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
