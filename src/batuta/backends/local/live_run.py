"""One run of a job: starts, observes and stops its replicas as a gang, and assesses its outcome.

Jobs that look up their hosts while they run are resized without a restart. Horovod's driver asks the
discovery script every second, and starts and ends workers by itself. They inherit `CUDA_VISIBLE_DEVICES` from
it and take the GPU with their number: so the GPUs of the new placement have to be the first of those that the
job was started with. Everything else is a restart, as for all jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from batuta.backends.local import processes
from batuta.backends.local.addresses import NoPortFree
from batuta.backends.local.context import JobContext
from batuta.backends.local.files import read_small
from batuta.backends.local.job_files import JobFiles, RunRecord, write_first_record, write_record
from batuta.backends.local.logs import ReplicaLog
from batuta.backends.local.mounts import CannotMount, link_mounts, why_no_views
from batuta.backends.local.processes import RunningReplica
from batuta.backends.local.replica_plan import (
    Machine,
    account_for,
    plan_replicas,
    rank_count,
    workdir_of,
    write_hosts,
)
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase, ReplicaSpec, ReplicaState
from batuta.backends.local.supervisor import process_tree
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobKind
from batuta.engine.jobs.outcome import Outcome, RunEnd
from batuta.engine.jobs.reconcile import RunPhase, StopProgress
from batuta.spec.skypilot_keys import image_of
from batuta.spec.task import Task
from batuta.spec.task_paths import is_relative_target

_LONGEST_LINE = 300
_LONGEST_ANSWER_BYTES = 4096
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
"""Colours, titles and whatever else a terminal would act on."""
_TROUBLES = ("EAGAIN", "EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EROFS", "ETXTBSY")
_MACHINE_TROUBLE = tuple(os.strerror(getattr(errno, name)) for name in _TROUBLES if hasattr(errno, name))
"""What a command cannot be blamed for."""


def judge(
    states: Sequence[ReplicaState],
    *,
    leaving: bool,
    shut_down: bool,
    trailing: bool = False,
    trouble: str,
    last_line: Callable[[int], str],
) -> Outcome:
    """What became of a run whose replicas are all over.

    `leaving`: it was told to stop, so that only success counts as the job's own end; `shut_down`: the same, but only
    because the server went down; `trailing`: the others were told to stop when rank 0 had ended well and they did not
    follow. `trouble`: why not all replicas could be started. `last_line` gives the last line of a rank's log.
    """
    if states and all(has_succeeded(state) for state in states):
        return Outcome(RunEnd.SUCCEEDED, 0)
    if trailing and has_succeeded(states[0]):
        late = ", ".join(str(rank) for rank, state in enumerate(states) if not has_succeeded(state))
        return Outcome(RunEnd.SUCCEEDED, 0, f"rank {late} did not end after rank 0 had, and was stopped")
    if leaving:
        return Outcome(RunEnd.STOPPED)
    if shut_down:
        return Outcome(RunEnd.LOST, detail="the server was shut down")
    if trouble:
        return Outcome(RunEnd.LOST, detail=trouble)
    return _judge_unasked(states, last_line)


def _judge_unasked(states: Sequence[ReplicaState], last_line: Callable[[int], str]) -> Outcome:
    """Attributes the end of a run that was not told to stop."""
    ranks = range(len(states))
    for why, verdict in ((ExitReason.SETUP_FAILED, RunEnd.FAILED_SETUP), (ExitReason.TIME_LIMIT, RunEnd.TIME_LIMIT)):
        for rank in ranks:
            if states[rank].why is why:
                return _told(verdict, states, rank, last_line)
    for rank in ranks:
        if states[rank].why is ExitReason.CANNOT_START:
            end = RunEnd.LOST if states[rank].error.endswith(_MACHINE_TROUBLE) else RunEnd.CANNOT_START
            return Outcome(end, detail=f"{_who(states, rank)} cannot start: {_plain(states[rank].error)}")
    for why, verdict in (
        (ExitReason.PROCESS_LIMIT, RunEnd.PROCESS_LIMIT),
        (ExitReason.MEMORY_LIMIT, RunEnd.MEMORY_LIMIT),
    ):
        for rank in ranks:
            if states[rank].why is why:
                who = f"{_who(states, rank)}: " if len(states) > 1 else ""
                return Outcome(verdict, _code(states[rank]), f"{who}{states[rank].error}", states[rank].limit)
    # When one is gone, the others soon fail because of that.
    for rank in ranks:
        if states[rank].why is ExitReason.KILLED or states[rank].phase is ReplicaPhase.ABSENT:
            error = f": {states[rank].error}" if states[rank].error else ""
            detail = f"{_who(states, rank)} was lost: its runner was killed or the machine went down{error}"
            return Outcome(RunEnd.LOST, detail=detail)
    failed = [rank for rank in ranks if states[rank].why is ExitReason.EXITED and not has_succeeded(states[rank])]
    if failed:
        # The others often fail because of the first.
        first = min(failed, key=lambda rank: (states[rank].ended_s or 0.0, rank))
        return _told(RunEnd.FAILED, states, first, last_line)
    return Outcome(RunEnd.LOST, detail="it was stopped from outside")


def has_succeeded(state: ReplicaState) -> bool:
    return state.why is ExitReason.EXITED and state.exit_code == 0


def _told(end: RunEnd, states: Sequence[ReplicaState], rank: int, last_line: Callable[[int], str]) -> Outcome:
    state = states[rank]
    who = _who(states, rank)
    how = _how(state)
    if end is RunEnd.TIME_LIMIT:
        return Outcome(end, _code(state), f"it reached its time limit ({who} {how})")
    what = f"setup of {who} failed: it {how}" if end is RunEnd.FAILED_SETUP else f"{who} {how}"
    line = _plain(last_line(rank))
    if len(line) > _LONGEST_LINE:
        line = line[:_LONGEST_LINE] + "…"
    return Outcome(end, _code(state), f"{what}; its last line: {line}" if line else what)


def _plain(line: str) -> str:
    """What one would read of it. Others see it in their tables: it must not command their terminals."""
    _, _, shown = _ESCAPES.sub("", line).strip().rpartition("\r")  # a bar is drawn over itself
    return "".join(one if one.isprintable() else " " for one in shown).strip()


def _who(states: Sequence[ReplicaState], rank: int) -> str:
    return f"rank {rank}" if len(states) > 1 else "the job"


def _how(state: ReplicaState) -> str:
    if state.signal is not None:
        name = next((one.name for one in signal.Signals if one == state.signal), "unknown")
        return f"was ended by signal {state.signal} ({name})"
    if state.exit_code is not None:
        return f"exited with code {state.exit_code}"
    return "ended"


def _code(state: ReplicaState) -> int | None:
    return 128 + state.signal if state.signal is not None else state.exit_code


_OVER = frozenset((ReplicaPhase.EXITED, ReplicaPhase.ABSENT))


class LiveRun:
    """Starts, watches and stops replicas as one. What it knows of them is as fresh as the last look."""

    def __init__(self, files: JobFiles, record: RunRecord) -> None:
        self.record = record
        self.going = StopProgress.NO
        self.trouble = ""  # why not all replicas could be started
        self.is_partial = False  # the server that started it was killed before it had started all replicas
        self.is_announced = False
        self.request = 0  # the number of the checkpoint that was asked for
        self.checkpointed_s: float | None = None
        self.stop_sent_s: float | None = None
        self._files = files
        self._folders = [files.replica(record.number, rank) for rank in range(record.ranks)]
        self._replicas: list[RunningReplica | None] = [None] * record.ranks
        self.states: list[ReplicaState] = [ReplicaState(ReplicaPhase.ABSENT)] * record.ranks

    @classmethod
    def start(cls, files: JobFiles, record: RunRecord, specs: Sequence[ReplicaSpec]) -> LiveRun:
        """Starts all replicas in one go. When one cannot be started, the others are ended; see `trouble`.

        OSError when not even the record could be written; then nothing runs.
        """
        write_first_record(files, record)
        run = cls(files, record)
        for rank, spec in enumerate(specs):
            try:
                run._replicas[rank] = processes.launch(run._folders[rank], spec)
                run.states[rank] = ReplicaState(ReplicaPhase.STARTING)
            except (OSError, processes.RunExists) as problem:
                run.trouble = f"rank {rank} could not be started: {problem}"
                with contextlib.suppress(CannotTell):  # it is killed when the job is driven next
                    run.kill()
                break
        return run

    @classmethod
    def find(cls, files: JobFiles, record: RunRecord) -> LiveRun:
        """The run that a former server started, as it is now. CannotTell when that cannot be found out yet."""
        run = cls(files, record)
        for rank in range(record.ranks):
            run._replicas[rank] = processes.adopt(run._folders[rank])
            run.look(rank)
        run.request = run.states[0].checkpoint_request if run.states else 0
        run.is_partial = any(state.phase is ReplicaPhase.ABSENT for state in run.states)
        if (record.leaving or record.trailing) and not run.is_over:
            run.stop()
        return run

    @property
    def replicas(self) -> list[tuple[int, RunningReplica]]:
        """Those that were started or found, with their ranks."""
        return [(rank, replica) for rank, replica in enumerate(self._replicas) if replica is not None]

    @property
    def is_over(self) -> bool:
        """Whether no process of it is left."""
        return all(state.phase in _OVER for state in self.states)

    @property
    def all_run(self) -> bool:
        """Whether all replicas are past their setup, and none has failed."""
        return all(
            state.phase is ReplicaPhase.RUNNING
            or (state.phase is ReplicaPhase.EXITED and state.run_begun_s is not None)
            for state in self.states
        )

    @property
    def phase(self) -> RunPhase:
        """How its replicas are, together."""
        if self.is_over:
            return RunPhase.OVER
        if self.trouble or self.is_partial:
            return RunPhase.INCOMPLETE
        if any(state.phase in _OVER and not has_succeeded(state) for state in self.states):
            return RunPhase.FAILING
        return RunPhase.RUNNING if self.all_run else RunPhase.STARTING

    @property
    def all_have_run(self) -> bool:
        return all(state.run_begun_s is not None for state in self.states)

    @property
    def ran_s(self) -> float:
        """How long it has run, setup not counted, once it is over."""
        begun = [state.run_begun_s for state in self.states if state.run_begun_s is not None]
        ended = [state.ended_s for state in self.states if state.ended_s is not None]
        return max(0.0, max(ended) - min(begun)) if begun and ended else 0.0

    @property
    def ended_s(self) -> float | None:
        """When its last replica ended, as far as their runners could tell."""
        return max((state.ended_s for state in self.states if state.ended_s is not None), default=None)

    @property
    def led_to_end_s(self) -> float | None:
        """When rank 0 ended well, while others still run."""
        first = self.states[0]
        return first.ended_s if has_succeeded(first) and not self.is_over else None

    @property
    def running_since_s(self) -> float | None:
        """When the last replica began to run."""
        return max((state.run_begun_s for state in self.states if state.run_begun_s is not None), default=None)

    @property
    def is_answered(self) -> bool:
        """Whether the checkpoint that was asked for is noted as made, by a script that does not report."""
        try:
            path = self._files.control(self.record.number) / "checkpoint-done"
            text = read_small(path, _LONGEST_ANSWER_BYTES, owner=self._files.owner)
            return int(text[:32]) >= self.request
        except (OSError, ValueError):
            return False

    def look(self, rank: int) -> None:
        """Learns how a replica is now. Of one whose runner was killed, nothing is left afterwards.

        CannotTell when it cannot be looked at; then it is as it was.
        """
        folder = self._folders[rank]
        state = processes.observe(folder)
        if not (state.phase.is_alive or state.phase is ReplicaPhase.EXITED) and self._seems_alive(rank):
            return  # its folder was taken from under it, say
        self.states[rank] = processes.clean_up(folder) if state.phase is ReplicaPhase.LOST else state

    def look_at_all(self) -> None:
        for rank, state in enumerate(self.states):
            if state.phase not in _OVER:
                self.look(rank)

    def judge(self) -> Outcome:
        """What its end means for the job."""
        return judge(
            self.states,
            leaving=self.is_partial or (self.record.leaving and not self.record.interrupted),
            shut_down=self.record.interrupted,
            trailing=self.record.trailing,
            trouble=self.trouble,
            last_line=self._last_line,
        )

    def ask_for_checkpoint(self, now_s: float) -> None:
        self._note(replace(self.record, asked_s=now_s))
        self.look(0)
        self.request = self.states[0].checkpoint_request + 1
        self.checkpointed_s = None
        self.going = StopProgress.ASKED
        for _, replica in self.replicas:
            processes.request_checkpoint(replica)

    def stay(self) -> None:
        """Takes back that it shall go, which is possible as long as it was not told to stop."""
        self.going = StopProgress.NO
        self.is_announced = False

    def move(self, record: RunRecord) -> None:
        """It runs on at another place; that it runs there is still to be said."""
        self._note(record)
        self.is_announced = False

    def leave(self, now_s: float, *, interrupted: bool = False) -> None:
        """Stops it because it is not wanted here any more: its end is no failure."""
        self._note(self.record.left(interrupted=interrupted))
        self.stop(now_s)

    def stop(self, now_s: float | None = None) -> None:
        """Tells all replicas to end; each kills what is left of it after its grace."""
        for _, replica in self.replicas:
            processes.stop(replica)
        self.going = StopProgress.STOPPING  # only now: what could not be told to all is told again
        self.stop_sent_s = now_s

    def bring_up_the_rear(self, now_s: float) -> None:
        """Stops those that did not end with rank 0, which ended well: so the run has, too."""
        self._note(replace(self.record, trailing=True))
        self.stop(now_s)

    def destroy(self) -> None:
        """Ends all of it now, runners too, and waits until it is gone; seconds if need be."""
        self.kill_runners()
        for folder in self._folders:
            processes.clean_up(folder)

    def kill(self) -> None:
        """Ends all replicas without grace."""
        for _, replica in self.replicas:
            processes.kill(replica)
        self.going = StopProgress.KILLED

    def kill_runners(self) -> None:
        """Ends runners that do not answer; what they leave behind is cleaned up at the next look."""
        for _, replica in self.replicas:
            if replica.start is not None:
                process_tree.send((replica.pid, replica.start), signal.SIGKILL)
            elif replica.is_running:
                with contextlib.suppress(OSError):
                    os.kill(replica.pid, signal.SIGKILL)

    def _seems_alive(self, rank: int) -> bool:
        """Whether its runner is there, as far as one can tell without opening a file.

        True too of one that has just ended and was not reaped yet; when it was, there will be news of it.
        """
        replica = self._replicas[rank]
        if replica is None:
            return False
        try:
            os.kill(replica.pid, 0)
        except OSError:
            return False
        return process_tree.start_of(replica.pid) in {None, replica.start}

    def _note(self, record: RunRecord) -> None:
        self.record = record
        with contextlib.suppress(OSError):  # on a full disk only a server that is killed now would miss it
            write_record(self._files, record)

    def _last_line(self, rank: int) -> str:
        if self._files.owner is not None:
            return ""  # all users of the server see how a job ended, and its log is for its own user
        try:
            lines = ReplicaLog(self._files.log(rank)).tail(5)
        except OSError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")


class CannotLaunch(Exception):
    """Nothing was started, and why. It may be possible later."""


def launch_run(
    context: JobContext,
    files: JobFiles,
    task: Task,
    job: Job,
    placement: Placement,
    number: int,
    now_s: float,
    limit_s: float | None,
) -> LiveRun:
    """The run number `number` of a job, just started; see its `trouble` when not all of it could be.

    CannotLaunch when nothing could be started now, CannotMount when it never can be.
    """
    ranks = rank_count(job, placement)
    record = RunRecord(job.id, number, placement, ranks, port=0, started_s=now_s)
    owner = record.run_id(0)
    try:
        if not context.machine.knows(placement):
            shown = ", ".join(f"{span.node}:{','.join(map(str, span.gpus))}" for span in placement.spans)
            raise CannotLaunch(f"this machine does not have {shown}")
        account = account_for(context.machine, files, task, job)
        files.prepare(number, context.directory_pool)
        if task.file_mounts and not image_of(task.image_id) and why_no_views():
            if account is not None:
                raise CannotMount(
                    "file_mounts: this machine gives jobs no private mounts, and links are for root alone"
                )
            relative = [mount for mount in task.file_mounts if is_relative_target(mount.target)]
            link_mounts(relative, workdir_of(task, files))
        record = replace(record, port=context.ports.reserve(owner))
        specs = plan_replicas(context.machine, files, task, job, record, limit_s)
        return LiveRun.start(files, record, specs)
    except CannotMount:
        files.discard_run(number)
        raise
    except (CannotLaunch, OSError, NoPortFree, ValueError) as problem:
        context.ports.release(owner)
        files.discard_run(number)
        raise CannotLaunch(f"it could not be started: {problem}") from problem


def can_resize_in_place(machine: Machine, job: Job, record: RunRecord, wanted: Placement) -> bool:
    """Whether the run can go on at another place as it is."""
    if job.kind is not JobKind.HOROVOD_ELASTIC or not machine.knows(wanted):
        return False
    # By node and number: devices of virtual nodes have equal names.
    had = [(span.node, gpu) for span in record.first.spans for gpu in span.gpus]
    gets = [(span.node, gpu) for span in wanted.spans for gpu in span.gpus]
    return gets == had[: len(gets)]


def resize_in_place(files: JobFiles, record: RunRecord, wanted: Placement) -> RunRecord:
    """Tells the run of its new hosts. OSError when that is not possible."""
    write_hosts(files.shown(record.number), wanted)
    return record.moved_to(wanted)
