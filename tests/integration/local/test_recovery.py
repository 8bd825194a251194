"""What a new server finds after the old one, a runner, or the machine was killed."""

import fcntl
import functools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

from batuta.backends.local.processes import (
    RunningReplica,
    adopt,
    clean_up,
    find_leftovers,
    kill,
    kill_leftovers,
    observe,
    stop,
)
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from batuta.backends.local.supervisor import process_tree
from batuta.backends.local.watch import RunnerEvent, Watch
from tests.support.local_replicas import ENV, PATIENCE_S, Replicas, Started, process, run_time_s, wait_until

REPO = Path(__file__).resolve().parents[3]


def edit_state(started: Started, **changes) -> None:
    path = started.run_dir / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def is_in(run_dir: Path, phase: ReplicaPhase) -> bool:
    return observe(run_dir).phase is phase


def end_adopted(replica: RunningReplica) -> None:
    kill(replica)
    wait_until(lambda: not replica.is_running)


# -------------------------------------------------------------------------------------- the runner is killed


def test_processes_of_a_killed_runner_are_found_and_killed(replicas: Replicas):
    started = replicas.start("setsid sleep 1000 & sleep 1000 & echo ready; wait")
    started.until_logged("ready")
    os.kill(started.replica.pid, signal.SIGKILL)
    started.end()
    assert started.state().phase is ReplicaPhase.LOST
    assert adopt(started.run_dir) is None
    assert len(find_leftovers(started.spec.run_id)) >= 2
    assert kill_leftovers(started.spec.run_id) >= 2
    assert find_leftovers(started.spec.run_id) == []
    assert kill_leftovers(started.spec.run_id) == 0


def test_burial_leaves_a_final_state(replicas: Replicas):
    started = replicas.start("sleep 1000 & echo ready; wait")
    started.until_logged("ready")
    assert clean_up(started.run_dir).phase is ReplicaPhase.RUNNING  # of a living one, nothing is touched
    os.kill(started.replica.pid, signal.SIGKILL)
    started.end()
    state = clean_up(started.run_dir)
    assert (state.phase, state.why, state.exit_code, state.signal) == (
        ReplicaPhase.EXITED,
        ExitReason.KILLED,
        None,
        None,
    )
    assert run_time_s(state) >= 0
    assert observe(started.run_dir) == state == clean_up(started.run_dir)
    assert find_leftovers(started.spec.run_id) == []


def test_process_without_its_environment_is_found_by_its_session(replicas: Replicas):
    started = replicas.start("env -i sleep 1000 & echo $! >pid; echo ready; wait")
    started.until_logged("ready")
    left = process(int((replicas.home / "pid").read_text()))
    os.kill(started.replica.pid, signal.SIGKILL)
    started.end()
    clean_up(started.run_dir)
    wait_until(lambda: not process_tree.is_running(left), within_s=5)


def test_main_process_ends_with_its_runner(replicas: Replicas):
    started = replicas.start(["sleep", "1000"])
    state = started.until(ReplicaPhase.RUNNING)
    os.kill(started.replica.pid, signal.SIGKILL)
    main = process(state.child_pid, state.child_start)
    wait_until(lambda: not process_tree.is_running(main))


# ------------------------------------------------------------------------- pids that mean another process


def test_recycled_pid_is_not_adopted(replicas: Replicas):
    started = replicas.start(["sleep", "1000"])
    pid, start = process(started.until(ReplicaPhase.RUNNING).runner_pid)
    edit_state(started, runner_start=start + 1)
    assert observe(started.run_dir).phase is ReplicaPhase.LOST
    assert adopt(started.run_dir) is None
    impostor = RunningReplica(started.spec.run_id, started.run_dir, pid, start + 1)
    assert not impostor.is_running
    assert not stop(impostor)
    edit_state(started, runner_start=start)
    assert adopt(started.run_dir) == started.replica
    assert started.replica.is_running


def test_pid_of_another_start_of_the_machine_is_not_adopted(replicas: Replicas):
    started = replicas.start(["sleep", "1000"])
    state = started.until(ReplicaPhase.RUNNING)
    edit_state(started, boot_id="before")
    assert observe(started.run_dir).phase is ReplicaPhase.LOST
    assert adopt(started.run_dir) is None
    edit_state(started, boot_id=state.boot_id)


def test_spec_that_nobody_started_is_absent(tmp_path: Path):
    assert observe(tmp_path / "nothing").phase is ReplicaPhase.ABSENT
    (tmp_path / "spec.json").write_text("{}")
    assert observe(tmp_path).phase is ReplicaPhase.ABSENT
    assert adopt(tmp_path) is None


def test_spec_that_is_locked_is_starting(tmp_path: Path):
    (tmp_path / "spec.json").write_text("{}")
    with open(tmp_path / "spec.json", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert observe(tmp_path).phase is ReplicaPhase.STARTING
        assert adopt(tmp_path, within_s=0.05) is None
    assert observe(tmp_path).phase is ReplicaPhase.ABSENT


def test_runner_that_breaks_down_says_why(replicas: Replicas):
    started = replicas.start("true", log_cap_bytes="many")  # nothing that a server would write
    started.end()
    state = started.state()
    assert state.phase is ReplicaPhase.ABSENT
    assert "ValueError" in state.error


def test_state_that_makes_no_sense_is_none(tmp_path: Path):
    for text in ("", "{", "[]", "null", '{"phase": "dancing"}', '{"phase": "running", "runner_pid": "x"}'):
        (tmp_path / "state.json").write_text(text)
        assert observe(tmp_path).phase is ReplicaPhase.ABSENT


# -------------------------------------------------------------------------------------- the server is killed

SERVER = """
    import json, sys, time
    from pathlib import Path
    from batuta.backends.local.processes import launch
    from batuta.backends.local.runner_protocol import ReplicaSpec
    home, script = Path(sys.argv[1]), sys.argv[3]
    names, env = json.loads(sys.argv[2]), json.loads(sys.argv[4])
    print("up", flush=True)
    for name in names:
        run_dir = home / name
        launch(run_dir, ReplicaSpec(run_id=name, run=script, cwd=home, log=run_dir / "log", env=env))
        print(name, flush=True)
    time.sleep(1000)
"""


def start_server(home: Path, names: list[str], script: str) -> subprocess.Popen[str]:
    arguments = [str(home), json.dumps(names), script, json.dumps(ENV)]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), *arguments],
        env={**ENV, "PYTHONPATH": str(REPO / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_replica_outlives_its_server_and_is_adopted(replicas: Replicas):
    name = replicas.new_id()
    run_dir = replicas.home / name
    script = """
        for i in $(seq 40); do echo line $i; sleep 0.02; done
        until [ -e go ]; do sleep 0.02; done
        exit 6
    """
    with start_server(replicas.home, [name], script) as server:
        wait_until(lambda: observe(run_dir).phase is ReplicaPhase.RUNNING)
        server.kill()
    replica = adopt(run_dir)
    assert replica is not None
    news: queue.SimpleQueue[RunnerEvent] = queue.SimpleQueue()
    with closing(Watch(news.put)) as watch:
        watch.add(replica)
        assert news.empty()
        (replicas.home / "go").touch()
        assert news.get(timeout=PATIENCE_S) == RunnerEvent(name, ended=True)
    state = observe(run_dir)
    assert (state.phase, state.why, state.exit_code) == (ReplicaPhase.EXITED, ExitReason.EXITED, 6)
    assert (run_dir / "log").read_text().splitlines() == [f"line {i}" for i in range(1, 41)]
    assert adopt(run_dir) is None


def test_adopted_replica_can_be_stopped(replicas: Replicas):
    name = replicas.new_id()
    with start_server(replicas.home, [name], "sleep 1000") as server:
        wait_until(lambda: observe(replicas.home / name).phase is ReplicaPhase.RUNNING)
        server.kill()
    replica = adopt(replicas.home / name)
    assert replica is not None
    assert stop(replica)
    wait_until(lambda: not replica.is_running)
    assert observe(replicas.home / name).why is ExitReason.STOPPED


def test_server_killed_at_any_moment_leaves_each_replica_running_or_absent(replicas: Replicas):
    """No replica that a new server would start a second time, and none that runs unknown to it."""
    chance = random.Random(4)
    absent = running = 0
    for _ in range(12):
        names = [replicas.new_id() for _ in range(4)]
        with start_server(replicas.home, names, "sleep 1000") as server:
            assert server.stdout is not None
            server.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.02))
            server.kill()
        for name in names:
            run_dir = replicas.home / name
            replica = adopt(run_dir)
            if replica is None:
                assert observe(run_dir).phase is ReplicaPhase.ABSENT
                assert find_leftovers(name) == []
                absent += 1
            else:
                wait_until(functools.partial(is_in, run_dir, ReplicaPhase.RUNNING))
                assert len(find_leftovers(name)) >= 1
                end_adopted(replica)
                running += 1
    assert absent
    assert running
