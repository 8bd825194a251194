"""Addresses and free TCP ports for the nodes and jobs of local mode, which are all on this machine.

Each node has a loopback address of its own, 127.66.x.y: scripts that look up a node by its address, or list
nodes in a dict, see as many nodes as there are. Linux answers on all of 127.0.0.0/8 unasked. (Not 127.0.1.1,
which is what Debian calls the machine itself.) Where only 127.0.0.1 works, as on macOS, all nodes have that.
A server that listens on all addresses, as torchrun's rendezvous does, is reached at any of them.

A port that is only looked up is free until another program takes it. Two things make that rare: a port is
reserved for its job as long as the job runs, and it lies outside of the kernel's ephemeral range. No socket
holds it: a program that binds without SO_REUSEADDR could not have it then.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import socket
import threading
from pathlib import Path

SHARED_ADDRESS = "127.0.0.1"
_PER_BLOCK = 254
_MOST_NODES = 256 * _PER_BLOCK


def node_address(index: int) -> str:
    if not 0 <= index < _MOST_NODES:
        raise ValueError(f"node index must be within 0..{_MOST_NODES - 1}, found {index}")
    if not _has_many_loopbacks():
        return SHARED_ADDRESS
    block, last = divmod(index, _PER_BLOCK)
    return f"127.66.{block}.{last + 1}"


@functools.cache
def _has_many_loopbacks() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.66.0.1", 0))
        except OSError:
            return False
    return True


_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 20_000, 65_535
_LEAST_ROOM = 1_000


class NoPortFree(Exception):
    """Every port is in use or reserved."""


class PortReservations:
    """Which job has which port. May be used from any thread."""

    def __init__(self, ports: range | None = None, seed: int | None = None) -> None:
        self._ports = ports or default_ports()
        self._mutex = threading.Lock()
        self._by_owner: dict[str, int] = {}
        # Servers of several users on one machine begin at different places.
        self._next = random.Random(os.getpid() if seed is None else seed).randrange(len(self._ports))

    def reserve(self, owner: str) -> int:
        """A port at which no program listens, for as long as the owner has not released it.

        Ports are handed out in turn, so that a job that starts again is not bothered by its old connections.
        """
        with self._mutex:
            for _ in range(len(self._ports)):
                port = self._ports[self._next]
                self._next = (self._next + 1) % len(self._ports)
                if port not in self._by_owner.values() and is_free(port):
                    self._by_owner[owner] = port
                    return port
        raise NoPortFree(f"none of {self._ports.start}–{self._ports.stop - 1} is free")

    def claim(self, owner: str, port: int) -> None:
        """Notes the port of a job that has been running since before this server."""
        with self._mutex:
            self._by_owner[owner] = port

    def release(self, owner: str) -> None:
        with self._mutex:
            self._by_owner.pop(owner, None)


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
