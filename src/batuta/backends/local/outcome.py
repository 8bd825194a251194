"""What the ends of a run's replicas mean for the job, and how that is said."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from batuta.backends.local.state import Phase, ReplicaState, Why
from batuta.core.job import JobState

_LONGEST_LINE = 300
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
"""Colours, titles and whatever else a terminal would act on."""
_TROUBLES = ("EAGAIN", "EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EROFS", "ETXTBSY")
_MACHINE_TROUBLE = tuple(os.strerror(getattr(errno, name)) for name in _TROUBLES if hasattr(errno, name))
"""What a command cannot be blamed for."""


class End(Enum):
    """How a run has ended."""

    SUCCEEDED = auto()
    STOPPED = auto()
    """Because it was told to."""
    FAILED = auto()
    """By its own fault; it may be started again."""
    FAILED_SETUP = auto()
    TIME_LIMIT = auto()
    CANNOT_START = auto()
    """To try again would not help."""
    LOST = auto()
    """By no fault of its own: its runner was killed, the machine went down or has no room."""


_FINAL = {
    End.SUCCEEDED: JobState.SUCCEEDED,
    End.FAILED_SETUP: JobState.FAILED_SETUP,
    End.TIME_LIMIT: JobState.FAILED,
    End.CANNOT_START: JobState.FAILED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run has ended, as a code and as a sentence."""

    end: End
    exit_code: int | None = None
    """As a shell would say it: 128 and the signal's number for one that was killed."""
    detail: str = ""

    @property
    def final_state(self) -> JobState | None:
        """What the job is after it; None when it may be started again."""
        return _FINAL.get(self.end)


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

    `leaving`: it was told to stop, so that only success counts as the job's own end; `shut_down`: the same,
    but only because the server went down; `trailing`: the others were told to stop when rank 0 had ended well
    and they did not follow. `trouble`: why not all replicas could be started. `last_line` gives
    the last line of a rank's log.
    """
    if states and all(has_succeeded(state) for state in states):
        return Outcome(End.SUCCEEDED, 0)
    if trailing and has_succeeded(states[0]):
        late = ", ".join(str(rank) for rank, state in enumerate(states) if not has_succeeded(state))
        return Outcome(End.SUCCEEDED, 0, f"rank {late} did not end after rank 0 had, and was stopped")
    if leaving:
        return Outcome(End.STOPPED)
    if shut_down:
        return Outcome(End.LOST, detail="the server was shut down")
    if trouble:
        return Outcome(End.LOST, detail=trouble)
    return _judge_unasked(states, last_line)


def _judge_unasked(states: Sequence[ReplicaState], last_line: Callable[[int], str]) -> Outcome:
    """Finds whose fault it was that a run ended which nobody had told to."""
    ranks = range(len(states))
    for why, verdict in ((Why.SETUP_FAILED, End.FAILED_SETUP), (Why.TIME_LIMIT, End.TIME_LIMIT)):
        for rank in ranks:
            if states[rank].why is why:
                return _told(verdict, states, rank, last_line)
    for rank in ranks:
        if states[rank].why is Why.CANNOT_START:
            end = End.LOST if states[rank].error.endswith(_MACHINE_TROUBLE) else End.CANNOT_START
            return Outcome(end, detail=f"{_who(states, rank)} cannot start: {_plain(states[rank].error)}")
    # When one is gone, the others soon fail because of that.
    for rank in ranks:
        if states[rank].why is Why.KILLED or states[rank].phase is Phase.ABSENT:
            error = f": {states[rank].error}" if states[rank].error else ""
            detail = f"{_who(states, rank)} was lost: its runner was killed or the machine went down{error}"
            return Outcome(End.LOST, detail=detail)
    failed = [rank for rank in ranks if states[rank].why is Why.EXITED and not has_succeeded(states[rank])]
    if failed:
        # The others often fail because of the first.
        first = min(failed, key=lambda rank: (states[rank].ended_s or 0.0, rank))
        return _told(End.FAILED, states, first, last_line)
    return Outcome(End.LOST, detail="it was stopped from outside")


def has_failed(state: ReplicaState) -> bool:
    """Whether a replica has ended in a way that is the end of the whole run."""
    over = state.phase in {Phase.EXITED, Phase.ABSENT}
    return over and not has_succeeded(state)


def survivors_in(states: Sequence[ReplicaState]) -> tuple[int, ...]:
    """Processes that not even SIGKILL could end."""
    return tuple(pid for state in states for pid in state.survivors)


def has_succeeded(state: ReplicaState) -> bool:
    return state.why is Why.EXITED and state.exit_code == 0


def _told(end: End, states: Sequence[ReplicaState], rank: int, last_line: Callable[[int], str]) -> Outcome:
    state = states[rank]
    who = _who(states, rank)
    how = _how(state)
    if end is End.TIME_LIMIT:
        return Outcome(end, _code(state), f"it reached its time limit ({who} {how})")
    what = f"setup of {who} failed: it {how}" if end is End.FAILED_SETUP else f"{who} {how}"
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
        return f"was ended by signal {state.signal} ({_signal_name(state.signal)})"
    if state.exit_code is not None:
        return f"exited with code {state.exit_code}"
    return "ended"


def _code(state: ReplicaState) -> int | None:
    return 128 + state.signal if state.signal is not None else state.exit_code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
