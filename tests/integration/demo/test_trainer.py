"""The trainer as real processes: the course of a training does not depend on how often it was resized."""

import signal
import socket
import subprocess
import sys

import pytest

from batuta.spec.task import Task, parse_task
from tests.support.elastic_runs import OWN_ENV, PATIENCE_S, ElasticJob
from tests.support.scripts import run_script


def trainer(options: str) -> Task:
    return Task(run=f"exec {sys.executable} -m batuta.demo.trainer {options}")


def only(values: set[float]) -> float:
    """One value: a step that is done twice gives the same loss, to rounding."""
    low, high = min(values), max(values)
    assert high - low < 1e-9
    return low


def test_losses_are_the_same_at_size_1_and_at_1_then_4_then_2(job, tmp_path):
    alone = ElasticJob(tmp_path / "alone")
    whole = alone.start(trainer("--steps 120 --work-ms 0"), 1)
    assert whole.wait() == [0], whole.all_logs()

    for size in (1, 4):
        run = job.start(trainer("--steps 120 --work-ms 200 --comm-ms 0"), size)
        run.until_step(6 if size == 1 else 12)
        saved = run.checkpoint()
        run.until_step(saved + 1)  # it goes on until it is told to stop
        assert set(run.stop()) <= {143, 1}, run.all_logs()
    last = job.start(trainer("--steps 120 --work-ms 0"), 2)
    assert last.wait() == [0, 0], last.all_logs()
    assert f"2 workers, 2 GPUs, from step {saved} of 120" in last.log(0)

    wanted, found = alone.losses(), job.losses()
    assert sorted(found) == sorted(wanted) == list(range(1, 121))
    for step, values in wanted.items():
        assert only(found[step]) == pytest.approx(only(values), rel=1e-9)
    assert last.result() == pytest.approx(whole.result(), rel=1e-9)
    assert only(found[120]) < only(found[1]) / 10  # and it did learn something


def test_reports_say_how_far_it_is(job):
    run = job.start(trainer("--steps 40 --batch 128 --work-ms 0"), 2)
    assert run.wait() == [0, 0], run.all_logs()
    first, *reports = run.reports()
    assert (first.step, first.is_checkpoint) == (None, False), "that it saves when it is asked"
    steps = [report for report in reports if not report.is_checkpoint]
    assert [report.step for report in steps] == list(range(1, 41))
    assert {report.total_steps for report in steps} == {40}
    assert {report.rank for report in steps} == {0}
    assert (steps[-1].samples, steps[-1].epoch, steps[-1].fraction) == (40 * 128, 2, 1.0)
    saved = [report for report in run.reports() if report.is_checkpoint]
    assert [(report.step, report.request) for report in saved] == [(40, None)]


def test_it_goes_on_from_its_own_checkpoints_after_a_kill(job):
    run = job.start(trainer("--steps 2000 --work-ms 20 --comm-ms 0 --checkpoint-every 5"), 2)
    run.until_step(12)
    run.signal(signal.SIGKILL)
    assert run.wait() == [-9, -9]
    saved = max(report.step or 0 for report in run.reports() if report.is_checkpoint)
    again = job.start(trainer(f"--steps {saved + 3} --work-ms 0"), 1)
    assert again.wait() == [0], again.all_logs()
    assert f"from step {saved} of" in again.log(0)
    steps = [report.step for report in again.reports() if report.step is not None]
    assert steps[:1] == [saved + 1]


def test_one_that_was_finished_before_ends_at_once_with_the_same_result(job):
    first = job.start(trainer("--steps 20 --work-ms 0"), 2)
    assert first.wait() == [0, 0]
    second = job.start(trainer("--steps 20 --work-ms 0"), 1)
    assert second.wait() == [0]
    assert second.result() == first.result()
    assert second.step() == 0  # nothing was done twice


@pytest.mark.parametrize("lost", [0, 2])
def test_when_a_worker_dies_the_others_say_so_and_end(job, lost):
    run = job.start(trainer("--steps 100000 --work-ms 30 --comm-ms 0"), 3)
    run.until_step(3)
    run.replicas[lost].kill()
    codes = run.wait()
    assert codes == [-9 if rank == lost else 1 for rank in range(3)], run.all_logs()
    first_to_know = 1 if lost == 0 else 0
    assert f"trainer: rank {lost} is gone" in run.log(first_to_know)
    for rank in {0, 1, 2} - {lost}:
        assert "Traceback" not in run.log(rank)


def test_sigterm_ends_it_at_once(job):
    run = job.start(trainer("--steps 100000 --work-ms 100000"), 1)
    run_began = "from step 0"
    while run_began not in run.log(0):
        assert run.replicas[0].poll() is None
    assert run.stop() == [143]
    assert "Traceback" not in run.log(0)


def test_workers_that_never_come_are_named(job):
    run = job.start(trainer("--timeout 0.5 --work-ms 0"), 3)
    # The two others are gone before they could say who they are.
    for replica in run.replicas[1:]:
        replica.kill()
    assert run.replicas[0].wait(PATIENCE_S) == 1
    assert "trainer: rank 1, 2 did not come within" in run.log(0)


def test_it_runs_under_torchrun_whose_own_store_has_the_port():
    """As workers of torchrun find it: somebody listens at MASTER_PORT who does not know them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = OWN_ENV | {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "x",
        }
        command = [sys.executable, "-m", "batuta.demo.trainer", "--steps", "5", "--work-ms", "0"]
        workers = [
            subprocess.Popen(
                command,
                env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [worker.communicate(timeout=PATIENCE_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert "done: 5 steps" in said[0]


def test_it_runs_without_batuta_and_loads_little(tmp_path):
    code = (
        "import sys\n"
        "from batuta.demo.trainer import main\n"
        "assert main(['--steps', '3', '--work-ms', '0']) == 0\n"
        "heavy = ('batuta.core', 'batuta.spec', 'pydantic', 'scipy', 'typer', 'yaml')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = run_script(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_checkpoint_of_another_training_is_refused(job):
    assert job.start(trainer("--steps 2 --work-ms 0"), 1).wait() == [0]
    other = job.start(trainer("--steps 2 --work-ms 0 --seed 9"), 2)
    assert other.wait() == [1, 1]
    assert "is of another training: seed 0" in other.log(0)


def test_a_job_of_the_demo_runs_as_it_stands(job):
    from batuta.demo.scenario import DEMO

    for arrival in DEMO:
        task = parse_task(arrival.task_yaml_text)
        run = job.start(task, task.elastic.min_nodes)
        run.until_step(2)
        assert set(run.stop()) <= {143, 1}
        # Each has a seed of its own, and would not go on from another one's work.
        assert not list((job.home / "checkpoints").iterdir())
