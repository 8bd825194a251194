"""A real torchrun with examples/torchrun-elastic: 2 nodes, then 1, then 2, with what Batuta sets."""

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
STEPS = 20_000


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


def test_torchrun_2_then_1_then_2_nodes(job, venv):
    task = example(venv, STEPS)
    assert find_kind(task.run) is JobKind.TORCH_ELASTIC
    saved = 0
    for size in (2, 1):
        run = job.start(task, size)
        run.until_step(saved + 5)
        saved, before = run.checkpoint(), saved
        assert saved > before
        assert all(code != 0 for code in run.stop()), run.all_logs()
        # Each start went on from where the one before had saved.
        assert f"of {size}, from step {before} of" in run.all_logs()

    last = job.start(example(venv, saved + 20), 2)
    returned = last.finish()
    assert f"rank 1 of 2, from step {saved} of" in last.all_logs()
    assert (last.step(), returned["steps"]) == (saved + 20, saved + 20)
    for step, losses in job.losses().items():
        # Steps that were done twice, with 2 workers and with 1, had the same batch and the same weights.
        assert max(losses) == pytest.approx(min(losses), rel=1e-4), step
