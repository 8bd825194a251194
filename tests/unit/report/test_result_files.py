import importlib.util
import json
import math
import os
import stat

import pytest

from batuta.core.job import JobState
from batuta.report import result_files
from batuta.report.result_files import (
    NotWritable,
    atomic_write,
    check_results_path,
    write_jobs,
    write_timeline,
)
from tests.support.results import make_job, make_run


def rows_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_jobs_as_jsonl(tmp_path):
    jobs = [
        make_job(0, id='a"\n<b>', submit_s=5.0, first_start_s=7.0, end_s=17.0, size=2),
        make_job(1, state=JobState.PENDING, first_start_s=math.nan, end_s=math.nan, fairness=math.nan),
    ]
    write_jobs(tmp_path / "jobs.jsonl", [make_run("afs", jobs), make_run("fifo", jobs)])
    rows = rows_of(tmp_path / "jobs.jsonl")
    assert [row["policy"] for row in rows] == ["afs", "afs", "fifo", "fifo"]
    assert rows[0]["id"] == 'a"\n<b>'
    assert (rows[0]["wait_s"], rows[0]["jct_s"], rows[0]["size"], rows[0]["state"]) == (
        2.0,
        12.0,
        2,
        "SUCCEEDED",
    )
    assert rows[1]["end_s"] is rows[1]["jct_s"] is rows[1]["fairness"] is None


def test_timeline_as_jsonl(tmp_path):
    run = make_run()
    write_timeline(tmp_path / "time.jsonl", [run])
    rows = rows_of(tmp_path / "time.jsonl")
    assert [row["time_s"] for row in rows] == run.timeline.time_s.tolist()
    assert [row["used_gpus"] for row in rows] == run.timeline.used_gpus.tolist()


def test_parquet_has_the_same_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    runs = [make_run("afs", [make_job(0), make_job(1, end_s=math.nan)]), make_run("fifo")]
    write_jobs(tmp_path / "jobs.parquet", runs)
    write_jobs(tmp_path / "jobs.jsonl", runs)
    assert parquet.read_table(tmp_path / "jobs.parquet").to_pylist() == rows_of(tmp_path / "jobs.jsonl")
    write_timeline(tmp_path / "time.parquet", runs)
    write_timeline(tmp_path / "time.jsonl", runs)
    assert parquet.read_table(tmp_path / "time.parquet").to_pylist() == rows_of(tmp_path / "time.jsonl")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotWritable, match=r"pip install 'batuta\[parquet\]'"):
        write_jobs(tmp_path / "jobs.parquet", [make_run()])
    assert not list(tmp_path.iterdir())


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(NotWritable, match=r"\.jsonl or \.parquet"):
        write_jobs(tmp_path / "jobs.csv", [make_run()])


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "jobs.jsonl"
    path.write_text("old")

    def runs():
        yield make_run("afs")
        raise failure

    with pytest.raises(type(failure)):
        write_jobs(path, runs())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_at_the_last_moment_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        result_files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_obeys_the_umask_and_an_old_one_keeps_its_mode(tmp_path):
    before = os.umask(0o027)
    try:
        result_files.write_text(tmp_path / "new", "x")
        (tmp_path / "old").write_text("x")
        (tmp_path / "old").chmod(0o604)
        result_files.write_text(tmp_path / "old", "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604


def test_a_link_stays_a_link_and_folders_are_made(tmp_path):
    result_files.write_text(tmp_path / "a" / "b" / "real", "1")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "real")
    result_files.write_text(tmp_path / "link", "2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "b" / "real").read_text() == "2"


def test_a_device_is_written_to_and_not_replaced():
    with atomic_write("/dev/null") as file:
        file.write(b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_places_that_cannot_be_written_are_refused_early(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="is a folder"):
        check_results_path(tmp_path / "folder.jsonl")
    with pytest.raises(NotWritable, match="is not a folder"):
        check_results_path(tmp_path / "file" / "jobs.jsonl")
    check_results_path(tmp_path / "new" / "jobs.jsonl")
    with pytest.raises(IsADirectoryError):
        result_files.write_text(tmp_path / "folder.jsonl", "x")
