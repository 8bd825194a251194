"""The guard rail: how much of a pool may be out of service without a human's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from batuta.core.cluster import NodeName
from batuta.core.health_record import WHOLE_NODE, Target


class Member(NamedTuple):
    """A node, as far as its pool is concerned."""

    gpus: int
    pool: str


def gpus_out(members: Mapping[NodeName, Member], out: Iterable[Target], pool: str) -> int:
    """How many GPUs of a pool these targets are; one of a node that is out as a whole counts once."""
    found: set[tuple[NodeName, int]] = set()
    for target in out:
        member = members[target.node]
        if member.pool == pool:
            gpus = range(member.gpus) if target.gpu == WHOLE_NODE else (target.gpu,)
            found.update((target.node, gpu) for gpu in gpus)
    return len(found)


def has_room(members: Mapping[NodeName, Member], out: Iterable[Target], target: Target, share: float) -> bool:
    """Whether a target may be taken out as well.

    One target may always, or in a small pool nothing ever could be; a share of 0 says that nothing may.
    """
    if share <= 0.0:
        return False
    pool, out = members[target.node].pool, tuple(out)
    before, after = gpus_out(members, out, pool), gpus_out(members, (*out, target), pool)
    total = sum(member.gpus for member in members.values() if member.pool == pool)
    # The tiny part more: 0.3 of 10 GPUs are 3, whatever binary fractions say.
    return before in {0, after} or after <= share * total + 1e-9
