"""The workers of a training, joined by TCP: they sum vectors, and receive the note of rank 0.

A worker learns its rank from torchrun's environment variables; Batuta sets the same ones without torchrun.

The topology is a star: each worker sends its vector to rank 0, which adds them in the order of ranks, so
that the same workers always get the same bits, and sends the sum back. For a model of a few kilobytes a ring
would not be faster. A worker that loses another one exits with an error, and the others lose it in turn: none
waits forever.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from batuta.demo.training import Vector

_PORTS_TO_TRY = 8


class BadEnvironment(Exception):
    """Variables that contradict each other, or are no numbers."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker among `size`. Alone, it needs neither a host nor a port."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"  # where rank 0 is
    ports: tuple[int, ...] = ()  # where it may listen: the first of these that is free
    run: str = ""  # the same for all workers of one start of one job, and for no others
    gpus_each: int = 1

    @property
    def gpus(self) -> int:
        return self.size * self.gpus_each


def worker_from_env(env: Mapping[str, str]) -> Worker:
    """The worker that the environment gives. Without RANK and WORLD_SIZE, a worker is alone."""
    rank, size = _number(env, "RANK", 0), _number(env, "WORLD_SIZE", 1)
    if not 0 <= rank < size:
        raise BadEnvironment(f"RANK is {rank}, but WORLD_SIZE is {size}")
    # torchrun starts a worker for each GPU and says so; without it, one worker has all GPUs of its node.
    by_launcher = "LOCAL_WORLD_SIZE" in env
    gpus_each = 1 if by_launcher else max(1, _number(env, "SKYPILOT_NUM_GPUS_PER_NODE", 1))
    ports: tuple[int, ...] = ()
    if size > 1:
        port = _number(env, "MASTER_PORT", 0)
        if not 0 < port < 65536:
            raise BadEnvironment("WORLD_SIZE is above 1, but MASTER_PORT is not a port")
        # torchrun's own store may listen at MASTER_PORT; torch's workers use it, this one does not.
        shared = by_launcher and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        # Not the next ones, which may well be the MASTER_PORT of other jobs.
        beside = (20_000 + (port + 1_009 * k) % 12_000 for k in range(1, 1 + _PORTS_TO_TRY))
        ports = tuple(beside) if shared else (port,)
    names = ("BATUTA_JOB_ID", "BATUTA_RESTART", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    run = "/".join(env.get(name, "") for name in names)
    return Worker(rank, size, env.get("MASTER_ADDR") or "127.0.0.1", ports, run, gpus_each)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise BadEnvironment(f"{name} is not a number: {text!r}") from None


_HELLO = struct.Struct("!8sII16s")
_HEADER = struct.Struct("!II")
_MAGIC, _WELCOME = b"batuta/1", b"welcome!"
_RETRY_S = 0.05
_SILENCE_S = 2.0  # how long an unknown peer at a port may keep this worker waiting


class PeerLost(Exception):
    """Another worker is gone, or never connected. The message says which one."""


class ProcessGroup:
    """The connections of one worker: rank 0 has one to each other worker, they have one to rank 0."""

    def __init__(self, worker: Worker, links: dict[int, socket.socket], timeout_s: float) -> None:
        self.worker = worker
        self._links = links
        self._timeout_s = timeout_s
        for link in links.values():
            link.settimeout(timeout_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    def sum(self, vector: Vector, note: int = 0) -> tuple[Vector, int]:
        """The sum of all workers' vectors, and the note of rank 0, the same for everyone."""
        if self.worker.rank == 0:
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
        if self.worker.rank:
            return self._receive(0, vector.size)[0]
        for rank in sorted(self._links):
            self._send(rank, vector, 0)
        return vector

    def _send(self, rank: int, vector: Vector, note: int) -> None:
        data = np.ascontiguousarray(vector, dtype="<f8").tobytes()
        with self._naming_peer(rank):
            self._links[rank].sendall(_HEADER.pack(note, len(data)) + data)

    def _receive(self, rank: int, length: int) -> tuple[Vector, int]:
        with self._naming_peer(rank):
            note, size = _HEADER.unpack(_read(self._links[rank], _HEADER.size))
            if size != 8 * length:
                raise PeerLost(f"rank {rank} sent {size} bytes instead of {8 * length}: not the same script")
            data = _read(self._links[rank], size)
        return np.frombuffer(data, dtype="<f8").astype(np.float64), note

    @contextlib.contextmanager
    def _naming_peer(self, rank: int) -> Iterator[None]:
        """Turns a socket error into a PeerLost that names the rank."""
        try:
            yield
        except TimeoutError:
            raise PeerLost(f"rank {rank} has been silent for {self._timeout_s:g} s") from None
        except OSError as error:
            raise PeerLost(f"rank {rank} is gone: {error.strerror or error}") from None


def join_group(worker: Worker, timeout_s: float) -> ProcessGroup:
    """The group, as soon as every worker is in it. Workers may start in any order."""
    if worker.size == 1:
        return ProcessGroup(worker, {}, timeout_s)
    deadline = time.monotonic() + timeout_s
    if worker.rank:
        return ProcessGroup(worker, {0: _connect(worker, deadline, timeout_s)}, timeout_s)
    with _listen(worker, deadline) as server:
        return ProcessGroup(worker, _accept_all(worker, server, deadline, timeout_s), timeout_s)


def _listen(worker: Worker, deadline: float) -> socket.socket:
    """A socket at the first port that is free; a port that an earlier run still has may become so."""
    while True:
        for port in worker.ports:
            try:
                family, _, _, _, address = socket.getaddrinfo(worker.host, port, type=socket.SOCK_STREAM)[0]
                return socket.create_server(address[:2], family=family, backlog=worker.size)
            except OSError as error:
                problem = error
                if error.errno == errno.EADDRNOTAVAIL:
                    # The name of a service in front of this machine: be there at all of its addresses.
                    with contextlib.suppress(OSError):
                        return socket.create_server(("", port), backlog=worker.size)
        if time.monotonic() > deadline:
            raise PeerLost(f"cannot listen at {worker.host}, port {worker.ports[0]}: {problem.strerror or problem}")
        time.sleep(_RETRY_S)


def _accept_all(worker: Worker, server: socket.socket, deadline: float, timeout_s: float) -> dict[int, socket.socket]:
    links: dict[int, socket.socket] = {}
    while len(links) < worker.size - 1:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            link = server.accept()[0]
        except TimeoutError:
            missing = ", ".join(str(rank) for rank in range(1, worker.size) if rank not in links)
            raise PeerLost(f"rank {missing} did not come within {timeout_s:g} s") from None
        rank = _accept(worker, link)
        if rank is None:
            link.close()
            continue
        if rank in links:  # it gave up waiting for our answer and came again
            links[rank].close()
        links[rank] = link
    return links


def _accept(worker: Worker, link: socket.socket) -> int | None:
    """The rank of the peer; None for another program, and for workers of another start of the job."""
    link.settimeout(_SILENCE_S)
    try:
        magic, rank, size, run = _HELLO.unpack(_read(link, _HELLO.size))
        if (magic, size, run) != (_MAGIC, worker.size, _digest(worker)) or not 0 < rank < size:
            return None
        link.sendall(_WELCOME)
    except OSError:
        return None
    return int(rank)


def _connect(worker: Worker, deadline: float, timeout_s: float) -> socket.socket:
    # At a port that can only be rank 0's, a slow answer is still an answer.
    silence_s = _SILENCE_S if len(worker.ports) > 1 else timeout_s
    problem = "no answer"
    while True:
        for port in worker.ports:
            try:
                return _handshake(worker, port, silence_s)
            except OSError as error:
                problem = error.strerror or str(error)
        if time.monotonic() > deadline:
            where = f"{worker.host}, port {worker.ports[0]}"
            raise PeerLost(f"rank 0 did not answer at {where} within {timeout_s:g} s: {problem}")
        time.sleep(_RETRY_S)


def _handshake(worker: Worker, port: int, silence_s: float) -> socket.socket:
    link = socket.create_connection((worker.host, port), timeout=silence_s)
    try:
        if link.getsockname() == link.getpeername():
            raise ConnectionRefusedError("connected to itself")  # TCP allows it, when the port is ours by chance
        link.sendall(_HELLO.pack(_MAGIC, worker.rank, worker.size, _digest(worker)))
        if _read(link, len(_WELCOME)) != _WELCOME:
            raise ConnectionRefusedError("another program listens there")
    except OSError:
        link.close()
        raise
    return link


def _digest(worker: Worker) -> bytes:
    return hashlib.sha256(worker.run.encode()).digest()[:16]


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return bytes(data)
