"""The contract of all backends, on those that need nothing but this machine: simulators and local mode."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.local.backend import LocalBackend
from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.goodput.backend import GoodputBackend
from batuta.backends.sim.workload import GoodputRequest, SimJob
from batuta.core import event as ev
from batuta.core.job import Job
from batuta.spec.task import parse_task
from batuta.spec.task_job import task_to_job
from tests.contract.backend_cases import BackendCases, CpuOnlyCases
from tests.contract.backend_rig import Rig
from tests.support.sims import sim_job
from tests.support.worlds import make_job, make_nodes
from tests.unit.backends.sim.goodput.toy_profiles import write_toy


def simulated(folder: Path) -> Rig:
    sims = [sim_job(name, work_s=60, restart_s=30, max=2) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=1e-6)


def simulated_without_restart(folder: Path) -> Rig:
    sims = [sim_job(name, work_s=60, max=2) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=1e-6)


def simulated_with_rare_checkpoints(folder: Path) -> Rig:
    """It saves every 10 s and not when asked."""
    sims = [sim_job(name, work_s=60, restart_s=30, max=2, checkpoint_interval_s=10.0) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=10)


def goodput(folder: Path, restart_s: float = 30.0) -> Rig:
    request = GoodputRequest("toy", 1, 20)
    sims = [SimJob(sim.job, sim.work_s, sim.curve, request) for sim in (sim_job("a"), sim_job("b"))]
    backend = GoodputBackend.of(sims, make_nodes(2), write_toy(folder), 60.0, restart_s, "history")
    return Rig(backend, step_s=5, run_s=63, tolerance_s=2)


def goodput_without_restart(folder: Path) -> Rig:
    return goodput(folder, restart_s=0.0)


COUNT_TO_SIX = """
at=$BATUTA_CHECKPOINT_DIR/at-$BATUTA_REPLICA
n=$(cat $at 2>/dev/null || echo 0)
while [ $n -lt 6 ]; do
  sleep 0.1
  n=$((n + 1))
  echo $n >$at.new && mv $at.new $at
done
"""


def local(folder: Path) -> Rig:
    """Real processes."""
    task: dict[str, Any] = {"run": COUNT_TO_SIX, "resources": {"accelerators": 1}}
    task["elastic"] = {"min_nodes": 1, "max_nodes": 2, "checkpoint": "none", "grace": "1s"}
    return _local(folder, task, [make_job(name, max=2) for name in ("a", "b")])


def local_on_cpu(folder: Path) -> Rig:
    """Real processes that hold no GPU."""
    task = {"run": COUNT_TO_SIX, "elastic": {"checkpoint": "none", "grace": "1s"}}
    return _local(folder, task, [make_job(name, gpus_per_replica=0) for name in ("a", "b")])


def simulated_on_cpu(folder: Path) -> Rig:
    sims = [sim_job(name, work_s=60, restart_s=30, gpus_per_replica=0) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=1e-6)


def _local(folder: Path, content: dict[str, Any], jobs: list[Job]) -> Rig:
    if not sys.platform.startswith("linux"):
        pytest.skip("local mode is complete on Linux only")
    task = parse_task(json.dumps(content))
    backend = LocalBackend(folder, make_nodes(2), lambda job: (task, task_to_job(task, job, 0.0, nodes=make_nodes(2))))
    submitted = [ev.JobSubmitted(time.time(), job) for job in jobs]
    return Rig(
        backend,
        step_s=0.1,
        run_s=0.6,
        tolerance_s=2.0,
        falls_quiet=False,
        patience_s=30.0,
        said=list(submitted),
        now_s=submitted[-1].time_s,
        close=lambda: backend.shutdown(keep_jobs=False, within_s=0.0),
    )


RIGS = (
    local,
    simulated,
    simulated_without_restart,
    simulated_with_rare_checkpoints,
    goodput,
    goodput_without_restart,
)


@pytest.fixture(params=RIGS, ids=lambda make: make.__name__.replace("_", "-"))
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A backend to which both jobs are submitted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: Rig = request.param(tmp_path / "backend")
    made.wait_for_jobs()
    yield made
    made.close()


class TestBackends(BackendCases):
    """All cases on each rig."""


@pytest.fixture(params=(local_on_cpu, simulated_on_cpu), ids=lambda make: make.__name__.replace("_", "-"))
def cpu_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A backend to which both jobs are submitted, which hold no GPU."""
    made: Rig = request.param(tmp_path / "backend")
    made.wait_for_jobs()
    yield made
    made.close()


class TestCpuOnlyJobs(CpuOnlyCases):
    """All cases of jobs that hold no GPU on each rig."""
