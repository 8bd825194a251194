"""What the server cannot see is unknown, and never gone: no descriptors, unreadable files, denied access."""

import errno
import os
import queue
import time

import pytest

from batuta.backends.local import files, processes
from batuta.backends.local.job_files import JobFiles, read_record, read_run_history
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from batuta.backends.local.supervisor import process_tree
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.backends.local.watch import RunnerEvent, Watch
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.job_table import Phase
from batuta.gpu import owners
from batuta.spec.task import Task
from batuta.store.errors import StoreUnavailableError
from tests.support.descriptors import no_descriptor_left
from tests.support.local_backends import WAITS, Bench
from tests.support.local_replicas import Replicas


def test_replica_that_has_ended_is_unknown_without_descriptors(replicas: Replicas):
    one = replicas.start(["true"])
    one.end()
    with no_descriptor_left():
        for look in (processes.observe, processes.adopt, processes.clean_up):
            with pytest.raises(CannotTell):
                look(one.run_dir)
    assert (one.state().phase, one.state().why) == (ReplicaPhase.EXITED, ExitReason.EXITED)


def test_replica_that_runs_is_unknown_without_descriptors(replicas: Replicas):
    one = replicas.start(["sleep", "1000"])
    one.until(ReplicaPhase.RUNNING)
    with no_descriptor_left():
        with pytest.raises(CannotTell):
            processes.observe(one.run_dir)
        with pytest.raises(CannotTell):
            _ = one.replica.is_running
        with pytest.raises(CannotTell):
            processes.stop(one.replica)
        with pytest.raises(CannotTell):
            processes.find_leftovers(one.spec.run_id)
    assert one.state().phase is ReplicaPhase.RUNNING


def test_start_of_the_machine_is_not_taken_for_another_because_it_could_not_be_read(monkeypatch: pytest.MonkeyPatch):
    known = process_tree.boot_id()
    monkeypatch.setattr(process_tree, "_boot_id", [])
    with no_descriptor_left(), pytest.raises(CannotTell):
        process_tree.boot_id()
    assert process_tree.boot_id() == known


def test_history_and_record_of_a_job_are_not_empty_because_they_could_not_be_read(bench: Bench):
    bench.task("a", WAITS)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    job = JobFiles(bench.root, "a")
    with no_descriptor_left():
        for read in (lambda: read_record(job, 0), lambda: read_run_history(job.history), job.run_numbers):
            with pytest.raises(CannotTell):
                read()
    assert read_record(job, 0) is not None
    assert job.run_numbers() == [0]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EACCES, errno.ESTALE])
def test_error_that_says_nothing_about_the_file_is_unknown(number: int):
    with pytest.raises(CannotTell):
        files.unless_gone(OSError(number, os.strerror(number)))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ESRCH])
def test_error_that_says_that_nothing_is_there_means_gone(number: int):
    files.unless_gone(OSError(number, os.strerror(number)))
    assert process_tree.is_gone(OSError(number, os.strerror(number)))


def test_jobs_that_end_while_no_descriptor_is_left_have_succeeded_once(bench: Bench):
    """They were called lost and run again."""
    for job in ("a", "b"):
        bench.task(job, f"echo ran >>{bench.root}/ran-{job}; touch {bench.root}/begun-{job}; sleep 0.5")
    bench.start("a", "n0:0")
    bench.start("b", "n0:1")
    bench.until(lambda: all((bench.root / f"begun-{job}").exists() for job in ("a", "b")))
    with no_descriptor_left():
        bench.idle(1.5)
        assert not bench.heard(ev.JobInterrupted, "a")
        assert not bench.heard(ev.JobEnded, "a")
    for job in ("a", "b"):
        assert bench.end_of(job).state is JobState.SUCCEEDED
        assert (bench.root / f"ran-{job}").read_text() == "ran\n"
        assert not bench.heard(ev.JobInterrupted, job)


def test_result_of_a_job_that_ends_while_no_descriptor_is_left_is_kept(bench: Bench):
    bench.task("a", f'touch {bench.root}/begun; sleep 0.3; echo 42 >"$BATUTA_CONTROL/result.json"')
    bench.start("a", "n0:0")
    bench.until((bench.root / "begun").exists)
    with no_descriptor_left():
        bench.idle(1.0)
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert bench.results["a"].strip() == "42"


def test_job_that_shall_start_while_no_descriptor_is_left_starts_later(bench: Bench):
    bench.task("a", "true")
    _ = bench.backend
    with no_descriptor_left():
        bench.start("a", "n0:0")
        bench.idle(0.3)
        assert not bench.heard(ev.JobEnded, "a")
    if bench.heard(ev.JobInterrupted, "a"):
        bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.SUCCEEDED


def test_job_whose_task_cannot_be_read_now_starts_later(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """It was said to have FAILED for good, although its task was stored and only no descriptor was left to read it."""
    bench.task("a", "true")
    known, tries = bench.tasks, list[str]()

    class NotNow(dict[str, Task]):
        def __missing__(self, job: str) -> Task:
            tries.append(job)
            raise StoreUnavailableError("journal.db cannot be opened now")

    monkeypatch.setattr(bench, "tasks", NotNow())
    bench.start("a", "n0:0")
    bench.until(lambda: len(tries) > 1, "another try")
    assert not bench.heard(ev.JobEnded, "a")
    monkeypatch.setattr(bench, "tasks", known)
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert not bench.heard(ev.JobInterrupted, "a")


def test_server_that_comes_back_and_cannot_read_a_job_yet_adopts_it_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench.task("a", WAITS)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    before = bench.processes()
    bench.vanish()
    real, broken = os.open, {"is": True}

    def flaky(path: object, *rest: int, **more: int) -> int:
        if broken["is"] and str(path).endswith("run.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", flaky)
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    bench.idle(0.7)
    assert bench.processes() == before
    broken["is"] = False
    bench.stop("a")
    assert bench.end_of("a").state is JobState.CANCELLED
    bench.until(lambda: not bench.processes())


def test_process_on_a_gpu_counts_as_running_while_it_cannot_be_looked_at():
    start = process_tree.start_of(os.getpid())
    assert start is not None
    known = owners.ProcessCache(lambda pid: f"owner of {pid}")
    assert known.of(os.getpid()) == f"owner of {os.getpid()}"
    with no_descriptor_left():
        assert owners.is_alive(os.getpid(), start)
        assert known.of(os.getpid()) == f"owner of {os.getpid()}"
    assert not owners.is_alive(os.getpid(), start + 1)


def test_watch_hears_of_ends_without_a_descriptor(replicas: Replicas):
    news: queue.SimpleQueue[RunnerEvent] = queue.SimpleQueue()
    watch = Watch(news.put)
    try:
        one, other = replicas.start(["sleep", "0.3"]), replicas.start(["sleep", "1000"])
        watch.add(one.replica)
        with no_descriptor_left():
            watch.add(other.replica)  # without a pidfd: it is looked at, which is not possible now
            assert news.get(timeout=30.0) == RunnerEvent(one.spec.run_id, ended=True)
            time.sleep(0.6)
            assert news.empty()
        processes.kill(other.replica)
        assert news.get(timeout=30.0) == RunnerEvent(other.spec.run_id, ended=True)
    finally:
        watch.close()
