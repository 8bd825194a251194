"""Replicas and jobs that reach a limit, where there is no control group: the runner watches."""

import os
import time
from dataclasses import replace

import pytest

from batuta.backends.local.limits import LimitOptions, LocalLimits, machine_limits
from batuta.backends.local.processes import clean_up
from batuta.backends.local.runner_protocol import ExitReason
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.reason import Reason
from batuta.spec.task import Task
from tests.support.local_backends import Bench
from tests.support.local_replicas import Replicas

MANY = "for n in $(seq 40); do sleep 60 & done; wait"
"""More processes than the tests allow, and not without end."""


def watched(replicas: Replicas, **options: float) -> LocalLimits:
    return replace(machine_limits(replicas.home, LimitOptions(**options)), cgroups=None)  # type: ignore[arg-type]


def test_runner_stops_a_replica_with_too_many_processes(replicas: Replicas):
    limits = watched(replicas, processes=20)
    state = replicas.start(MANY, limits=limits.of(Task(), "run", 1)).end()
    assert (state.why, state.limit) == (ExitReason.PROCESS_LIMIT, 20.0)
    assert state.error == "stopped: more than 20 processes and threads"


def test_runner_stops_a_replica_with_too_much_memory(replicas: Replicas):
    limits = watched(replicas, memory_gib=0.0625)
    code = "import time; x = b'x' * (100 << 20); time.sleep(60)"
    state = replicas.python(code, limits=limits.of(Task(), "run", 1)).end()
    assert (state.why, state.limit) == (ExitReason.MEMORY_LIMIT, 2.0**26)
    assert state.error == "out of memory: limit 0.0625 GiB"


def test_memory_that_processes_share_is_counted_once(replicas: Replicas):
    limits = watched(replicas, memory_gib=0.125)
    code = "import os, time; x = b'x' * (60 << 20); [os.fork() for _ in range(2)]; time.sleep(2.5)"
    state = replicas.python(code, limits=limits.of(Task(), "run", 1)).end()
    assert (state.why, state.exit_code) == (ExitReason.EXITED, 0)


def test_jobs_get_the_descriptors_that_the_server_had_before(replicas: Replicas):
    limits = replace(watched(replicas), open_files=321)
    one = replicas.start("ulimit -Sn; cat /proc/self/oom_score_adj", limits=limits.of(Task(), "run", 1))
    one.end()
    assert one.log().split() == ["321", "900"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs control groups, so root")
def test_groups_of_a_killed_runner_are_emptied_and_removed(replicas: Replicas):
    limits = machine_limits(replicas.home, LimitOptions(processes=50))
    if limits.cgroups is None:
        pytest.skip("no control groups here")
    run_id = replicas.new_id()
    plan = limits.of(Task(), run_id, 1)
    one = replicas.start("setsid env -i sleep 1000 & echo ready; sleep 1000", limits=plan)
    one.until_logged("ready")
    folders = plan["cgroup"]["folders"]
    assert all(os.path.isdir(folder) for folder in folders)
    os.kill(one.replica.pid, 9)
    one.end()
    assert clean_up(one.run_dir).survivors == ()
    assert not any(os.path.isdir(folder) for folder in (*folders, *plan["cgroup"]["base"]))


def test_job_that_reaches_a_limit_is_started_again_only_as_often_as_its_task_says(bench: Bench):
    bench.limits = replace(machine_limits(bench.root, LimitOptions()), cgroups=None)
    recovery = {"max_restarts_on_errors": 1, "recover_on_exit_codes": [137]}
    bench.task(
        "a", MANY, resources={"accelerators": 1, "labels": {"batuta.dev/pids-limit": 20}, "job_recovery": recovery}
    )
    bench.start("a", "n0:0")
    told = bench.until_said(ev.JobInterrupted, "a")
    assert "stopped: more than 20 processes and threads (restart 1 of 1" in told.detail
    time.sleep(max(0.0, told.not_before_s - time.time()))
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert (end.state, end.reason, end.evidence) == (JobState.FAILED, Reason.PROCESS_LIMIT, (("limit", 20.0),))
