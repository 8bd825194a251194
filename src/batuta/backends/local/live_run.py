"""One run of a job as it lives: all its replicas together."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from enum import Enum, auto

from batuta.backends.local import processes
from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.logs import ReplicaLog
from batuta.backends.local.outcome import Outcome, has_failed, has_succeeded, judge
from batuta.backends.local.processes import ReplicaSpec, RunningReplica
from batuta.backends.local.run_record import RunRecord, write_first_record, write_record
from batuta.backends.local.small_files import read_small
from batuta.backends.local.state import Phase, ReplicaState
from batuta.backends.local.supervisor import tree

_OVER = frozenset((Phase.EXITED, Phase.ABSENT))


class Going(Enum):
    """How far a run is on its way out."""

    NO = auto()
    ASKED = auto()
    """It was asked for a checkpoint, and runs on."""
    STOPPING = auto()
    KILLED = auto()
    """All its replicas were told to end now."""


class LiveRun:
    """Starts, watches and stops replicas as one. What it knows of them is as fresh as the last look."""

    def __init__(self, files: JobFiles, record: RunRecord) -> None:
        self.record = record
        self.going = Going.NO
        self.trouble = ""
        """Why not all replicas could be started."""
        self.is_partial = False
        """The server that started it was killed before it had started all replicas."""
        self.is_announced = False
        self.request = 0
        """The number of the checkpoint that was asked for."""
        self.checkpointed_s: float | None = None
        self.stop_sent_s: float | None = None
        self._files = files
        self._folders = [files.replica(record.number, rank) for rank in range(record.ranks)]
        self._replicas: list[RunningReplica | None] = [None] * record.ranks
        self.states: list[ReplicaState] = [ReplicaState(Phase.ABSENT)] * record.ranks

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
                run.states[rank] = ReplicaState(Phase.STARTING)
            except (OSError, processes.RunExists) as problem:
                run.trouble = f"rank {rank} could not be started: {problem}"
                run.kill()
                break
        return run

    @classmethod
    def find(cls, files: JobFiles, record: RunRecord) -> LiveRun:
        """The run that a former server started, as it is now."""
        run = cls(files, record)
        for rank in range(record.ranks):
            run._replicas[rank] = processes.adopt(run._folders[rank])
            run.look(rank)
        run.request = run.states[0].checkpoint_request if run.states else 0
        run.is_partial = any(state.phase is Phase.ABSENT for state in run.states)
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
    def has_failed(self) -> bool:
        return any(has_failed(state) for state in self.states)

    @property
    def all_run(self) -> bool:
        """Whether all replicas are past their setup, and none has failed."""
        return all(
            state.phase is Phase.RUNNING or (state.phase is Phase.EXITED and state.run_begun_s is not None)
            for state in self.states
        )

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
        begun = [state.run_begun_s for state in self.states if state.run_begun_s is not None]
        return max(begun, default=None)

    @property
    def is_answered(self) -> bool:
        """Whether the checkpoint that was asked for is noted as made, by a script that does not report."""
        try:
            text = read_small(self._files.control(self.record.number) / "checkpoint-done")
            return int(text[:32]) >= self.request
        except (OSError, ValueError):
            return False

    def look(self, rank: int) -> None:
        """Learns how a replica is now. Of one whose runner was killed, nothing is left afterwards."""
        folder = self._folders[rank]
        state = processes.observe(folder)
        if not (state.phase.is_alive or state.phase is Phase.EXITED) and self._seems_alive(rank):
            return  # it cannot be looked at: no descriptors are left, say
        self.states[rank] = processes.bury(folder) if state.phase is Phase.LOST else state

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

    # ------------------------------------------------------------------------------------ on its way out

    def ask_for_checkpoint(self, now_s: float) -> None:
        self._note(self.record.asked(now_s))
        self.look(0)
        self.request = self.states[0].checkpoint_request + 1
        self.checkpointed_s = None
        self.going = Going.ASKED
        for _, replica in self.replicas:
            processes.request_checkpoint(replica)

    def stay(self) -> None:
        """Takes back that it shall go, which is possible as long as it was not told to stop."""
        self.going = Going.NO
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
        self.going = Going.STOPPING
        self.stop_sent_s = now_s
        for _, replica in self.replicas:
            processes.stop(replica)

    def bring_up_the_rear(self, now_s: float) -> None:
        """Stops those that did not end with rank 0, which ended well: so the run has, too."""
        self._note(self.record.trailed())
        self.stop(now_s)

    def destroy(self) -> None:
        """Ends all of it now, runners too, and waits until it is gone; seconds if need be."""
        self.kill_runners()
        for folder in self._folders:
            processes.bury(folder)

    def kill(self) -> None:
        """Ends all replicas without grace."""
        self.going = Going.KILLED
        for _, replica in self.replicas:
            processes.kill(replica)

    def kill_runners(self) -> None:
        """Ends runners that do not answer; what they leave behind is buried at the next look."""
        for _, replica in self.replicas:
            if replica.start is not None:
                tree.send((replica.pid, replica.start), signal.SIGKILL)
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
        return tree.start_of(replica.pid) in {None, replica.start}

    def _note(self, record: RunRecord) -> None:
        self.record = record
        with contextlib.suppress(OSError):  # on a full disk only a server that is killed now would miss it
            write_record(self._files, record)

    def _last_line(self, rank: int) -> str:
        try:
            lines = ReplicaLog(self._files.log(rank)).tail(5)
        except OSError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")
