"""What must be true when a busy time is over, found out from four sides: the answers that users got, the
records that the jobs kept themselves, the journal, and the files and processes of this machine.
"""

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from batuta.apitypes.resources import Job
from batuta.backends.local import processes
from batuta.backends.local.context import gpus_of
from batuta.backends.local.job_files import JobFiles, jobs_with_runs, read_record
from batuta.backends.local.logs import ReplicaLog
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.plan import Migrate, Preempt, Resize, Start
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.policies.registry import DEFAULT_POLICY
from batuta.store.snapshots import encode_world
from batuta.store.store import SqliteStore
from tests.support.busy_jobs import BAD_SETUP, HOPELESS, TRAINER, BusyJob, Note, read_notes, read_numbered
from tests.support.invariants import check_invariants
from tests.support.memory_journal import ReplayDiffersError, replay

_SHORTAGES = tuple(map(os.strerror, (errno.ENOSPC, errno.EMFILE)))
GAP = "bytes of output lost"
_NOT_STARTED = re.compile(rf"\[batuta: cannot start: .*: ({'|'.join(_SHORTAGES)})\]")
_LOGGED_WITHIN_S = 2.0
"""So long at most a runner takes on a busy machine to write a line to the log."""
Periods = Sequence[tuple[float, float]]
_MOVES = (Preempt, Resize, Migrate)


@dataclass(frozen=True)
class Course:
    """One job from all sides."""

    job: BusyJob
    id: str
    told: Job
    """By the server, at the end."""
    notes: list[Note]
    """By the job itself."""
    files: JobFiles
    starts: int = 0
    moves: int = 0
    """Commands that took it off its GPUs, by the journal."""
    interruptions: list[ev.JobInterrupted] = field(default_factory=list)
    was_cancelled: bool = False

    def count(self, word: str, *rest: str) -> int:
        return sum(note.word == word and note.rest[: len(rest)] == rest for note in self.notes)

    @property
    def runs(self) -> list[int]:
        return sorted({note.run for note in self.notes if note.word == "begin"})

    def __str__(self) -> str:
        return f"{self.job.name} ({self.job.kind}, job {self.id}, {self.told.state})"


def courses(
    jobs: Sequence[BusyJob],
    ids: dict[str, str],
    cancelled: set[str],
    told: dict[str, Job],
    events: Sequence[ev.Event],
    home: Path,
    seen: Path,
) -> list[Course]:
    """All that is known of each job that was accepted and not lost."""
    starts, moves = Counter[str](), Counter[str]()
    interruptions: dict[str, list[ev.JobInterrupted]] = {}
    for event in events:
        if isinstance(event, ev.Planned):
            for command in event.plan.commands:
                starts[command.job] += isinstance(command, Start)
                moves[command.job] += isinstance(command, _MOVES)
        elif isinstance(event, ev.JobInterrupted):
            interruptions.setdefault(event.job, []).append(event)
    return [
        Course(
            job,
            job_id,
            told[job_id],
            read_notes(seen, job),
            JobFiles(home, job_id),
            starts[job_id],
            moves[job_id],
            interruptions.get(job_id, []),
            job.name in cancelled,
        )
        for job in jobs
        if (job_id := ids.get(job.name, "")) in told
    ]


def what_is_wrong_with(course: Course, *, after_faults: bool = False, full_s: Periods = ()) -> Iterator[str]:
    """Every way in which a job's course is not as it should be, as sentences.

    `after_faults`: the machine was short of something at times, so starts may have been tried again for that.
    `full_s`: from when to when the disk was full.
    """
    yield from _end(course)
    yield from _alone(course)
    yield from _runs(course, after_faults=after_faults)
    if course.job.has_numbered_lines:
        yield from _log(course, full_s)


def _end(course: Course) -> Iterator[str]:
    """It ended as it should."""
    expected = {course.job.ends} | ({"CANCELLED"} if course.was_cancelled else set())
    if course.told.state not in expected:
        yield f"it should have become {' or '.join(sorted(expected))}: {course.told.detail}"
    if course.told.state == "SUCCEEDED" and course.job.kind != TRAINER and not course.count("end", "0"):
        yield "it is said to have succeeded, but never came to its end"
    if course.told.state == "SUCCEEDED" and course.job.kind == TRAINER:
        result = course.files.read_result()
        if result is None or json.loads(result)["steps"] != course.job.lines:
            yield f"it should have trained {course.job.lines} steps: {result}"
    if course.told.state == "CANCELLED" and not course.was_cancelled:
        yield "it was cancelled, which nobody had asked for"


def _alone(course: Course) -> Iterator[str]:
    """It never ran twice at once, and shared no GPU."""
    for note in course.notes:
        if note.word in ("twice", "overbooked"):
            what = " ".join((note.word, *note.rest))
            yield f"rank {note.rank} of run {note.run} at {note.time_s:.3f}: {what}"
    begun = Counter((note.run, note.rank) for note in course.notes if note.word == "begin")
    for (run, rank), times in begun.items():
        if times > 1:
            yield f"rank {rank} of run {run} was begun {times} times"


def _runs(course: Course, *, after_faults: bool) -> Iterator[str]:
    """It ran as often as the decisions and its own failures say, and failures were counted once each."""
    job, failed = course.job, course.count("end", "7")
    for one in course.interruptions:
        if one.exit_code is None and not (after_faults and any(text in one.detail for text in _SHORTAGES)):
            yield f"it was interrupted for no fault of its own: {one.detail}"
    # A server that is killed between two replicas' starts begins again; one replica is started or it is not.
    if job.nodes == 1 and not job.is_resizable and len(course.runs) > 1 + course.moves + failed:
        yield f"runs {course.runs} after {course.starts} starts, {course.moves} moves and {failed} failures"
    if job.kind == HOPELESS and course.told.state == "FAILED":
        most = job.restarts + 1
        if not most <= failed <= most + course.moves:
            yield f"it failed {failed} times and should have been given up after {most}"
    set_up = course.count("setup-done")
    if job.setup and job.kind != BAD_SETUP and course.moves == 0 and set_up > job.nodes:
        yield f"its setup was done {set_up} times on at most {job.nodes} nodes"
    if job.kind == BAD_SETUP and course.count("ran"):
        yield "it ran after a setup that failed"


def _log(course: Course, full_s: Periods) -> Iterator[str]:
    """Each line that was printed is in the log once, in order of runs and numbers, and whole.

    While the disk is full output is lost. Lines are missing between others only where the log says so, and any line
    only if the disk was full when it was printed or just after.
    """
    logged: dict[tuple[int, int], list[int]] = {}
    for rank in course.files.ranks():
        log = ReplicaLog(course.files.log(rank))
        text = b"".join(piece.data for piece in log.pieces(0, log.span().end)).decode(errors="replace")
        yield from (f"the log of rank {rank} has {what}" for what in _lines(text, rank, logged, full_s))
    excused = set[tuple[int, int]]()
    for note in course.notes:
        key = (note.run, note.rank)
        if note.word != "line" or int(note.rest[0]) in logged.get(key, ()):
            continue
        if any(begun_s <= note.time_s + _LOGGED_WITHIN_S and note.time_s <= over_s for begun_s, over_s in full_s):
            excused.add(key)
        else:
            yield f"line {note.rest[0]} of run {note.run} of rank {note.rank} is not in the log ({note.time_s:.3f})"
    if course.told.state == "SUCCEEDED" and not course.job.is_resizable and course.runs:
        for rank in range(course.job.nodes):
            key = (course.runs[-1], rank)
            last = (logged.get(key) or [0])[-1]
            if key not in excused and last != course.job.lines:
                yield f"the log of rank {rank} ends with line {last}"


def _lines(text: str, rank: int, logged: dict[tuple[int, int], list[int]], full_s: Periods) -> Iterator[str]:
    """Adds the numbered lines of a log to those that were found; what is wrong with it."""
    last_run, has_gap = -1, False
    for line, following in pairwise([*text.splitlines(), ""]):
        numbered, may_be_torn = read_numbered(line), bool(full_s) and GAP in following
        if numbered is None:
            has_gap |= GAP in line
            if not may_be_torn and not (full_s and (GAP in line or _NOT_STARTED.fullmatch(line))):
                yield f"another line: {line}"
            continue
        run, number = numbered
        found = logged.setdefault((run, rank), [])
        expected = found[-1] + 1 if found else 1
        if number != expected and may_be_torn:
            continue
        if run < last_run:
            yield f"run {run} after run {last_run}"
        if number < expected or (number > expected and not (full_s and has_gap)):
            yield f"line {number} of run {run} where line {expected} should be"
        found.append(number)
        last_run, has_gap = run, False


def overbooked_now(home: Path) -> list[str]:
    """GPUs on which, by the run records, more than one run has living replicas at this moment."""
    users: dict[tuple[str, int], list[str]] = {}
    for job, files in jobs_with_runs(home):
        for number in files.run_numbers():
            record = read_record(files, number)
            if record is None:
                continue
            folders = (files.replica(number, rank) for rank in range(record.ranks))
            if any(processes.observe(folder).phase.is_alive for folder in folders):
                for gpu in gpus_of(record.placement):
                    users.setdefault(gpu, []).append(f"run {number} of job {job}")
    return [f"{node}:{gpu} has {' and '.join(runs)}" for (node, gpu), runs in users.items() if len(runs) > 1]


# ---------------------------------------------------------------------------------------------- the journal


def read_journal(home: Path) -> tuple[World, list[ev.Event]]:
    """The World as a start would find it, and all events. The server has to be gone."""
    with SqliteStore(home / "journal.db", check=True) as store:
        world = store.recover().world
        entries = list(store.journal.all_after(0))
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1)), "there is a gap"
        return world, [entry.event for entry in entries]


def what_is_wrong_in(world: World, events: Sequence[ev.Event]) -> Iterator[str]:
    """The journal tells one story: every plan follows from the events before it, and the World from all."""
    try:
        again = replay(list(events), profile_for(DEFAULT_POLICY), profile_for)
    except ReplayDiffersError as error:
        yield f"the journal cannot be replayed: {error}"
        return
    # As texts: a job that never started has no start time, and that is not equal to itself.
    if encode_world(again) != encode_world(world) or repr(again.past) != repr(world.past):
        yield f"a start finds another World (version {world.version}) than a replay (version {again.version})"
    yield from _invariants(events)


def _invariants(events: Sequence[ev.Event]) -> Iterator[str]:
    """No GPU is booked twice, and all else that holds between any two events."""
    world, submitted, changed, last_s = World(), set[str](), set[str](), 0.0
    for number, event in enumerate(events, 1):
        apply(world, event)
        if isinstance(event, ev.JobSubmitted):
            submitted.add(event.job.id)
        elif isinstance(event, ev.JobChanged):
            changed.add(event.job.id)
        if isinstance(event, ev.Planned | ev.JobEnded | ev.JobInterrupted):
            try:
                check_invariants(world, submitted, changed)
            except AssertionError as error:
                yield f"after event {number} the World is not sound: {error}"
                return
        if event.time_s < last_s - 1.0:
            yield f"event {number} is {last_s - event.time_s:.1f} s before the one before it"
        last_s = event.time_s
