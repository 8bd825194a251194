"""What the ends of replicas mean for their job."""

import signal

import pytest

from batuta.backends.local.live_run import judge
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase, ReplicaState
from batuta.engine.jobs.outcome import Outcome, RunEnd


def exited(code: int = 0, ended_s: float = 1.0) -> ReplicaState:
    return ReplicaState(ReplicaPhase.EXITED, why=ExitReason.EXITED, exit_code=code, ended_s=ended_s)


def over(why: ExitReason, **more) -> ReplicaState:
    return ReplicaState(ReplicaPhase.EXITED, why=why, **more)


KILLED = over(ExitReason.KILLED)
STOPPED = over(ExitReason.STOPPED, signal=signal.SIGTERM)
ABSENT = ReplicaState(ReplicaPhase.ABSENT)


def judged(*states: ReplicaState, leaving: bool = False, shut_down: bool = False, trouble: str = "") -> Outcome:
    return judge(
        states,
        leaving=leaving,
        shut_down=shut_down,
        trouble=trouble,
        last_line=lambda rank: f"line of {rank} ",
    )


@pytest.mark.parametrize(
    ("states", "end"),
    [
        ((exited(), exited()), RunEnd.SUCCEEDED),
        ((exited(), exited(1)), RunEnd.FAILED),
        ((exited(1), STOPPED), RunEnd.FAILED),
        ((KILLED, exited(1)), RunEnd.LOST),
        ((KILLED, exited()), RunEnd.LOST),
        ((ABSENT, exited()), RunEnd.LOST),
        ((STOPPED, STOPPED), RunEnd.LOST),
        ((over(ExitReason.SETUP_FAILED, exit_code=2), STOPPED), RunEnd.FAILED_SETUP),
        ((over(ExitReason.TIME_LIMIT, exit_code=0), STOPPED), RunEnd.TIME_LIMIT),
        ((over(ExitReason.PROCESS_LIMIT, signal=9), STOPPED), RunEnd.PROCESS_LIMIT),
        ((STOPPED, over(ExitReason.MEMORY_LIMIT, signal=9)), RunEnd.MEMORY_LIMIT),
        (
            (over(ExitReason.CANNOT_START, error="/x: No such file or directory"), STOPPED),
            RunEnd.CANNOT_START,
        ),
        ((over(ExitReason.CANNOT_START, error="runner: No space left on device"), STOPPED), RunEnd.LOST),
    ],
)
def test_end_that_nobody_asked_for(states: tuple[ReplicaState, ...], end: RunEnd):
    assert judged(*states).end is end


@pytest.mark.parametrize("states", [(STOPPED, STOPPED), (STOPPED, exited(1)), (exited(), STOPPED), (KILLED, ABSENT)])
def test_end_that_was_asked_for_is_no_failure(states: tuple[ReplicaState, ...]):
    assert judged(*states, leaving=True).end is RunEnd.STOPPED


def test_success_is_success_even_while_being_stopped():
    assert judged(exited(), exited(), leaving=True).end is RunEnd.SUCCEEDED
    assert judged(exited(), shut_down=True).end is RunEnd.SUCCEEDED


def test_shutdown_of_the_server_and_trouble_at_the_start_are_not_the_jobs_fault():
    assert judged(exited(1), shut_down=True) == Outcome(RunEnd.LOST, detail="the server was shut down")
    assert judged(STOPPED, ABSENT, trouble="no room") == Outcome(RunEnd.LOST, detail="no room")


def test_first_to_fail_is_the_one_to_blame():
    found = judged(exited(1, ended_s=7.0), exited(2, ended_s=5.0), exited(3, ended_s=6.0))
    assert found == Outcome(RunEnd.FAILED, 2, "rank 1 exited with code 2; its last line: line of 1")


def test_signal_is_said_as_a_shell_would():
    found = judged(over(ExitReason.EXITED, signal=9))
    assert found == Outcome(RunEnd.FAILED, 137, "the job was ended by signal 9 (SIGKILL); its last line: line of 0")
    assert "(unknown)" in judged(over(ExitReason.EXITED, signal=250)).detail


def test_long_last_line_is_cut():
    states = [exited(1)]
    found = judge(states, leaving=False, shut_down=False, trouble="", last_line=lambda _: "x" * 10_000)
    assert len(found.detail) < 500


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mOutOfMemoryError\x1b[0m: 8 GiB", "OutOfMemoryError: 8 GiB"),
        ("\x1b]0;another title\x07\x1b]52;c;cm0gLXJm\x1b\\no clipboard\x1b[2J", "no clipboard"),
        (" 10%|#\r 20%|##\r", "20%|##"),
        ("a\tb\x00c\x9b2Jd\u202ee", "a b c 2Jd e"),
        ("größe ≥ 3: ошибка", "größe ≥ 3: ошибка"),
        ("ends \x1b", "ends"),
    ],
)
def test_last_line_is_told_without_what_a_terminal_would_act_on(line: str, shown: str):
    told = judge([exited(1)], leaving=False, shut_down=False, trouble="", last_line=lambda rank: line)
    assert told.detail == f"the job exited with code 1; its last line: {shown}"
