"""Every example: a task file that is accepted as it stands, and a script that can at least be compiled."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from batuta.core.job import JobKind, Share
from batuta.spec.cluster import read_cluster
from batuta.spec.task_elastic import Checkpoint, find_kind
from batuta.spec.task_job import check_fits, task_to_job
from tests.support.scripts import read_task

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KINDS = {
    "numpy-elastic": JobKind.SCRIPT,
    "pytorch-ddp": JobKind.SCRIPT,
    "torchrun-elastic": JobKind.TORCH_ELASTIC,
    "lightning": JobKind.TORCH_ELASTIC,
    "huggingface-trainer": JobKind.TORCH_ELASTIC,
    "deepspeed": JobKind.TORCH_ELASTIC,
    "horovod-elastic": JobKind.HOROVOD_ELASTIC,
    "tensorflow": JobKind.SCRIPT,
    "mpi": JobKind.MPI,
}
SCRIPTS = sorted(EXAMPLES.glob("*/train.py"))


def test_these_are_all():
    assert {path.parent.name for path in EXAMPLES.glob("*/task.yaml")} == set(KINDS)
    assert {path.parent.name for path in SCRIPTS} == set(KINDS) - {"numpy-elastic"}


@pytest.mark.parametrize("name", KINDS)
def test_the_task_file_is_accepted(name):
    task = read_task(EXAMPLES / name / "task.yaml")
    assert task.name == name
    assert task.notes == ()
    assert task.elastic.checkpoint is Checkpoint.ON_SIGNAL
    assert (task.elastic.min_nodes, task.num_nodes, task.elastic.max_nodes) == (1, 2, 8)
    assert find_kind(task.run) is KINDS[name]
    nodes = read_cluster("2x4")
    job = task_to_job(task, name, 0.0, nodes=nodes)
    assert (job.kind, job.min, job.size, job.max) == (KINDS[name], 1, 2, 8)
    assert not check_fits(job, nodes)


@pytest.mark.parametrize("name", KINDS)
def test_what_bash_is_given_is_bash(name):
    task = read_task(EXAMPLES / name / "task.yaml")
    for script in (task.setup, task.run):
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_the_script_resumes_reports_and_answers(script):
    tree = ast.parse(script.read_text(), str(script))
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "sdk"
    }
    assert called == {"report", "checkpoint_requested", "checkpointed", "result"}
    assert "BATUTA_CHECKPOINT_DIR" in script.read_text()


def test_the_table_names_every_example_and_its_kind():
    text = (EXAMPLES / "README.md").read_text()
    rows = re.findall(r"^\| \[([a-z-]+)\]\(([^)]+)\) \|[^|]*\| ([a-z-]+) \|", text, re.MULTILINE)
    assert {name: JobKind(kind) for name, _, kind in rows} == KINDS
    assert all((EXAMPLES / link).is_file() for _, link, _ in rows)


def test_half_a_gpu_is_asked_for_as_the_example_says():
    task = read_task(EXAMPLES / "local" / "shared-gpu.yaml")
    nodes = read_cluster("1x1")
    job = task_to_job(task, "a", 0.0, nodes=nodes)
    assert job.share == Share(memory_mib=4096, compute_percent=50)
    assert task.notes == ()
    assert not check_fits(job, nodes)
