"""What the ends of replicas mean for their job."""

import signal

import pytest

from batuta.backends.local.outcome import End, Outcome, judge
from batuta.backends.local.state import Phase, ReplicaState, Why


def exited(code: int = 0, ended_s: float = 1.0) -> ReplicaState:
    return ReplicaState(Phase.EXITED, why=Why.EXITED, exit_code=code, ended_s=ended_s)


def over(why: Why, **more) -> ReplicaState:
    return ReplicaState(Phase.EXITED, why=why, **more)


KILLED = over(Why.KILLED)
STOPPED = over(Why.STOPPED, signal=signal.SIGTERM)
ABSENT = ReplicaState(Phase.ABSENT)


def judged(
    *states: ReplicaState, leaving: bool = False, shut_down: bool = False, trouble: str = ""
) -> Outcome:
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
        ((exited(), exited()), End.SUCCEEDED),
        ((exited(), exited(1)), End.FAILED),
        ((exited(1), STOPPED), End.FAILED),
        ((KILLED, exited(1)), End.LOST),
        ((KILLED, exited()), End.LOST),
        ((ABSENT, exited()), End.LOST),
        ((STOPPED, STOPPED), End.LOST),
        ((over(Why.SETUP_FAILED, exit_code=2), STOPPED), End.FAILED_SETUP),
        ((over(Why.TIME_LIMIT, exit_code=0), STOPPED), End.TIME_LIMIT),
        ((over(Why.CANNOT_START, error="/x: No such file or directory"), STOPPED), End.CANNOT_START),
        ((over(Why.CANNOT_START, error="runner: No space left on device"), STOPPED), End.LOST),
    ],
)
def test_end_that_nobody_asked_for(states: tuple[ReplicaState, ...], end: End):
    assert judged(*states).end is end


@pytest.mark.parametrize(
    "states", [(STOPPED, STOPPED), (STOPPED, exited(1)), (exited(), STOPPED), (KILLED, ABSENT)]
)
def test_end_that_was_asked_for_is_no_failure(states: tuple[ReplicaState, ...]):
    assert judged(*states, leaving=True).end is End.STOPPED


def test_success_is_success_even_while_being_stopped():
    assert judged(exited(), exited(), leaving=True).end is End.SUCCEEDED
    assert judged(exited(), shut_down=True).end is End.SUCCEEDED


def test_shutdown_of_the_server_and_trouble_at_the_start_are_not_the_jobs_fault():
    assert judged(exited(1), shut_down=True) == Outcome(End.LOST, detail="the server was shut down")
    assert judged(STOPPED, ABSENT, trouble="no room") == Outcome(End.LOST, detail="no room")


def test_first_to_fail_is_the_one_to_blame():
    found = judged(exited(1, ended_s=7.0), exited(2, ended_s=5.0), exited(3, ended_s=6.0))
    assert found == Outcome(End.FAILED, 2, "rank 1 exited with code 2; its last line: line of 1")


def test_signal_is_said_as_a_shell_would():
    found = judged(over(Why.EXITED, signal=9))
    assert found == Outcome(
        End.FAILED, 137, "the job was ended by signal 9 (SIGKILL); its last line: line of 0"
    )
    assert "(unknown)" in judged(over(Why.EXITED, signal=250)).detail


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
