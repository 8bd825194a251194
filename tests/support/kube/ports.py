"""Free ports, from a range that outgoing connections do not use."""

import random
import socket

# Below what Linux and macOS give to outgoing connections: a port stays free while its server is stopped.
_RANGE = range(20_000, 30_000)
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Returns so many different ports that nobody listens on now."""
    # Two test processes that are started together must not walk the same way.
    candidates = random.SystemRandom().sample(_RANGE, _TRIES)
    found: list[int] = []
    for port in candidates:
        if len(found) < count and _is_free(port):
            found.append(port)
    if len(found) < count:
        raise RuntimeError(f"no {count} free ports among {_TRIES} between {_RANGE.start} and {_RANGE.stop}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))  # on every address at once
        except OSError:
            return False
        return True
