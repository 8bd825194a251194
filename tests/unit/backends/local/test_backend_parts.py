"""The parts of the local backend that need no process."""

from pathlib import Path

import pytest

from batuta.backends.local.context import GpuOccupancy, Timing
from batuta.backends.local.files import write_json
from batuta.backends.local.job_files import (
    STABLE_RUN_S,
    JobFiles,
    RunHistory,
    RunRecord,
    folder_name,
    jobs_with_runs,
    read_record,
    read_run_history,
    write_record,
)
from batuta.backends.local.live_run import can_resize_in_place
from batuta.backends.local.replica_plan import Machine
from batuta.core.job import JobKind
from batuta.engine.ports import SteadyClock
from batuta.prediction import Run
from tests.support.worlds import at, make_job

# ----------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("job", ["a", "job-17", "a.b", "..", ".", "a/b", "../../etc", "ä ö", "a..b", ".hidden", "%2E"])
def test_folder_of_a_job_is_below_the_root_and_names_it(tmp_path: Path, job: str):
    files = JobFiles(tmp_path, job)
    assert files.folder.resolve().parent == tmp_path.resolve() / "jobs"
    files.runs.mkdir(parents=True)
    assert [found for found, _ in jobs_with_runs(tmp_path)] == [job]


def test_different_jobs_have_different_folders():
    names = ["a", "A", "a%", "%61", "a.", "a%2E", "..", "%2E%2E"]
    assert len({folder_name(name) for name in names}) == len(names)


def test_record_is_read_as_it_was_written(tmp_path: Path):
    files = JobFiles(tmp_path, "a")
    files.prepare(3)
    record = RunRecord("a", 3, at("n0:01 n1:3"), 2, 23456, 1234.5, asked_s=1240.0).moved_to(at("n0:0")).left()
    write_record(files, record)
    assert read_record(files, 3) == record


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"job": "a"}'])
def test_record_that_makes_no_sense_is_none(tmp_path: Path, text: str):
    files = JobFiles(tmp_path, "a")
    files.prepare(0)
    (files.run(0) / "run.json").write_text(text)
    assert read_record(files, 0) is None


def test_run_ids_are_unique_and_tame():
    first, second = (RunRecord("a/b ü" * 50, 0, at("n0:0"), 1, 20000, 0.0).run_id(0) for _ in range(2))
    assert first != second
    assert len(first) < 150
    assert "/" not in first


# ---------------------------------------------------------------------------------------------------- ledger


def test_ledger_counts_an_end_once_and_is_read_again(tmp_path: Path):
    ledger = read_run_history(tmp_path / "job.json")
    for _ in range(2):
        ledger.note(0, Run(1.0, 2), 5.0, failed=True, unwanted=True)
    ledger.note(1, None, 0.0, failed=False, unwanted=True)
    assert (ledger.counted, ledger.failures, ledger.streak, ledger.ran_s) == (1, 1, 2, 5.0)
    ledger.keep()
    assert read_run_history(tmp_path / "job.json") == ledger


def test_back_off_begins_anew_after_a_long_run(tmp_path: Path):
    ledger = RunHistory(tmp_path / "job.json")
    for number in range(5):
        ledger.note(number, None, 1.0, failed=True, unwanted=True)
    assert ledger.streak == 5
    ledger.note(5, None, STABLE_RUN_S, failed=True, unwanted=True)
    assert (ledger.streak, ledger.failures) == (1, 6)


def test_ledger_remembers_a_limited_number_of_runs(tmp_path: Path):
    ledger = RunHistory(tmp_path / "job.json")
    for number in range(200):
        ledger.note(number, Run(float(number), 1), 1.0, failed=False, unwanted=False)
    assert len(ledger.past) == 64
    assert ledger.past[-1].began_s == 199.0


@pytest.mark.parametrize("content", [None, [], {"counted": 1}, {"counted": "x"}])
def test_ledger_that_makes_no_sense_is_a_new_one(tmp_path: Path, content: object):
    write_json(tmp_path / "job.json", content)
    assert read_run_history(tmp_path / "job.json").counted == -1


# ------------------------------------------------------------------------------------------------- the others


def test_clock_that_is_set_back_goes_on_from_where_it_was():
    times = iter([100.0, 101.0, 50.0, 51.0, 200.0])
    clock = SteadyClock(lambda: next(times))
    assert [clock() for _ in range(5)] == [100.0, 101.0, 101.0, 102.0, 251.0]


def test_clock_begins_where_time_has_been_already():
    times = iter([100.0, 101.0])
    clock = SteadyClock(lambda: next(times), since_s=500.0)
    assert [clock(), clock()] == [500.0, 501.0]


def test_back_off_doubles_up_to_a_limit():
    backoff = Timing().backoff
    assert [backoff.pause_s(streak) for streak in (0, 1, 2, 5, 9, 10, 10_000)] == [0, 1, 2, 16, 256, 300, 300]


def test_gpu_is_taken_until_it_is_released():
    occupancy = GpuOccupancy()
    occupancy.take("a", at("n0:01"))
    occupancy.take("b", at("n0:12"))
    assert occupancy.on(at("n0:1")) == {"a", "b"}
    occupancy.take("a", at("n0:0"))
    assert occupancy.on(at("n0:1")) == {"b"}
    occupancy.release("b")
    occupancy.release("never there")
    assert occupancy.on(at("n0:0123 n1:0")) == {"a"}


@pytest.mark.parametrize(
    ("wanted", "can"),
    [("n0:0", True), ("n0:01", True), ("n0:01 n1:0", True), ("n0:1", False), ("n0:01 n1:01", False)],
)
def test_place_that_horovod_can_change_to_by_itself(wanted: str, can: bool):
    machine = Machine({"n0": 0, "n1": 1}, {"n0": range(4), "n1": range(4)}, {}, Path("bell"), Path("sdk"))
    record = RunRecord("a", 0, at("n0:01 n1:0"), 1, 20000, 0.0)
    horovod = make_job("a", max=4, kind=JobKind.HOROVOD_ELASTIC)
    assert can_resize_in_place(machine, horovod, record, at(wanted)) is can
    assert can_resize_in_place(machine, horovod, record.moved_to(at("n0:0")), at(wanted)) is can
    assert not can_resize_in_place(machine, make_job("a", max=4), record, at(wanted))
