"""All workers of a training, joined by TCP: they sum vectors, and hear what rank 0 has to say.

A star: every worker sends its vector to rank 0, which adds them in the order of ranks, so that the same
workers always get the same bits, and sends the sum back. For a model of a few kilobytes a ring would not be
faster. Whoever finds another one gone says so and leaves, and the rest find it gone in turn. Nobody waits
forever.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np

from batuta.demo.model import Vector
from batuta.demo.place import Place

_HELLO = struct.Struct("!8sII16s")
_HEADER = struct.Struct("!II")
_MAGIC, _WELCOME = b"batuta/1", b"welcome!"
_RETRY_S = 0.05
_SILENCE_S = 2.0
"""How long a stranger at a port may keep us waiting."""


class PeerLost(Exception):
    """Another worker is gone, or never came. The message says which one."""


class Group:
    """The connections of one worker: rank 0 has one to each other worker, they have one to rank 0."""

    def __init__(self, place: Place, links: dict[int, socket.socket], timeout_s: float) -> None:
        self.place = place
        self._links = links
        self._timeout_s = timeout_s
        for link in links.values():
            link.settimeout(timeout_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    def sum(self, vector: Vector, note: int = 0) -> tuple[Vector, int]:
        """The sum of all workers' vectors, and the note of rank 0, the same for everyone."""
        if self.place.rank == 0:
            total = vector.copy()
            for rank in sorted(self._links):
                total += self._receive(rank, vector.size)[0]
            for rank in sorted(self._links):
                self._send(rank, total, note)
            return total, note
        self._send(0, vector, note)
        return self._receive(0, vector.size)

    def share(self, vector: Vector) -> Vector:
        """Rank 0's vector, for everyone. All bring one of the same length."""
        if self.place.rank:
            return self._receive(0, vector.size)[0]
        for rank in sorted(self._links):
            self._send(rank, vector, 0)
        return vector

    def _send(self, rank: int, vector: Vector, note: int) -> None:
        data = np.ascontiguousarray(vector, dtype="<f8").tobytes()
        with self._telling(rank):
            self._links[rank].sendall(_HEADER.pack(note, len(data)) + data)

    def _receive(self, rank: int, length: int) -> tuple[Vector, int]:
        with self._telling(rank):
            note, size = _HEADER.unpack(_read(self._links[rank], _HEADER.size))
            if size != 8 * length:
                raise PeerLost(f"rank {rank} sent {size} bytes instead of {8 * length}: not the same script")
            data = _read(self._links[rank], size)
        return np.frombuffer(data, dtype="<f8").astype(np.float64), note

    @contextlib.contextmanager
    def _telling(self, rank: int) -> Iterator[None]:
        """Says which worker it was that could not be reached."""
        try:
            yield
        except TimeoutError:
            raise PeerLost(f"rank {rank} has been silent for {self._timeout_s:g} s") from None
        except OSError as error:
            raise PeerLost(f"rank {rank} is gone: {error.strerror or error}") from None


def join(place: Place, timeout_s: float) -> Group:
    """The group, as soon as every worker is in it. Workers may start in any order."""
    if place.size == 1:
        return Group(place, {}, timeout_s)
    deadline = time.monotonic() + timeout_s
    if place.rank:
        return Group(place, {0: _connect(place, deadline, timeout_s)}, timeout_s)
    with _listen(place, deadline) as server:
        return Group(place, _welcome_all(place, server, deadline, timeout_s), timeout_s)


def _listen(place: Place, deadline: float) -> socket.socket:
    """A socket at the first port that is free; a port that an earlier run still has may become so."""
    while True:
        for port in place.ports:
            try:
                family, _, _, _, address = socket.getaddrinfo(place.host, port, type=socket.SOCK_STREAM)[0]
                return socket.create_server(address[:2], family=family, backlog=place.size)
            except OSError as error:
                problem = error
                if error.errno == errno.EADDRNOTAVAIL:
                    # The name of a service in front of this machine: be there at all of its addresses.
                    with contextlib.suppress(OSError):
                        return socket.create_server(("", port), backlog=place.size)
        if time.monotonic() > deadline:
            raise PeerLost(
                f"cannot listen at {place.host}, port {place.ports[0]}: {problem.strerror or problem}"
            )
        time.sleep(_RETRY_S)


def _welcome_all(
    place: Place, server: socket.socket, deadline: float, timeout_s: float
) -> dict[int, socket.socket]:
    links: dict[int, socket.socket] = {}
    while len(links) < place.size - 1:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            link = server.accept()[0]
        except TimeoutError:
            missing = ", ".join(str(rank) for rank in range(1, place.size) if rank not in links)
            raise PeerLost(f"rank {missing} did not come within {timeout_s:g} s") from None
        rank = _welcome(place, link)
        if rank is None:
            link.close()
            continue
        if rank in links:  # it gave up waiting for our answer and came again
            links[rank].close()
        links[rank] = link
    return links


def _welcome(place: Place, link: socket.socket) -> int | None:
    """The rank of who has come; None for strangers, and for workers of another start of the job."""
    link.settimeout(_SILENCE_S)
    try:
        magic, rank, size, run = _HELLO.unpack(_read(link, _HELLO.size))
        if (magic, size, run) != (_MAGIC, place.size, _digest(place)) or not 0 < rank < size:
            return None
        link.sendall(_WELCOME)
    except OSError:
        return None
    return int(rank)


def _connect(place: Place, deadline: float, timeout_s: float) -> socket.socket:
    # At a port that can only be rank 0's, a slow answer is still an answer.
    silence_s = _SILENCE_S if len(place.ports) > 1 else timeout_s
    problem = "no answer"
    while True:
        for port in place.ports:
            try:
                return _knock(place, port, silence_s)
            except OSError as error:
                problem = error.strerror or str(error)
        if time.monotonic() > deadline:
            where = f"{place.host}, port {place.ports[0]}"
            raise PeerLost(f"rank 0 did not answer at {where} within {timeout_s:g} s: {problem}")
        time.sleep(_RETRY_S)


def _knock(place: Place, port: int, silence_s: float) -> socket.socket:
    link = socket.create_connection((place.host, port), timeout=silence_s)
    try:
        if link.getsockname() == link.getpeername():
            raise ConnectionRefusedError(
                "connected to itself"
            )  # TCP allows it, when the port is ours by chance
        link.sendall(_HELLO.pack(_MAGIC, place.rank, place.size, _digest(place)))
        if _read(link, len(_WELCOME)) != _WELCOME:
            raise ConnectionRefusedError("somebody else is there")
    except OSError:
        link.close()
        raise
    return link


def _digest(place: Place) -> bytes:
    return hashlib.sha256(place.run.encode()).digest()[:16]


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return bytes(data)
