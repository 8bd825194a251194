"""The account of GPU time, from what the journal still has."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from batuta.core.event import JobProgressed, TimePassed, TransitionTimed
from batuta.core.world import World
from batuta.report.waste import Waste
from batuta.report.waste_ledger import WasteLedger
from batuta.spec.problem import InputError
from batuta.store.codec import decode
from batuta.store.errors import CodecError
from batuta.store.journal_reader import PAGE, JournalReader
from batuta.store.snapshots import Snapshots

WEEK_S = 7 * 86_400.0
_OF_NO_MATTER = tuple(f'"type":"{kind.__name__}"' for kind in (JobProgressed, TransitionTimed))
"""Nearly all of a journal, and none of it says who has which GPUs."""
_HEAD = 48
"""Characters of an event's text within which its type stands."""


def account(
    journal: JournalReader, snapshots: Snapshots, from_s: float | None, to_s: float | None, now_s: float
) -> Waste:
    """Where the GPU time went, from one time to another; without them, the last week up to now.

    Reads the journal from the last snapshot before that on, or all of it: not for the engine's thread.
    """
    to_s = now_s if to_s is None else min(to_s, now_s)
    from_s = to_s - WEEK_S if from_s is None else from_s
    if not from_s < to_s:
        raise InputError.of(
            f"the time from {_shown(from_s)} to {_shown(to_s)} is empty",
            fix="an earlier --from, a later --to",
        )
    world, seq = _world_before(journal, snapshots, from_s)
    begin_s = world.now_s if seq else _first_time_s(journal)
    notes = []
    if math.isinf(begin_s):
        notes.append("the journal is empty")
    elif begin_s > from_s:
        notes.append(f"the journal says nothing of the time before {_shown(begin_s)}")
    ledger = WasteLedger(world, max(from_s, min(begin_s, to_s)), to_s)
    _live_through(ledger, world, journal, seq, to_s)
    return ledger.finish(tuple(notes))


def _world_before(journal: JournalReader, snapshots: Snapshots, from_s: float) -> tuple[World, int]:
    """The World that is nearest before a time, and the number of its last event.

    Where the oldest events are gone, the oldest snapshot will have to do, if that is later.
    """
    oldest: tuple[World, int] | None = None
    for seq in snapshots.seqs():
        try:
            world = snapshots.load(seq)
        except CodecError:
            continue
        if world.now_s <= from_s:
            return world, seq
        oldest = world, seq
    if journal.first_seq > 1 and oldest is not None:
        return oldest
    return World(), 0


def _first_time_s(journal: JournalReader) -> float:
    first = journal.read(limit=1, decisions=False)
    return first[0].event.time_s if first else math.inf


def _live_through(ledger: WasteLedger, world: World, journal: JournalReader, seq: int, to_s: float) -> None:
    while page := journal.texts_after(seq, PAGE):
        for _, text in page:
            if any(kind in text[:_HEAD] for kind in _OF_NO_MATTER):
                # Something happened, which is all that plans need to know of it.
                ledger.take(TimePassed(world.now_s))
                continue
            event = decode(text)
            if event.time_s > to_s:
                return
            ledger.take(event)
        seq = page[-1].seq


def account_at(home: Path, from_s: float | None, to_s: float | None) -> Waste:
    """The same of a state directory, up to the last event in its journal. Nothing is written."""
    from batuta.bootstrap.offline import reading

    with reading(home) as (journal, snapshots):
        last = journal.read(journal.durable_seq, limit=1, decisions=False)
        now_s = last[0].event.time_s if last else math.inf
        return account(journal, snapshots, from_s, to_s, now_s)


def _shown(time_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_s} s"
