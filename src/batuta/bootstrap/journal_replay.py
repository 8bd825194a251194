"""`batuta replay`: a span of a journal under other policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batuta.api.plain_json import to_json
from batuta.backends.sim.foresight.history import Span, read_span
from batuta.backends.sim.foresight.replay import replay_span, tell
from batuta.bootstrap.foresight import book_of
from batuta.bootstrap.local_server import DEFAULT_POLICY
from batuta.bootstrap.offline import reading
from batuta.client.errors import ClientError
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.policies.checked import PolicyAnswerError
from batuta.spec.problem import InputError
from batuta.store.journal_reader import JournalReader
from batuta.store.snapshots import Snapshots


def replay(
    home: Path,
    from_s: float,
    to_s: float,
    policies: Sequence[str],
    advance: Callable[[str], None] = lambda policy: None,
) -> dict[str, Any]:
    """What would have happened, beside what really happened and what the model makes of that."""
    with reading(home) as (journal, snapshots):
        begin, seq = world_at(journal, snapshots, from_s)
        span = read_span(begin, _events_after(journal, seq), from_s, to_s)
        control = begin.policy or _first_policy(_events_after(journal, seq))
    if not any(one.ended for one in span.truth.values()):
        raise ClientError("no job ended within this time: there is nothing to compare")
    futures = []
    for policy in dict.fromkeys((control, *policies)):
        advance(policy)
        try:
            futures.append((policy, replay_span(span, book_of(policy))))
        except PolicyAnswerError as error:
            raise InputError.of(str(error)) from error
    return _told(span, control, [asdict(one) for one in tell(span, futures)])


def world_at(journal: JournalReader, snapshots: Snapshots, time_s: float) -> tuple[World, int]:
    """The World as it was at a time, and the number of the last event before that."""
    wanted = journal.seq_at(time_s)
    known = next((seq for seq in snapshots.seqs() if seq <= wanted), 0)
    if not known and journal.first_seq > 1:
        raise ClientError("the journal does not go back so far; its older events have been removed")
    world = snapshots.load(known) if known else World()
    for entry in journal.all_after(known, decisions=False):
        if entry.seq > wanted:
            break
        apply(world, entry.event)
    return world, wanted


def _first_policy(events: Iterator[ev.Event]) -> str:
    """Who decided first, where the span reaches back to before that."""
    return next((event.policy for event in events if isinstance(event, ev.PolicySet)), DEFAULT_POLICY)


def _events_after(journal: JournalReader, seq: int) -> Iterator[ev.Event]:
    return (entry.event for entry in journal.all_after(seq, decisions=False))


def _told(span: Span, control: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    told = {
        "from_s": span.from_s,
        "to_s": span.to_s,
        "control": control,
        "jobs": len(span.truth),
        "assumes": [
            *span.notes,
            f"{control} is replayed too: how far that is from what really happened is the model's error",
        ],
        "rows": rows,
    }
    plain: dict[str, Any] = json.loads(to_json(told))
    return plain
