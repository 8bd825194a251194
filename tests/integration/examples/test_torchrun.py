"""A real torchrun with examples/torchrun-elastic, from its first step to its last, with what Batuta sets."""

import os
from pathlib import Path

import pytest

from batuta.core.job import JobKind
from batuta.spec.task import Task
from batuta.spec.task_elastic import find_kind
from batuta.spec.task_env import Overrides
from tests.support.elastic_runs import ElasticJob
from tests.support.scripts import read_task
from tests.support.torch_install import REPO, require_torch

pytestmark = pytest.mark.slow
STEPS = 20


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return require_torch().environment(tmp_path / "venv")


@pytest.fixture
def job(tmp_path):
    env = {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO / "src")}
    env |= {"PATH": os.environ.get("PATH", os.defpath), **require_torch().quirks}
    own = ElasticJob(tmp_path / "job", inherited=env)
    yield own
    own.clean_up()


def example(venv: Path, steps: int) -> Task:
    path = REPO / "examples" / "torchrun-elastic" / "task.yaml"
    return read_task(path, Overrides(env={"STEPS": str(steps), "VENV": str(venv)}))


def test_torchrun_trains_to_the_last_step_and_leaves_a_result(job, venv):
    """By itself; tests/e2e/test_examples.py resizes it."""
    task = example(venv, STEPS)
    assert find_kind(task.run) is JobKind.TORCH_ELASTIC
    run = job.start(task, 1)
    returned = run.finish()
    assert f"rank 0 of 1, from step 0 of {STEPS}" in run.all_logs()
    assert (run.step(), returned["steps"]) == (STEPS, STEPS)
