"""Stop, grace, kill; and the request for a checkpoint before it."""

import os
import signal
import time
from pathlib import Path

from batuta.backends.local.processes import kill, request_checkpoint, stop
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from batuta.sdk import _requests as sdk_requests
from tests.support.local_replicas import ENV, Replicas, run_time_s, wait_until

SOURCE = Path(__file__).resolve().parents[3] / "src"

TRAINER = """
import signal, sys, time
def on_term(*_):
    time.sleep(0.7)
    open("checkpoint", "w").write("whole")
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
print("ready")
while True:
    time.sleep(0.05)
"""

CHECKPOINTER = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("asked"))
print("ready")
while True:
    time.sleep(0.02)
"""


def test_stop_ends_a_command(replicas: Replicas):
    started = replicas.start(["sleep", "1000"])
    started.until(ReplicaPhase.RUNNING)
    assert stop(started.replica)
    state = started.end()
    assert (state.why, state.exit_code, state.signal) == (ExitReason.STOPPED, None, signal.SIGTERM)
    assert not stop(started.replica)


def test_command_that_ends_with_0_while_being_stopped_has_finished(replicas: Replicas):
    started = replicas.start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    started.until_logged("ready")
    stop(started.replica)
    state = started.end()
    assert (state.why, state.exit_code) == (ExitReason.EXITED, 0)


def test_command_that_ends_otherwise_while_being_stopped_was_stopped(replicas: Replicas):
    started = replicas.start("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    started.until_logged("ready")
    stop(started.replica)
    state = started.end()
    assert (state.why, state.exit_code) == (ExitReason.STOPPED, 3)


def test_command_that_ignores_sigterm_is_killed_after_its_grace(replicas: Replicas):
    started = replicas.start("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=0.6)
    started.until_logged("ready")
    stop(started.replica)
    started.until(ReplicaPhase.STOPPING)
    state = started.end()
    assert (state.why, state.signal) == (ExitReason.STOPPED, signal.SIGKILL)
    assert run_time_s(state) >= 0.6


def test_second_signal_hastens_but_a_second_stop_does_not(replicas: Replicas):
    started = replicas.start("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=1000)
    started.until_logged("ready")
    stop(started.replica)
    started.until(ReplicaPhase.STOPPING)
    for _ in range(3):
        assert stop(started.replica)  # a server that does not remember may ask as often as it likes
    time.sleep(0.3)
    assert started.state().phase is ReplicaPhase.STOPPING
    os.kill(started.replica.pid, signal.SIGTERM)
    assert started.end().signal == signal.SIGKILL


def test_kill_does_not_wait_for_the_grace(replicas: Replicas):
    started = replicas.start("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=1000)
    started.until_logged("ready")
    assert kill(started.replica)
    assert (started.end().why, started.end().signal) == (ExitReason.STOPPED, signal.SIGKILL)


def test_trainer_may_write_its_checkpoint_when_its_shell_is_dead_already(replicas: Replicas):
    (replicas.home / "train.py").write_text(TRAINER)
    started = replicas.start("$PYTHON -u train.py\necho not reached")
    started.until_logged("ready")
    stop(started.replica)
    state = started.end()
    assert (replicas.home / "checkpoint").read_text() == "whole"
    assert (state.why, state.signal) == (ExitReason.STOPPED, signal.SIGTERM)
    assert "not reached" not in started.log()


def test_what_is_being_forked_when_the_stop_comes_ends_too(replicas: Replicas):
    """Its parent dies of the signal, and it would wait for the end of the grace."""
    for _ in range(15):
        started = replicas.start("sleep 1000 & sleep 1000 & (sleep 1000; true) & wait", grace_s=1000)
        started.until(ReplicaPhase.RUNNING)
        stop(started.replica)
        assert started.end().why is ExitReason.STOPPED


def test_what_a_trainer_starts_in_order_to_end_well_is_spared(replicas: Replicas):
    (replicas.home / "train.py").write_text(
        TRAINER.replace("time.sleep(0.7)", "import subprocess; subprocess.run(['sleep', '1.5'], check=True)")
    )
    started = replicas.start("$PYTHON -u train.py\ntrue")
    started.until_logged("ready")
    stop(started.replica)
    started.end()
    assert (replicas.home / "checkpoint").read_text() == "whole"


def test_suspended_command_can_be_stopped(replicas: Replicas):
    started = replicas.start("echo ready; kill -STOP $$")
    started.until_logged("ready")
    stop(started.replica)
    assert started.end().signal == signal.SIGTERM


def test_stop_before_the_runner_listens(replicas: Replicas):
    """The request waits, and the command never runs."""
    started = replicas.start("touch ran; sleep 1000")
    stop(started.replica)
    state = started.end()
    assert (state.phase, state.why) == (ReplicaPhase.EXITED, ExitReason.STOPPED)
    # A command may be stopped before it has said a word, but one that has not begun has said none.
    assert state.run_begun_s is not None or not (replicas.home / "ran").exists()


def test_checkpoint_request_reaches_whoever_listens(replicas: Replicas):
    """Below a shell and beside a sleep, which both would die of the signal."""
    (replicas.home / "train.py").write_text(CHECKPOINTER)
    request = replicas.home / "checkpoint-requested"
    started = replicas.start("sleep 1000 &\n$PYTHON -u train.py & wait -n; exit 9", checkpoint_request=request)
    started.until_logged("ready")
    assert not request.exists()
    assert request_checkpoint(started.replica)
    started.until_logged("asked")
    assert (int(request.read_text()), started.state().checkpoint_request) == (1, 1)
    request_checkpoint(started.replica)
    wait_until(lambda: started.log().count("asked") == 2)
    assert (int(request.read_text()), started.state().checkpoint_request) == (2, 2)
    assert started.state().phase is ReplicaPhase.RUNNING


def test_checkpoint_request_is_what_the_sdk_understands(replicas: Replicas):
    control = replicas.home / "control"
    control.mkdir()
    code = """
import time
from batuta import sdk
print("ready", sdk.checkpoint_requested())
while True:
    time.sleep(0.02)
    if sdk.checkpoint_requested():
        sdk.checkpointed("somewhere", step=1)
        print("saved", sdk.checkpoint_requested())
"""
    (replicas.home / "train.py").write_text(code)
    env = ENV | {"PYTHONPATH": str(SOURCE), "BATUTA_JOB_ID": "1", "BATUTA_CONTROL": str(control)}
    started = replicas.start("$PYTHON -u train.py", env=env, checkpoint_request=control / sdk_requests.REQUEST_FILE)
    started.until_logged("ready False")
    for count in (1, 2):
        request_checkpoint(started.replica)
        started.until_logged("saved False\n" * count)
    assert (control / sdk_requests.DONE_FILE).read_text() == (control / sdk_requests.REQUEST_FILE).read_text()


def test_checkpoint_request_does_not_kill_who_does_not_listen(replicas: Replicas):
    request = replicas.home / "checkpoint-requested"
    started = replicas.start("sleep 1 | cat; echo survived; exit 5", checkpoint_request=request)
    request_checkpoint(started.replica)  # the runner may not even be there
    wait_until(request.exists)
    request_checkpoint(started.replica)
    assert started.end().exit_code == 5
    assert started.log() == "survived\n"
