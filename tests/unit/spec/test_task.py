"""A SkyPilot task file is read as it is."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from batuta.spec.problem import InputError
from batuta.spec.quantity import Amount
from batuta.spec.task import parse_task
from batuta.spec.task_env import Overrides
from batuta.spec.task_resources import Accelerator

WHOLE = """\
name: resnet
num_nodes: 4
resources:
  infra: aws/us-east-1
  accelerators: [H100:8, A100:8]
  cpus: 16+
  memory: 64
  use_spot: true
  disk_size: 256
  image_id: docker:pytorch/pytorch:2.4
  priority: -10
  labels:
    kueue.x-k8s.io/queue-name: team-a
    kueue.x-k8s.io/priority-class: high
    kueue.x-k8s.io/max-exec-time-seconds: "7200"
    project: vision
  job_recovery:
    strategy: FAILOVER
    max_restarts_on_errors: 3
    recover_on_exit_codes: [33, 34]
envs:
  MODEL_SIZE: 13b
  LR: 1e-4
  DEBUG: true
secrets:
  HF_TOKEN: s3cret
setup: |
  pip install -r requirements.txt

run: |
  torchrun train.py --size ${MODEL_SIZE}
config:
  kubernetes: {provision_timeout: 600}
"""


def accelerators_of(written: str) -> tuple[Accelerator, ...]:
    return parse_task(f"run: x\nresources: {{accelerators: {written}}}").accelerators


def test_everything_that_a_file_says_is_in_the_task():
    task = parse_task(WHOLE)
    assert (task.name, task.num_nodes, task.gpus_per_node) == ("resnet", 4, 8)
    assert task.accelerators == (Accelerator("H100", 8), Accelerator("A100", 8))
    assert (task.cpus, task.memory_gib) == (Amount(16, True), Amount(64))
    assert (task.image_id, task.priority) == ("docker:pytorch/pytorch:2.4", -10)
    assert (task.queue, task.priority_class, task.max_exec_time_s) == ("team-a", "high", 7200)
    assert (task.max_restarts_on_errors, task.recover_on_exit_codes) == (3, (33, 34))
    assert dict(task.labels)["project"] == "vision"


def test_values_of_variables_are_taken_as_they_are_written():
    assert parse_task(WHOLE).envs == (("MODEL_SIZE", "13b"), ("LR", "1e-4"), ("DEBUG", "true"))


def test_scripts_are_kept_to_the_last_blank():
    task = parse_task(WHOLE)
    assert task.setup == "pip install -r requirements.txt\n"
    assert task.run == "torchrun train.py --size ${MODEL_SIZE}\n"


def test_what_is_about_clouds_is_accepted_and_noted():
    assert parse_task(WHOLE).notes == (
        "config.kubernetes.provision_timeout is not used by Batuta",
        "resources.infra is not used by Batuta",
        "resources.use_spot is not used by Batuta",
        "resources.disk_size is not used by Batuta",
        "resources.job_recovery.strategy is not used by Batuta",
    )


def test_secrets_are_there_but_not_shown():
    task = parse_task(WHOLE)
    assert task.secrets == (("HF_TOKEN", "s3cret"),)
    assert "s3cret" not in repr(task)


def test_json_is_read_as_well():
    document = {"name": "j", "resources": {"accelerators": "T4:2"}, "run": "echo 😀\n\t'x' \\ud83d"}
    for text in (
        json.dumps(document),
        json.dumps(document, indent="\t"),
        json.dumps(document, ensure_ascii=False),
    ):
        task = parse_task(text)
        assert (task.name, task.gpus_per_node, task.run) == ("j", 2, document["run"])


def test_both_task_files_of_the_seed_document_are_accepted_as_they_stand(shared_data):
    seeds = shared_data.parent / "seeds"
    if not seeds.is_dir():
        pytest.skip("needs ../shared/seeds")
    text = next(seeds.glob("004_*.txt")).read_text()
    blocks = re.findall(r"code-block:: yaml\n(?: +:[^\n]*\n)*\n((?:(?: {8,}[^\n]*)?\n)+)", text)
    first, second = (parse_task(textwrap.dedent(block)) for block in blocks if "run: |" in block)
    for task in (first, second):
        assert (task.num_nodes, task.accelerators) == (100, (Accelerator("H100", 8),))
        assert (task.elastic.min_nodes, task.elastic.max_nodes) == (100, 100)
        assert task.run.startswith("num_nodes=`echo")
    assert (first.notes, second.notes) == ((), ())
    assert (first.queue, second.queue, second.priority_class) == ("", "user-queue", "high-priority")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("H100:8", [("H100", 8)]),
        ("H100", [("H100", 1)]),
        ("A100-80GB:2", [("A100-80GB", 2)]),
        ("{H100: 8}", [("H100", 8)]),
        ("{H100:8, A100:8}", [("H100", 8), ("A100", 8)]),
        ("{H100: 8, A100: 4}", [("H100", 8), ("A100", 4)]),
        ("[H100:8, A100, H100:8]", [("H100", 8), ("A100", 1)]),
        ("H100:0.5", [("H100", 0.5)]),
        ("{H100: 0.5}", [("H100", 0.5)]),
        ("4", [("", 4)]),
        ("null", []),
    ],
)
def test_accelerators_are_written_in_many_ways(written, found):
    assert accelerators_of(written) == tuple(Accelerator(*one) for one in found)


def test_candidates_take_from_outside_what_they_do_not_say():
    task = parse_task(
        "run: x\nresources:\n  cpus: 8\n  any_of:\n"
        "  - {infra: aws, accelerators: H100:8}\n  - {accelerators: A100:8, cpus: 4+}\n"
    )
    assert [(needs.accelerators[0].type, needs.cpus) for needs in task.choices] == [
        ("H100", Amount(8)),
        ("A100", Amount(4, True)),
    ]
    assert task.accelerators == (Accelerator("H100", 8), Accelerator("A100", 8))
    assert task.notes == ("resources.any_of.infra is not used by Batuta",)


def test_candidates_that_differ_in_their_cloud_only_are_none():
    task = parse_task("run: x\nresources: {accelerators: H100, ordered: [{infra: aws}, {infra: gcp}]}")
    assert (task.any_of, task.accelerators) == ((), (Accelerator("H100", 1),))


def test_a_task_without_accelerators_is_told_that_it_runs_on_cpu():
    task = parse_task("run: x")
    assert task.gpus_per_node == 0
    assert task.notes == ("no accelerators: runs on CPU; add accelerators: 1 for a GPU",)


def test_who_says_gpus_0_gets_no_gpu_and_no_note():
    task = parse_task("run: x\nresources: {accelerators: H100:8}", overrides=Overrides(gpus="0"))
    assert (task.gpus_per_node, task.notes) == (0, ())


def test_merged_mappings_are_what_they_stand_for():
    text = "envs: &e {A: 1, B: 2}\nsecrets: {<<: *e, B: 3}\nrun: x"
    task = parse_task(text)
    assert (dict(task.envs), dict(task.secrets)) == ({}, {"A": "1", "B": "3"})


def test_the_command_line_wins():
    overrides = Overrides(
        name="mine",
        gpus="T4:2,L4:2",
        num_nodes=2,
        queue="other",
        priority=5,
        env={"MODEL_SIZE": "7b", "NEW": "1"},
    )
    task = parse_task(WHOLE, overrides=overrides)
    assert (task.name, task.num_nodes, task.queue, task.priority) == ("mine", 2, "other", 5)
    assert task.accelerators == (Accelerator("T4", 2), Accelerator("L4", 2))
    assert dict(task.envs) == {"MODEL_SIZE": "7b", "LR": "1e-4", "DEBUG": "true", "NEW": "1"}


def test_a_command_with_a_nul_character_is_refused():
    with pytest.raises(InputError, match="NUL"):
        parse_task('{"run": "\\u0000"}')


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path):
    path = tmp_path / "t.yaml"
    assert parse_task("run: x\nworkdir: .\n", str(path)).workdir == str(tmp_path)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        parse_task("run: x" + "\n" * 10 * 2**20)
