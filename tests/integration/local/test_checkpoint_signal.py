"""Who is asked for a checkpoint by SIGUSR1: processes that handle it, and nobody who would die of it."""

import os
import sys
from pathlib import Path

import pytest

from batuta.backends.local.processes import kill, request_checkpoint
from batuta.backends.local.runner_protocol import ReplicaPhase
from tests.support.local_replicas import Replicas, wait_until

LOOP = "echo ready; while :; do sleep 0.02; done"
TIDIES = f"trap 'echo tidy' EXIT; {LOOP}"
SUBSTITUTES = f"exec {{nap}}<> <(:); {LOOP}"
ANSWERS = f"trap 'echo asked' USR1; {LOOP}"
DOES_BOTH = f"trap 'echo tidy' EXIT; trap 'echo asked' USR1; {LOOP}"


@pytest.mark.parametrize("script", [LOOP, TIDIES, SUBSTITUTES], ids=["plain", "exit trap", "substitution"])
def test_shell_that_only_tidies_up_is_spared_the_signal(replicas: Replicas, script: str):
    """bash catches SIGUSR1 for a trap on EXIT, and dies of it nevertheless; so would the trainer below it."""
    started = replicas.start(["bash", "-c", script])
    started.until_logged("ready")
    request_checkpoint(started.replica)
    wait_until(lambda: started.state().checkpoint_request == 1)
    kill(started.replica)
    assert started.end().signal in (9, 15), "it lived until it was killed"


@pytest.mark.parametrize("script", [ANSWERS, DOES_BOTH], ids=["trap", "two traps"])
@pytest.mark.parametrize("as_file", [False, True], ids=["command", "file"])
def test_shell_with_a_trap_of_its_own_is_asked(replicas: Replicas, script: str, as_file: bool):
    started = replicas.start(script if as_file else ["bash", "-c", script])
    started.until_logged("ready")
    request_checkpoint(started.replica)
    started.until_logged("asked")
    assert started.state().phase is ReplicaPhase.RUNNING
    kill(started.replica)
    started.end()


CATCHES_ALL = """
import signal, time
for one in (signal.SIGTRAP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGSYS):
    signal.signal(one, lambda *_: None)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_pipe_in_place_of_a_script_keeps_no_runner_waiting(replicas: Replicas, tmp_path: Path):
    (tmp_path / "script").write_text(CATCHES_ALL)
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "ask", "w") as file:
        file.write(f"exec {sys.executable} - {tmp_path / 'pipe'} < {tmp_path / 'script'}\n")
    started = replicas.start(["bash", str(tmp_path / "ask")])
    started.until_logged("ready")
    request_checkpoint(started.replica)
    wait_until(lambda: started.state().checkpoint_request == 1)
    kill(started.replica)
    started.end()
