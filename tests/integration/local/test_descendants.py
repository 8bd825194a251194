"""Whatever a replica forks ends with it."""

import os
import time

from batuta.backends.local.processes import stop
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from batuta.backends.local.supervisor import process_tree
from tests.support.local_replicas import Replicas, Started, process, wait_until

# As a daemon does it: two forks, a session of its own, no files, no environment, deaf to polite signals.
DAEMON = """
import os, signal, sys
def daemon(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.closerange(0, 256)
            draft = os.open(path + ".new", os.O_CREAT | os.O_WRONLY)
            os.write(draft, str(os.getpid()).encode())
            os.rename(path + ".new", path)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os._exit(0)
    os.wait()
for i in range(3):
    daemon(f"daemon{i}")
"""

# Four that fork and exit as fast as they can, each generation in a session of its own: moving targets.
RUNAWAYS = """
import os, time
give_up = time.time() + 60
for i in range(4):
    if os.fork() == 0:
        open(f"runaway{i}", "w").close()
        while time.time() < give_up:
            os.setsid()
            if os.fork():
                os._exit(0)
        os._exit(0)
while not all(os.path.exists(f"runaway{i}") for i in range(4)):
    time.sleep(0.01)
time.sleep(0.2)
"""


def daemons(started: Started) -> list[process_tree.Process]:
    """The daemons of a replica, once they are there."""
    paths = [started.spec.cwd / f"daemon{i}" for i in range(3)]
    wait_until(lambda: all(path.exists() for path in paths), what="daemons")
    return [process(int(path.read_text())) for path in paths]


def test_daemons_end_with_the_command(replicas: Replicas):
    started = replicas.python(DAEMON + "\nimport time; time.sleep(1)\nsys.exit(4)")
    known = daemons(started)
    assert len(known) == 3
    assert all(process_tree.is_running(daemon) for daemon in known)
    state = started.end()
    assert (state.why, state.exit_code, state.survivors) == (ExitReason.EXITED, 4, ())
    assert not any(process_tree.is_running(daemon) for daemon in known)


def test_daemons_end_with_a_stop(replicas: Replicas):
    started = replicas.python(DAEMON + "\nimport time; time.sleep(1000)", grace_s=0.3)
    known = daemons(started)
    stop(started.replica)
    state = started.end()
    assert (state.why, state.survivors) == (ExitReason.STOPPED, ())
    assert not any(process_tree.is_running(daemon) for daemon in known)


def test_background_commands_of_a_script_end_with_it(replicas: Replicas):
    started = replicas.start("sleep 1000 & sleep 1001 & setsid sleep 1002 & echo $! >pid; exit 0")
    assert started.end().exit_code == 0
    assert not os.path.exists(f"/proc/{(replicas.home / 'pid').read_text().strip()}")


def test_hundreds_of_processes_end(replicas: Replicas):
    started = replicas.start("for i in $(seq 200); do sleep 1000 & done; echo ready; trap '' TERM; wait", grace_s=0.2)
    started.until_logged("ready")
    stop(started.replica)
    assert started.end().survivors == ()


def test_runaways_are_caught(replicas: Replicas):
    state = replicas.python(RUNAWAYS).end()
    assert (state.why, state.exit_code, state.survivors) == (ExitReason.EXITED, 0, ())


def test_daemon_of_setup_serves_the_command_and_ends_with_it(replicas: Replicas):
    started = replicas.start("sleep 0.3; kill -0 $(cat pid) && echo served", setup="setsid sleep 1000 & echo $! >pid")
    assert started.end().exit_code == 0
    assert "served" in started.log()
    assert not os.path.exists(f"/proc/{(replicas.home / 'pid').read_text().strip()}")


def test_orphans_are_reaped_while_the_command_runs(replicas: Replicas):
    started = replicas.start("for i in $(seq 50); do (sleep 0 &) ; done; sleep 0.5; echo ready; sleep 1000")
    started.until_logged("ready")
    time.sleep(0.2)
    state = started.until(ReplicaPhase.RUNNING)
    assert state.runner_pid is not None
    assert not [entry for entry in process_tree.descendants({state.runner_pid}) if entry.dead]


def test_stop_is_prompt_when_all_obey(replicas: Replicas):
    started = replicas.start("sleep 1000 & sleep 1000", grace_s=1000)
    started.until(ReplicaPhase.RUNNING)
    begun = time.monotonic()
    stop(started.replica)
    started.end()
    assert time.monotonic() - begun < 30
