"""What must be true when a busy time is over, found out from four sides: the answers that users got, the
records that the jobs kept themselves, the journal, and the files and processes of this machine.
"""

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from tests.support.busy_jobs import BAD_SETUP, HOPELESS, TRAINER, BusyJob, Note, numbered_lines, read_notes
from tests.support.invariants import check_invariants
from tests.support.memory_journal import ReplayDiffersError, replay

_SHORTAGES = tuple(map(os.strerror, (errno.ENOSPC, errno.EMFILE)))
GAP = "bytes of output lost"
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


def what_is_wrong_with(course: Course, *, after_faults: bool = False) -> Iterator[str]:
    """Every way in which a job's course is not as it should be, as sentences.

    `after_faults`: the disk was full at times, so output may be missing where the log says so.
    """
    yield from _end(course)
    yield from _alone(course)
    yield from _runs(course, after_faults=after_faults)
    if course.job.has_numbered_lines:
        yield from _log(course, may_have_gaps=after_faults)


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


def _log(course: Course, *, may_have_gaps: bool) -> Iterator[str]:
    """Every line is there once and in order, for each run of each rank; none is torn, and none lost without a word."""
    noted: dict[tuple[int, int], int] = {}
    for note in course.notes:
        if note.word == "line":
            key = (note.run, note.rank)
            noted[key] = max(noted.get(key, 0), int(note.rest[0]))
    logged: dict[tuple[int, int], int] = {}
    gaps = set[int]()
    for rank in course.files.ranks():
        log = ReplicaLog(course.files.log(rank))
        text = b"".join(piece.data for piece in log.pieces(0, log.span().end)).decode(errors="replace")
        lines, others = numbered_lines(text)
        # A log that ends while the disk is full cannot say so: its end is missing.
        has_gap = may_have_gaps and any(GAP in line for line in others)
        others = [line for line in others if not (has_gap and GAP in line)]
        if others and not has_gap:
            yield f"the log of rank {rank} has other lines: {others[:3]}"
        last_run = -1
        for run, number in lines:
            if run < last_run:
                yield f"the log of rank {rank} has run {run} after run {last_run}"
            last_run = run
            expected = logged.get((run, rank), 0) + 1
            if number < expected or (number > expected and not has_gap):
                yield f"the log of rank {rank} has line {number} of run {run} at the wrong place"
            logged[run, rank] = number
        if may_have_gaps:
            gaps.add(rank)
    for (run, rank), number in noted.items():
        found = logged.get((run, rank), 0)
        if found < number and rank not in gaps:
            yield f"rank {rank} of run {run} wrote {number} lines, {found} are in the log"
    if course.told.state == "SUCCEEDED" and not course.job.is_resizable and course.runs:
        for rank in range(course.job.nodes):
            if rank not in gaps and logged.get((course.runs[-1], rank), 0) != course.job.lines:
                yield f"the log of rank {rank} ends with line {logged.get((course.runs[-1], rank), 0)}"


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
