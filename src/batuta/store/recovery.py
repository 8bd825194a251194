"""The World as the journal tells it: the last snapshot, and every event since."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from batuta.core.apply import apply
from batuta.core.world import World
from batuta.store.errors import RecoveryError
from batuta.store.journal_reader import JournalReader
from batuta.store.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found, and how."""

    world: World
    seq: int
    snapshot_seq: int
    """The snapshot that it began with; 0 when everything was replayed."""
    unusable: tuple[str, ...] = ()
    """Snapshots that could not be read, and why."""


def recover(journal: JournalReader, snapshots: Snapshots) -> Recovered:
    """Rebuilds the World. What really runs is for the backend to say, which sees it as further events."""
    was_on = gc.isenabled()
    # Nearly all that is made here stays, and the collector would go through it again and again.
    gc.disable()
    try:
        return _recover(journal, snapshots)
    finally:
        if was_on:
            gc.enable()


def _recover(journal: JournalReader, snapshots: Snapshots) -> Recovered:
    loaded = snapshots.load_latest()
    world, seq = loaded.world, loaded.seq
    for entry in journal.all_after(seq, decisions=False):
        if entry.seq != seq + 1:
            raise RecoveryError(f"the journal has no event {seq + 1}, the next is {entry.seq}")
        try:
            apply(world, entry.event)
        except Exception as error:
            raise RecoveryError(f"event {entry.seq} does not fit what came before it: {error!r}") from error
        seq = entry.seq
    return Recovered(world, seq, loaded.seq, loaded.unusable)
