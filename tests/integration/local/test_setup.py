"""Setup runs once per node, before the command."""

import os
import time

from batuta.backends.local.processes import stop
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from tests.support.local_replicas import ENV, Replicas


def test_setup_runs_before_the_command_with_its_own_variables(replicas: Replicas):
    started = replicas.start("echo run $WHO", setup="echo setup $WHO", setup_env={"WHO": "me"})
    assert started.end().exit_code == 0
    assert started.log() == "setup me\nrun\n"


def test_setup_runs_once_among_concurrent_replicas(replicas: Replicas):
    marker = replicas.home / "node0.ready"
    four = [
        replicas.start(
            "cat prepared", setup="echo begin >>prepared; sleep 0.5; echo end >>prepared", setup_marker=marker
        )
        for _ in range(4)
    ]
    assert [started.end().exit_code for started in four] == [0, 0, 0, 0]
    assert [started.log() for started in four] == ["begin\nend\n"] * 4
    late = replicas.start("cat prepared", setup="exit 1", setup_marker=marker)
    assert late.end().exit_code == 0


def test_failed_setup_is_told_and_tried_again_by_the_next(replicas: Replicas):
    marker = replicas.home / "node0.ready"
    first = replicas.start("touch ran", setup="sleep 1000 & exit 3", setup_marker=marker)
    state = first.end()
    assert (state.why, state.exit_code, state.run_begun_s) == (ExitReason.SETUP_FAILED, 3, None)
    assert not marker.exists()
    assert not (replicas.home / "ran").exists()
    second = replicas.start("touch ran", setup="exit 0", setup_marker=marker)
    assert (second.end().why, marker.exists()) == (ExitReason.EXITED, True)


def test_phase_tells_of_setup(replicas: Replicas):
    started = replicas.start("echo ready; sleep 1000", setup="until [ -e go ]; do sleep 0.02; done")
    state = started.until(ReplicaPhase.SETUP)
    assert state.run_begun_s is None
    (replicas.home / "go").touch()
    assert started.until(ReplicaPhase.RUNNING).run_begun_s is not None


def test_stop_during_setup_is_no_success(replicas: Replicas):
    started = replicas.start("touch ran", setup="trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    started.until_logged("ready")
    stop(started.replica)
    state = started.end()
    assert (state.why, state.exit_code, state.run_begun_s) == (ExitReason.STOPPED, None, None)
    assert not (replicas.home / "ran").exists()


def test_stop_while_another_replica_does_the_setup(replicas: Replicas):
    marker = replicas.home / "node0.ready"
    first = replicas.start("true", setup="echo ready; sleep 1000", setup_marker=marker)
    first.until_logged("ready")
    second = replicas.start("true", setup="true", setup_marker=marker)
    second.until(ReplicaPhase.SETUP)
    stop(second.replica)
    assert second.end().why is ExitReason.STOPPED
    assert first.state().phase is ReplicaPhase.SETUP


def test_setup_lock_is_free_after_its_runner_was_killed(replicas: Replicas):
    marker = replicas.home / "node0.ready"
    first = replicas.start("true", setup="echo ready; sleep 1000", setup_marker=marker)
    first.until_logged("ready")
    os.kill(first.replica.pid, 9)
    first.end()
    second = replicas.start("true", setup="true", setup_marker=marker)
    assert second.end().exit_code == 0


def test_command_does_not_wait_for_setup_of_others_once_the_node_is_ready(replicas: Replicas):
    marker = replicas.home / "node0.ready"
    marker.touch()
    begun = time.time()
    started = replicas.start("true", setup="sleep 1000", setup_marker=marker, env=ENV)
    assert started.end().exit_code == 0
    assert time.time() - begun < 60
