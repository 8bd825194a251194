"""Ends and news of many runners, at once."""

import os
import queue
import statistics
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from batuta.backends.local.processes import RunningReplica, observe
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from batuta.backends.local.supervisor import process_tree
from batuta.backends.local.watch import RunnerEvent, Watch
from tests.support.local_replicas import ENV, PATIENCE_S, Replicas, begun_s, wait_until


@pytest.fixture
def news() -> queue.SimpleQueue[RunnerEvent]:
    return queue.SimpleQueue()


def test_hundred_short_replicas(replicas: Replicas, news, capsys: pytest.CaptureFixture[str]):
    bell = replicas.home / "bell"
    launched: dict[str, float] = {}
    started = {}
    with closing(Watch(news.put, bell)) as watch:
        for _ in range(20):
            for _ in range(5):
                one = replicas.start(["true"], doorbell=bell)
                launched[one.spec.run_id] = time.time()
                started[one.spec.run_id] = one
                watch.add(one.replica)
            ended = 0
            while ended < 5:
                ended += news.get(timeout=PATIENCE_S).ended
        assert len(watch) == 0
    states = {run_id: one.state() for run_id, one in started.items()}
    assert {(state.why, state.exit_code) for state in states.values()} == {(ExitReason.EXITED, 0)}
    latency_s = statistics.median(begun_s(state) - launched[run_id] for run_id, state in states.items())
    with capsys.disabled():
        sys.stdout.write(f" [launch to running, five at a time: median {latency_s * 1000:.0f} ms]")
    # 150 ms is what a quiet machine has to reach; five at a time on a busy one may take this long.
    assert latency_s < 1.5


def test_launch_of_one_is_fast(replicas: Replicas, capsys: pytest.CaptureFixture[str]):
    latencies_s = []
    for _ in range(15):
        begun = time.time()
        one = replicas.start(["true"])
        latencies_s.append(begun_s(one.end()) - begun)
    with capsys.disabled():
        sys.stdout.write(f" [launch to running: median {statistics.median(latencies_s) * 1000:.0f} ms]")
    assert min(latencies_s) < 0.15
    assert statistics.median(latencies_s) < 0.75


def test_doorbell_tells_each_phase(replicas: Replicas, news):
    bell = replicas.home / "bell"
    with closing(Watch(news.put, bell)) as watch:
        one = replicas.start(
            "until [ -e end ]; do sleep 0.02; done",
            setup="until [ -e go ]; do sleep 0.02; done",
            doorbell=bell,
        )
        watch.add(one.replica)
        run_id = one.spec.run_id

        def until(phase: ReplicaPhase) -> None:
            while observe(one.run_dir).phase is not phase:
                assert news.get(timeout=PATIENCE_S) == RunnerEvent(run_id, ended=False)

        until(ReplicaPhase.SETUP)
        (replicas.home / "go").touch()
        until(ReplicaPhase.RUNNING)
        (replicas.home / "end").touch()
        until(ReplicaPhase.EXITED)
        while not news.get(timeout=PATIENCE_S).ended:
            pass


def test_doorbell_without_anybody_behind_it_does_not_hold_a_replica(replicas: Replicas):
    bell = replicas.home / "bell"
    os.mkfifo(bell)
    assert replicas.start(["true"], doorbell=bell).end().exit_code == 0
    assert replicas.start(["true"], doorbell=replicas.home / "none").end().exit_code == 0


@pytest.mark.parametrize("with_pidfd", [True, False], ids=["pidfd", "polling"])
def test_ends_of_hundreds_are_told_once_each(tmp_path: Path, news, with_pidfd: bool, monkeypatch: pytest.MonkeyPatch):
    """Any process will do: what is watched is the end of a pid with a start time."""
    if not with_pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda _: (_ for _ in ()).throw(OSError("none")))
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(200)]
    try:
        with closing(Watch(news.put, poll_s=0.02)) as watch:
            for process in processes:
                start = process_tree.start_of(process.pid)
                watch.add(RunningReplica(str(process.pid), tmp_path, process.pid, start))
            assert len(watch) == 200
            time.sleep(0.1)
            assert news.empty()
            for process in processes:
                process.kill()
            told = {news.get(timeout=PATIENCE_S) for _ in range(200)}
            assert told == {RunnerEvent(str(process.pid), ended=True) for process in processes}
            time.sleep(0.1)
            assert news.empty()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_end_before_the_watch_is_told_too(replicas: Replicas, news, tmp_path: Path):
    one = replicas.start(["true"])
    wait_until(lambda: not one.replica.is_running)  # not reaped yet
    with closing(Watch(news.put)) as watch:
        watch.add(one.replica)
        assert news.get(timeout=PATIENCE_S) == RunnerEvent(one.spec.run_id, ended=True)
        assert not os.path.exists(f"/proc/{one.replica.pid}")  # reaped now
        watch.add(RunningReplica("recycled", tmp_path, os.getpid(), 1))
        assert news.get(timeout=PATIENCE_S) == RunnerEvent("recycled", ended=True)


ELSEWHERE = """
    import fcntl, os, queue, select, sys, time
    from contextlib import closing
    from pathlib import Path
    for name in ("pidfd_open", "P_PIDFD", "waitid"):
        delattr(os, name)
    del select.epoll, fcntl.F_SETPIPE_SZ
    from batuta.backends.local.supervisor import process_tree
    process_tree.look_up = lambda pid: None
    process_tree.boot_id = lambda: ""
    from batuta.backends.local import addresses, logs, progress, replica_plan
    from batuta.backends.local.processes import launch, stop
    from batuta.backends.local.runner_protocol import ReplicaSpec
    from batuta.backends.local.watch import Watch
    home, run_id, news = Path(sys.argv[1]), sys.argv[2], queue.SimpleQueue()
    log, bell = home / "log", home / "bell"
    with closing(Watch(news.put, bell, poll_s=0.02)) as watch:
        script = "echo ready; sleep 1000"
        spec = ReplicaSpec(run_id, script, cwd=home, log=log, env=dict(os.environ), doorbell=bell)
        replica = launch(home / "run", spec)
        watch.add(replica)
        while not log.exists() or "ready" not in log.read_text():
            time.sleep(0.01)
        assert replica.start is None
        assert replica.is_running
        stop(replica)
        while not news.get(timeout=60).ended:
            pass
        assert not replica.is_running
"""


def test_system_without_the_calls_of_linux(replicas: Replicas, tmp_path: Path):
    """No pidfd, no epoll, no /proc: the lock tells whether a runner lives, and a look now and then."""
    env = ENV | {"PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    command = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), str(tmp_path), replicas.new_id()]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=200)
    assert result.returncode == 0, result.stderr
    assert observe(tmp_path / "run").why is ExitReason.STOPPED
