"""A replica from its start to its end, when nobody interferes."""

import os
import signal
from pathlib import Path

import pytest

from batuta.backends.local.processes import RunExists, launch
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase, ReplicaSpec
from tests.support.local_replicas import ENV, Replicas, run_time_s


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_that_of_the_command(replicas: Replicas, code: int):
    state = replicas.start(f"exit {code}").end()
    assert (state.phase, state.why, state.exit_code, state.signal) == (
        ReplicaPhase.EXITED,
        ExitReason.EXITED,
        code,
        None,
    )
    assert run_time_s(state) >= 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_signal_that_ended_the_command_is_told(replicas: Replicas, number: signal.Signals):
    state = replicas.start(f"kill -{int(number)} $$").end()
    assert (state.why, state.exit_code, state.signal) == (ExitReason.EXITED, None, number)


def test_arguments_are_taken_as_they_are(replicas: Replicas):
    started = replicas.start(["printf", "%s|", "a b", "$HOME", "", "ü"])
    assert started.end().exit_code == 0
    assert started.log() == "a b|$HOME||ü|"


def test_output_of_both_kinds_is_in_the_log(replicas: Replicas):
    started = replicas.start("echo one; echo two >&2; printf three")
    started.end()
    assert started.log() == "one\ntwo\nthree"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": ["no-such-command-here"]}, "no-such-command-here: No such file or directory"),
        ({"run": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
        ({"run": ["true"], "cwd": "missing"}, "missing: No such file or directory"),
    ],
)
def test_command_that_cannot_start_says_why(replicas: Replicas, change: dict, message: str):
    if "cwd" in change:
        change = change | {"cwd": replicas.home / change["cwd"]}
    started = replicas.start(**change)
    state = started.end()
    assert (state.phase, state.why, state.exit_code) == (ReplicaPhase.EXITED, ExitReason.CANNOT_START, None)
    assert state.error.endswith(message)
    assert message in started.log()


def test_environment_is_the_given_one_and_nothing_else(replicas: Replicas):
    started = replicas.start(["env"], env={"PATH": ENV["PATH"], "GREETING": "hé 🎼 \n$x"})
    started.end()
    expected = {"PATH": ENV["PATH"], "GREETING": "hé 🎼 \n$x", "BATUTA_RUN": started.spec.run_id}
    assert sorted(started.log().splitlines()) == sorted("\n".join(f"{k}={v}" for k, v in expected.items()).splitlines())


def test_environment_may_hold_bytes_that_are_no_text(replicas: Replicas):
    started = replicas.start('printf %s "$ODD" | od -An -tx1', env=ENV | {"ODD": os.fsdecode(b"a\xff\xfe")})
    started.end()
    assert started.log().split() == ["61", "ff", "fe"]


def test_command_inherits_nothing_but_its_output(replicas: Replicas):
    code = """
import os, signal
print(sorted(os.listdir("/proc/self/fd"), key=int)[:-1], os.readlink("/proc/self/fd/0"))
print(os.getsid(0) == os.getpid() == os.getpgrp(), os.getcwd())
print([n for n in (1, 2, 10, 15, 17, 25) if signal.getsignal(n) == signal.SIG_IGN and n != 25])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    started = replicas.python(code)
    started.end()
    assert started.log().splitlines() == [
        "['0', '1', '2'] /dev/null",
        f"True {replicas.home}",
        "[]",
        "set()",
    ]


def test_broken_pipe_ends_a_command_as_everywhere(replicas: Replicas):
    started = replicas.start('yes | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}"')
    started.end()
    assert started.log() == "141\n"


def test_script_may_be_longer_than_an_argument(replicas: Replicas):
    started = replicas.start("# padding\n" * 40_000 + "echo done")
    assert started.end().exit_code == 0
    assert started.log() == "done\n"


def test_time_limit_ends_a_command(replicas: Replicas):
    started = replicas.start("sleep 1000", time_limit_s=0.3, grace_s=30)
    state = started.end()
    assert (state.why, state.signal) == (ExitReason.TIME_LIMIT, signal.SIGTERM)
    assert 0.3 <= run_time_s(state) < 20


def test_time_limit_is_told_even_when_the_command_ends_with_success(replicas: Replicas):
    state = replicas.start("trap 'exit 0' TERM; while :; do sleep 0.05; done", time_limit_s=0.5).end()
    assert (state.why, state.exit_code) == (ExitReason.TIME_LIMIT, 0)


def test_directory_is_used_once(replicas: Replicas):
    started = replicas.start("true")
    with pytest.raises(RunExists):
        launch(started.run_dir, started.spec)
    started.end()
    with pytest.raises(RunExists):
        launch(started.run_dir, started.spec)


def test_finished_run_leaves_only_its_records(replicas: Replicas):
    started = replicas.start("echo done")
    started.end()
    assert sorted(os.listdir(started.run_dir)) == ["log", "log.at", "run.sh", "spec.json", "state.json"]
    assert (started.run_dir / "spec.json").stat().st_mode & 0o077 == 0


def test_run_id_cannot_be_a_path():
    for bad in ("", "../x", "a/b", "a b", "a\n"):
        with pytest.raises(ValueError, match="run id"):
            ReplicaSpec(run_id=bad, run="true", cwd=Path(), log=Path())
