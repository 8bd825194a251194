"""A stored task comes back as it was, and always looks the same."""

import json

import pytest

from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task
from batuta.spec.task_serialization import SCHEMA, task_from_json, task_to_json

TEXT = """\
name: net
resources: {accelerators: [H100:8, A100], cpus: 4+, memory: 32GB, labels: {a: b}, any_of: [{cpus: 1}]}
envs: {A: "é\\n"}
secrets: {B: s}
run: "echo 1\\n"
file_mounts: {/d: /x}
"""


@pytest.mark.parametrize(
    "task",
    [
        Task(),
        parse_task(TEXT, check_paths=False),
        parse_task("run: x\nresources: {accelerators: T4:0.3}\ngpu: {compute: 5%, topology: require-rack}"),
        parse_task(
            "run: x\nresources: {accelerators: 1}\nelastic: {sizes: [1, 4], checkpoint_interval: 90s, kind: mpi}"
        ),
        parse_task("run: x\nresources: {accelerators: 1}\nelastic: {max_nodes: 7, step: 3, grace: 0}"),
        parse_task("run: x\nresources: {accelerators: 1}\ntrial: {sizes: [2, 1], budget: 90s, priority: -5}"),
    ],
)
def test_a_task_comes_back_as_it_was(task):
    stored = task_to_json(task)
    assert task_from_json(stored) == task
    assert task_to_json(task_from_json(stored)) == stored
    assert "\n" not in stored


def test_the_shape_of_a_stored_task_changes_with_its_schema_only():
    """Journals hold this. Whoever changes it raises SCHEMA and teaches `task_from_json` the old one."""
    assert SCHEMA == 1
    assert json.loads(task_to_json(parse_task("run: x\nresources: {accelerators: T4}"))) == {
        "schema": 1,
        "task": {
            "name": "",
            "workdir": "",
            "num_nodes": 1,
            "auto_nodes": False,
            "needs": {"accelerators": [{"type": "T4", "count": 1.0}], "cpus": None, "memory_gib": None},
            "any_of": [],
            "labels": [],
            "image_id": "",
            "ports": [],
            "priority": 0,
            "queue": "",
            "priority_class": "",
            "max_exec_time_s": None,
            "max_restarts_on_errors": 0,
            "recover_on_exit_codes": [],
            "envs": [],
            "secrets": [],
            "file_mounts": [],
            "setup": "",
            "run": "x",
            "elastic": {
                "min_nodes": 1,
                "max_nodes": 1,
                "sizes": None,
                "step": 1,
                "checkpoint": "none",
                "checkpoint_interval_s": None,
                "grace_s": 60.0,
                "kind": None,
                "restartable": False,
            },
            "gpu": {
                "memory_mib": 0,
                "compute_percent": 0,
                "topology": {"within": "any", "required": False, "single_numa": False},
                "soft": False,
            },
            "trial": {
                "wanted": None,
                "sizes": [],
                "budget_s": None,
                "each_s": None,
                "priority": None,
                "only": False,
            },
            "notes": [],
        },
    }


def test_a_key_that_came_later_has_its_default():
    assert task_from_json('{"schema": 1, "task": {"run": "x"}}') == Task(run="x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a stored task"),
        ("[]", "is not a stored task"),
        ("{}", "is not a stored task"),
        ('{"schema": 2, "task": {}}', "another schema: 2"),
        (
            '{"schema": 1, "task": {"num_nodes": "4", "elastic": {"kind": "x"}}}',
            "num_nodes: Input should be a valid",
        ),
        ('{"schema": 1, "task": []}', "Input should be"),
    ],
)
def test_anything_else_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        task_from_json(text)
