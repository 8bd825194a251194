"""GPU memory as the kubelet counts it: in whole units."""

from __future__ import annotations

from batuta.backends.kube.names import SHARE_UNIT_MIB


def units_of(memory_mib: int) -> int:
    """How many units hold so much memory."""
    return -(-memory_mib // SHARE_UNIT_MIB)


def whole_units_mib(memory_mib: int) -> int:
    """The memory that a request for so much really gets: it is rounded up to whole units."""
    return units_of(memory_mib) * SHARE_UNIT_MIB
