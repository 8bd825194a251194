"""Folders that are made ahead of time: one step gives them to a job, and none is needed."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from batuta.backends.local.files import DirectoryPool, read_stamp
from batuta.backends.local.job_files import JobFiles


class Later:
    """Another thread that does nothing until it is let."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []

    def do(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()


def test_a_folder_says_which_journal_knows_its_job_as_a_whole_or_not_at_all(tmp_path):
    later = Later()
    pool = DirectoryPool(tmp_path, later.tasks.append, "0a" * 16)
    later.do()
    (tmp_path / "jobs").mkdir()
    JobFiles(tmp_path, "1").prepare(0, pool)
    assert read_stamp(JobFiles(tmp_path, "1").folder) == "0a" * 16
    JobFiles(tmp_path, "2").prepare(1, pool)
    assert read_stamp(JobFiles(tmp_path, "2").folder) == "0a" * 16, "also where the folder is not one of the pool's"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # as on a full disk, nothing can be written
    try:
        with pytest.raises(OSError, match="too large"):
            JobFiles(tmp_path, "3").prepare(1, pool)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_stamp(JobFiles(tmp_path, "3").folder) is None


def test_a_job_gets_a_folder_that_was_ready_and_another_one_is_made(tmp_path: Path) -> None:
    later = Later()
    blanks = DirectoryPool(tmp_path, later.tasks.append)
    later.do()
    ready = len(list((tmp_path / "blank").iterdir()))
    (tmp_path / "jobs").mkdir()
    files = JobFiles(tmp_path, "7")
    files.prepare(0, blanks)
    assert files.replica(0, 0).is_dir()
    assert all(folder.is_dir() for folder in files.replica_folders(with_setup=False))
    assert oct(files.folder.stat().st_mode)[-3:] == "700"
    later.do()
    assert len(list((tmp_path / "blank").iterdir())) == ready


def test_where_none_is_ready_a_start_makes_its_own(tmp_path: Path) -> None:
    files = JobFiles(tmp_path, "7")
    files.prepare(0, DirectoryPool(tmp_path, Later().tasks.append))
    assert files.run(0).is_dir()


def test_what_a_job_has_is_never_replaced(tmp_path: Path) -> None:
    later = Later()
    blanks = DirectoryPool(tmp_path, later.tasks.append)
    later.do()
    files = JobFiles(tmp_path, "7")
    files.prepare(0)
    (files.folder / "result.json").write_text("42")
    files.prepare(0, blanks)
    files.prepare(1, blanks)
    assert files.read_result() == "42"
    assert files.run_numbers() == [0, 1]


def test_those_of_a_former_server_are_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "blank" / "half-made").mkdir(parents=True)
    later = Later()
    DirectoryPool(tmp_path, later.tasks.append)
    later.do()
    assert "half-made" not in {path.name for path in (tmp_path / "blank").iterdir()}
