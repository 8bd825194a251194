"""Free TCP ports for the jobs of this machine: MASTER_PORT, rendezvous and the like.

A port that is only looked up is free until somebody else takes it. Two things make that rare: a port is
reserved for its job as long as that runs, and it lies outside of the range from which the kernel serves
everybody who asks for any port. It is not held by a socket: a program that binds without SO_REUSEADDR could
not have it then.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 20_000, 65_535
_LEAST_ROOM = 1_000


class NoPortFree(Exception):
    """Every port is in use or reserved."""


class PortReservations:
    """Which job has which ports. May be used from any thread."""

    def __init__(self, ports: range | None = None, seed: int | None = None) -> None:
        self._ports = ports or default_ports()
        self._mutex = threading.Lock()
        self._by_owner: dict[str, set[int]] = {}
        self._taken: set[int] = set()
        # Servers of several users on one machine begin at different places.
        self._next = random.Random(os.getpid() if seed is None else seed).randrange(len(self._ports))

    def reserve(self, owner: str, count: int = 1) -> list[int]:
        """Ports that nobody listens at, for as long as the owner has not released them.

        They are handed out in turn, so that a job that starts again is not bothered by its old connections.
        """
        with self._mutex:
            found: list[int] = []
            for _ in range(len(self._ports)):
                if len(found) == count:
                    break
                port = self._ports[self._next]
                self._next = (self._next + 1) % len(self._ports)
                if port not in self._taken and is_free(port):
                    found.append(port)
            if len(found) < count:
                raise NoPortFree(f"{count} wanted of {self._ports.start}–{self._ports.stop - 1}")
            self._add(owner, found)
            return found

    def claim(self, owner: str, ports: Iterable[int]) -> None:
        """Notes the ports of a job that has been running since before this server."""
        with self._mutex:
            self._add(owner, ports)

    def release(self, owner: str) -> None:
        with self._mutex:
            self._taken -= self._by_owner.pop(owner, set())

    def _add(self, owner: str, ports: Iterable[int]) -> None:
        ports = set(ports)
        self._by_owner.setdefault(owner, set()).update(ports)
        self._taken |= ports


def default_ports() -> range:
    """The wider part of 20000…65535 below or above the kernel's own range."""
    try:
        low, high = map(int, _EPHEMERAL.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = 49_152, 65_535  # IANA's, and macOS's
    below, above = range(_LOWEST, max(low, _LOWEST)), range(min(high, _HIGHEST) + 1, _HIGHEST + 1)
    widest = max(below, above, key=len)
    return widest if len(widest) >= _LEAST_ROOM else range(_LOWEST, _HIGHEST + 1)


def is_free(port: int) -> bool:
    """Whether a job could listen at this port now, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no such family here
        with probe:
            try:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
            except OSError as problem:
                if family == socket.AF_INET or problem.errno == errno.EADDRINUSE:
                    return False
    return True
