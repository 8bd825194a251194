"""Which GPU of which node a line of the kernel log is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batuta.core.cluster import NodeName
from batuta.core.health_rules import Source
from batuta.gpu.health.kernel_line import KernelError, short_address

_HOST: Final = re.compile(r"(?:^|\s)(?P<host>[\w.-]{1,253})\s+kernel:")


class Place(NamedTuple):
    """A GPU, or a node."""

    node: NodeName
    gpu: int | None


class Places:
    """The addresses of all GPUs. A log of several machines says in each line whose it is, as syslog does."""

    def __init__(self, addresses: Mapping[NodeName, Sequence[str]], *, one_machine: bool = False) -> None:
        """`addresses`: by node those of its GPUs, in their order, however they are spelt.

        `one_machine`: all nodes are parts of one machine, whose switches they share.
        """
        self._nodes = tuple(addresses)
        self._one_machine = one_machine or len(self._nodes) == 1
        self._gpus: dict[str, list[Place]] = {}
        for node, own in addresses.items():
            for gpu, address in enumerate(own):
                self._gpus.setdefault(short_address(address), []).append(Place(node, gpu))

    def of(self, line: str, error: KernelError) -> tuple[Place, ...]:
        """What it is about; nothing where that is none of ours, or could be several.

        What a switch tells is about all nodes of its machine.
        """
        named = _HOST.search(line)
        node = named["host"].split(".")[0] if named is not None else ""
        is_known = node in self._nodes
        if error.source is Source.SXID:
            told = (node,) if is_known else self._nodes if self._one_machine else ()
            return tuple(Place(name, None) for name in told)
        found = [place for place in self._gpus.get(error.pci, ()) if not is_known or place.node == node]
        return tuple(found) if len(found) == 1 else ()
