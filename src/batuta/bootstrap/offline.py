"""Answers from a journal without its server: forecasts, replays and GPU-time accounts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batuta.api.operations import check_quota
from batuta.api.request_models import WhatIfPost
from batuta.api.responses import to_json
from batuta.api.routes.forecasts import JobLabel, read_hypothesis, view_comparison, view_forecast
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE
from batuta.backends.sim.forecast.forecast import Forecast
from batuta.backends.sim.forecast.queries import Comparison, EtaQuery, Hypothesis, WhatIfQuery
from batuta.backends.sim.forecast.replay import JournalSpan, read_span, replay_span, summarise_replays
from batuta.bootstrap.forecast_process import answer, book_of
from batuta.client.errors import ClientError, UnknownJobError
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.event import JobProgressed, TimePassed, TransitionTimed
from batuta.core.job import Job
from batuta.core.world import World
from batuta.engine.profile import find_policy
from batuta.policies.checked import PolicyAnswerError
from batuta.policies.registry import DEFAULT_POLICY
from batuta.report.gpu_usage import UsageAccounting, UsageReport
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task
from batuta.spec.task_job import check_fits, task_to_job
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import with_class_priority
from batuta.store.codec import decode
from batuta.store.errors import CodecError, StoreError
from batuta.store.journal import PAGE, JournalReader
from batuta.store.snapshots import Snapshots
from batuta.store.store import open_reader, recover


@contextmanager
def reading(home: Path) -> Iterator[tuple[JournalReader, Snapshots]]:
    """The journal of a state directory, which may be in use: nothing is written.

    Beside an operator that keeps it in PostgreSQL the directory has none, and its environment says where.
    """
    path, url = home / "journal.db", os.environ.get(JOURNAL_URL_VARIABLE, "")
    if not path.is_file() and not url:
        raise ClientError(f"{home} has no journal: no server was ever started there")
    try:
        database = open_reader(path if path.is_file() else url)
        try:
            journal = JournalReader(database)
            yield journal, Snapshots(database, journal)
        finally:
            database.close()
    except StoreError as error:
        raise ClientError(str(error)) from error


def stored_world(home: Path) -> World:
    """The World as it was when the last event was written."""
    with reading(home) as (journal, snapshots):
        return recover(journal, snapshots).world


def eta(home: Path, job: str | None, *, expects_arrivals: bool = True) -> dict[str, Any]:
    """As the API answers it."""
    world = stored_world(home)
    if job is not None:
        job = _find(world, job)
    policy = world.policy or DEFAULT_POLICY
    told = answer(world, EtaQuery(world.now_s, policy, expects_arrivals))
    assert isinstance(told, Forecast)
    seen = {one.id: JobLabel(one.name, world.state_of(row).value) for row, one in enumerate(world.jobs.jobs)}
    return _plain(view_forecast(told, seen, policy, job))


def what_if(home: Path, body: dict[str, Any]) -> dict[str, Any]:
    """As the API answers it. InputError with all that is wrong with the question."""
    world = stored_world(home)
    try:
        post = WhatIfPost.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        raise InputError([Problem(f"{'.'.join(map(str, one['loc']))}: {one['msg']}") for one in found]) from None
    wrong, hypothesis = list[Problem](), Hypothesis()
    with _collecting(wrong):
        hypothesis = read_hypothesis(world.fork(), post, _job_of, PathRules(None, Path.home()))
    with _collecting(wrong):
        if post.policy is not None:
            find_policy(post.policy)
    if wrong:
        raise InputError(wrong)
    policy = world.policy or DEFAULT_POLICY
    question = WhatIfQuery(world.now_s, policy, post.policy or "", hypothesis, post.expects_arrivals, seed=post.seed)
    told = answer(world, question)
    assert isinstance(told, Comparison)
    names = {job.id: job.name for job in (*world.jobs.jobs, *hypothesis.jobs)}
    return _plain(view_comparison(told, names, question))


@contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems += error.problems


def _plain(shown: dict[str, Any]) -> dict[str, Any]:
    """As it would come through the API: what JSON has no word for is null."""
    plain: dict[str, Any] = json.loads(to_json(shown))
    return plain


def _find(world: World, wanted: str) -> str:
    found = [job.id for job in world.jobs.jobs if wanted in (job.id, job.name)]
    if not found:
        raise UnknownJobError(f"there is no job {wanted} that is not over")
    return wanted if wanted in found else found[-1]


def _job_of(world: World, task: Task, number: int) -> Job:
    task = with_class_priority(task, world.quota.priority_classes)
    job = task_to_job(task, f"new-{number}", world.now_s, sequence=number, nodes=world.nodes.nodes)
    if problems := check_fits(job, world.nodes.nodes) + check_quota(job, world.effective_quota):
        raise InputError(problems)
    return job


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
    return _told(span, control, [asdict(one) for one in summarise_replays(span, futures)])


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


def _told(span: JournalSpan, control: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    error = f"{control} is replayed too: how far that is from what really happened is the model's error"
    told = {"from_s": span.from_s, "to_s": span.to_s, "control": control, "jobs": len(span.truth)}
    return _plain({**told, "assumes": [*span.notes, error], "rows": rows})


WEEK_S = 7 * 86_400.0
_OF_NO_MATTER = tuple(f'"type":"{kind.__name__}"' for kind in (JobProgressed, TransitionTimed))
"""Nearly all of a journal, and none of it says who has which GPUs."""
_HEAD = 48  # characters of an event's text within which its type stands


def account(
    journal: JournalReader, snapshots: Snapshots, from_s: float | None, to_s: float | None, now_s: float
) -> UsageReport:
    """Where the GPU time went, from one time to another; without them, the last week up to now.

    Reads the journal from the last snapshot before that on, or all of it: not for the engine's thread.
    """
    to_s = now_s if to_s is None else min(to_s, now_s)
    from_s = to_s - WEEK_S if from_s is None else from_s
    if not from_s < to_s:
        raise InputError.of(
            f"the time from {_shown(from_s)} to {_shown(to_s)} is empty", fix="an earlier --from, a later --to"
        )
    world, seq = _world_before(journal, snapshots, from_s)
    begin_s = world.now_s if seq else _first_time_s(journal)
    notes = []
    if math.isinf(begin_s):
        notes.append("the journal is empty")
    elif begin_s > from_s:
        notes.append(f"the journal says nothing of the time before {_shown(begin_s)}")
    ledger = UsageAccounting(world, max(from_s, min(begin_s, to_s)), to_s)
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


def _live_through(ledger: UsageAccounting, world: World, journal: JournalReader, seq: int, to_s: float) -> None:
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


def account_at(home: Path, from_s: float | None, to_s: float | None) -> UsageReport:
    """The same of a state directory, up to the last event in its journal. Nothing is written."""
    with reading(home) as (journal, snapshots):
        last = journal.read(journal.durable_seq, limit=1, decisions=False)
        now_s = last[0].event.time_s if last else math.inf
        return account(journal, snapshots, from_s, to_s, now_s)


def _shown(time_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_s} s"
