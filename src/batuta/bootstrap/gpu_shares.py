"""Holds the jobs of local mode to their shares of a card: each starts with the share library and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batuta.backends.local.equipment import Seat
from batuta.core.job import Share
from batuta.gpu.share.build import share_library
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, write_limits
from batuta.gpu.share.preload import share_environment

_LONGEST_NAME = 63


class GpuShares:
    """Writes limits for replicas that have a part of a card."""

    def __init__(self, cards: Path) -> None:
        """`cards` is a folder in which replicas on one card agree on who may have how much of its time."""
        self._cards = cards
        self._library: Path | None = None

    def build(self) -> None:
        """Compiles the library, which takes seconds the first time; InputError where that cannot be."""
        self._library = share_library()

    def hold(self, seat: Seat, uuid: str, env: Mapping[str, str]) -> dict[str, str]:
        """`env`, in which a replica gets no more than its share; as it was for one that has whole GPUs."""
        if self._library is None or seat.job.share is None:
            return dict(env)
        self._cards.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = seat.folder / "gpu-limits"
        limits = ShareLimits(
            seat.run_id[-_LONGEST_NAME:],
            seat.folder / "gpu-region",
            (_limit(uuid, seat.job.share),),
            self._cards,
        )
        write_limits(path, limits)
        return {**env, **share_environment(path, self._library, env)}


def _limit(uuid: str, share: Share) -> DeviceLimit:
    """A share without a word on compute competes for the card's time with the others, by equal weight."""
    percent = share.compute_percent or None
    return DeviceLimit(
        uuid,
        memory_mib=share.memory_mib or None,
        compute_percent=None if share.soft else percent,
        soft_compute_percent=percent if share.soft else None,
    )
