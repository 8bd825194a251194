"""Addresses of nodes that are all slices of this machine.

Each node has a loopback address of its own, 127.66.x.y: scripts that look up a node by its address, or list
nodes in a dict, see as many nodes as there are. Linux answers on all of 127.0.0.0/8 unasked. (Not 127.0.1.1,
which is what Debian calls the machine itself.) Where only 127.0.0.1 works, as on macOS, all nodes have that.

A server that listens on all addresses, as torchrun's rendezvous does, is reached at any of them.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence

SHARED = "127.0.0.1"
_PER_BLOCK = 254
_MOST_NODES = 256 * _PER_BLOCK


def node_address(index: int) -> str:
    """The address of a node; the first one has index 0."""
    if not 0 <= index < _MOST_NODES:
        raise ValueError(f"node index must be within 0..{_MOST_NODES - 1}, found {index}")
    if not _has_many_loopbacks():
        return SHARED
    block, last = divmod(index, _PER_BLOCK)
    return f"127.66.{block}.{last + 1}"


def node_addresses(indices: Sequence[int]) -> list[str]:
    """The addresses of a job's nodes by rank: `SKYPILOT_NODE_IPS`. The first is its `MASTER_ADDR`."""
    return [node_address(index) for index in indices]


@functools.cache
def _has_many_loopbacks() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.66.0.1", 0))
        except OSError:
            return False
    return True
