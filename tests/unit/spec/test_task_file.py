"""A stored task written as a file again reads as the same task; run again, only what is said changes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import Overrides
from batuta.spec.task_paths import PathRules
from batuta.spec.task_serialization import task_to_mapping, task_to_yaml, task_with_overrides

FULL = """\
name: net
workdir: /srv/code
num_nodes: 4
resources:
  accelerators: [H100:8, A100]
  cpus: 4+
  memory: 512MB+
  priority: 100
  image_id: docker:x/y
  ports: [8080, 10052-10100]
  labels: {a: b, kueue.x-k8s.io/queue-name: team-a, kueue.x-k8s.io/max-exec-time-seconds: "60"}
  any_of: [{cpus: 1}, {accelerators: T4:2}]
  job_recovery: {max_restarts_on_errors: 3, recover_on_exit_codes: [33, 34]}
envs: {A: "é\\n", B: "$C"}
secrets: {TOKEN: hush}
file_mounts: {/d: /x}
setup: pip install x
run: |
  echo 1
  echo 2
elastic: {min_nodes: 2, max_nodes: 8, step: 2, checkpoint: on-signal, grace: 5s, kind: mpi}
"""
TEXTS = [
    FULL,
    "run: x",
    "run: x\nnum_nodes: 3",
    "run: x\nnum_nodes: auto\nelastic: {max_nodes: 6}",
    "run: x\nnum_nodes: 2\nelastic: {grace: 5s}",
    "run: x\nresources: {accelerators: 2, priority: high}",
    "run: x\nresources: {labels: {kueue.x-k8s.io/priority-class: high}}",
    "run: x\nresources: {accelerators: T4:0.3}\ngpu: {compute: 5%, topology: require-rack, limit: soft}",
    "run: x\ngpu: {memory: 8GiB, topology: prefer-node, numa: single}",
    "run: x\nelastic: {sizes: [1, 4], checkpoint_interval: 90s}",
    "run: x\nelastic: {max_nodes: 7, step: 3, grace: 0, checkpoint: none}",
    "run: x\ntrial: {sizes: [2, 1], budget: 90s, priority: 0}",
    "run: x\nelastic: {max_nodes: 2, restartable: true}",
    "run: x\ntrial: false",
    "run: x\ntrial: true",
]
ANYTHING = PathRules(None, Path("/root"), probe=None)


def reread(task: Task) -> Task:
    return parse_task(json.dumps(task_to_mapping(task)), check_paths=False)


@pytest.mark.parametrize("text", TEXTS)
def test_a_task_reads_the_same_when_it_is_written_again(text: str) -> None:
    task = parse_task(text, check_paths=False)
    assert replace(reread(task), notes=task.notes, labels=task.labels) == task


def test_people_see_lines_as_lines_and_no_secret() -> None:
    text = task_to_yaml(parse_task(FULL, check_paths=False))
    assert "run: |\n  echo 1\n  echo 2\n" in text
    assert "hush" not in text
    assert yaml.safe_load(text)["secrets"] == {"TOKEN": None}


def test_only_what_is_said_changes_and_secrets_come_along() -> None:
    task = parse_task(FULL, check_paths=False)
    again = task_with_overrides(
        task,
        Overrides(name="net2", queue="team-b", priority=5, max_nodes=4, env={"LR": "0.1"}),
        ANYTHING,
        "job 7",
    )
    assert (again.name, again.queue, again.priority, again.elastic.max_nodes) == ("net2", "team-b", 5, 4)
    assert dict(again.envs) == {**dict(task.envs), "LR": "0.1"}
    unchanged = replace(
        again,
        name=task.name,
        queue=task.queue,
        priority=task.priority,
        elastic=task.elastic,
        envs=task.envs,
        notes=task.notes,
    )
    assert unchanged == task


def test_what_a_file_cannot_say_is_kept() -> None:
    """Given a label that the command line stood over, when it runs again, then the label stays as it was."""
    task = parse_task(FULL, overrides=Overrides(queue="other"), check_paths=False)
    again = task_with_overrides(task, Overrides(name="x"), ANYTHING, "job 7")
    assert again == replace(task, name="x")


def test_files_that_are_gone_are_named_all_at_once(tmp_path: Path) -> None:
    data, code = tmp_path / "data", tmp_path / "code"
    data.mkdir()
    code.mkdir()
    task = parse_task(f"run: x\nworkdir: {code}\nfile_mounts: {{/d: {data}}}")
    data.rmdir()
    code.rmdir()
    with pytest.raises(InputError) as refused:
        task_with_overrides(task, Overrides(), PathRules(None, tmp_path), "job 7")
    assert [problem.file for problem in refused.value.problems] == ["the task of job 7"] * 2
    assert f"workdir '{code}' is not there" in str(refused.value)
    assert f"'{data}' is not there" in str(refused.value)
    assert task_with_overrides(task, Overrides(workdir=str(tmp_path)), ANYTHING, "job 7").workdir == str(tmp_path)
