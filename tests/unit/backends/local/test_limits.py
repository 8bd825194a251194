"""Limits of replicas: from the task file, from the server's options, or by what the machine has."""

import json
from pathlib import Path

import pytest

from batuta.backends.local.cgroups import SharedLimits
from batuta.backends.local.limits import LimitOptions, LocalLimits, machine_limits
from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task
from batuta.spec.task_serialization import task_from_json, task_to_json, task_to_yaml

GIB = 2**30
MACHINE = LocalLimits(4096, 60 * GIB, SharedLimits(60 * GIB, 16, 28_000), 64 * GIB, open_files=1024)


def task(**resources: object) -> Task:
    return parse_task(json.dumps({"run": "true", "resources": resources}), "task.yaml", check_paths=False)


def test_task_that_says_nothing_has_the_limits_of_the_server():
    found = MACHINE.of(task(), "run", gpus=1)
    assert (found["processes"], found["memory_bytes"], found["open_files"]) == (4096, 60 * GIB, 1024)
    assert found["oom_score_adj"] == 900


def test_amounts_of_the_task_file_are_limits():
    found = MACHINE.of(task(memory="8GiB", labels={"batuta.dev/pids-limit": 50}), "run", gpus=1)
    assert (found["processes"], found["memory_bytes"]) == (50, 8 * GIB)
    assert found["oom_score_adj"] == 875


def test_amount_with_a_plus_is_the_least_and_no_limit():
    assert MACHINE.of(task(memory="8+"), "run", gpus=1)["memory_bytes"] == 60 * GIB


def test_replica_that_starts_the_workers_of_all_nodes_has_the_limits_of_all():
    found = MACHINE.of(task(memory=4, labels={"batuta.dev/pids-limit": 50}), "run", gpus=4, nodes=4)
    assert (found["processes"], found["memory_bytes"]) == (200, 16 * GIB)


def test_no_job_may_have_what_is_reserved():
    assert MACHINE.of(task(memory=500), "run", gpus=1)["memory_bytes"] == 60 * GIB
    found = MACHINE.of(task(labels={"batuta.dev/pids-limit": 4_000_000}), "run", gpus=1)
    assert found["processes"] == found["all_processes"] == 28_000


def test_machine_keeps_memory_for_itself(tmp_path: Path):
    usual = machine_limits(tmp_path, LimitOptions())
    assert 0 < usual.shared.memory_bytes < usual.total_bytes
    assert usual.memory_bytes == usual.shared.memory_bytes
    assert 256 <= usual.processes <= usual.shared.processes
    assert usual.shared.processes <= int(Path("/proc/sys/kernel/pid_max").read_text()) * 7 / 8
    told = machine_limits(tmp_path, LimitOptions(77, 0.5, 0.0))
    assert (told.processes, told.memory_bytes, told.shared.memory_bytes) == (77, GIB // 2, told.total_bytes)


def test_limit_on_processes_is_kept_with_the_task():
    made = task(labels={"batuta.dev/pids-limit": 50})
    assert task_from_json(task_to_json(made)).pids_limit == 50
    assert "batuta.dev/pids-limit" in task_to_yaml(made)


@pytest.mark.parametrize("value", [0, -1, "many", 2**22 + 1])
def test_limit_on_processes_that_means_nothing_is_refused(value: object):
    with pytest.raises(InputError, match="pids-limit"):
        task(labels={"batuta.dev/pids-limit": value})
