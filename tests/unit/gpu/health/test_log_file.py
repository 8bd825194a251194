"""A log file is read on from where one left off, through rotation, truncation and half lines."""

import random
import threading
from pathlib import Path

import pytest

from batuta.gpu.health.kernel_log import Cursor, LogFile
from tests.unit.gpu.health.killed_readers import Daemon


def write(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


class Reader:
    """Reads on, and starts anew before every read."""

    def __init__(self, path: Path, *, from_start: bool = True) -> None:
        self.path, self.from_start = path, from_start
        self.cursor: Cursor | None = None
        self.missed = ""

    def lines(self, reads: int = 1) -> list[str]:
        found: list[str] = []
        for _ in range(reads):
            batch = LogFile(self.path, from_start=self.from_start).read(self.cursor)
            self.cursor, self.missed = batch.cursor, batch.missed or self.missed
            found += batch.lines
        return found


def test_lines_are_read_once(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a", "b")
    assert reader.lines() == ["a", "b"]
    assert reader.lines() == []
    write(log, "c")
    assert reader.lines() == ["c"]


def test_newcomers_get_what_comes_unless_they_want_all(tmp_path):
    log = tmp_path / "kern.log"
    write(log, "old", "being wri", end="")
    reader = Reader(log, from_start=False)
    assert reader.lines() == []
    write(log, "tten")
    assert reader.lines() == ["being written"]


def test_a_half_line_waits_for_its_other_half(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "whole", "ha", end="")
    assert reader.lines() == ["whole"]
    assert reader.lines() == []
    write(log, "lf")
    assert reader.lines() == ["half"]


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log, from_start=False)
    assert reader.lines(2) == []
    write(log, "first")
    assert reader.lines() == ["first"]
    assert reader.missed == ""


def test_what_was_rotated_away_is_read_to_its_end_first(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a")
    assert reader.lines() == ["a"]
    write(log, "b")
    log.rename(tmp_path / "kern.log.2")
    write(tmp_path / "kern.log.1", "c")
    write(log, "d")
    assert reader.lines(4) == ["b", "c", "d"]
    assert reader.missed == ""


def test_a_file_that_was_rotated_before_anything_was_in_it_is_no_obstacle(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    log.rename(tmp_path / "kern.log.2")
    (tmp_path / "kern.log.1").touch()
    write(log, "b")
    assert reader.lines(2) == ["b"]


def test_files_rotated_by_date_are_found_as_well(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    write(log, "b")
    log.rename(tmp_path / "kern.log-20261115")
    write(tmp_path / "kern.log-20261116", "c")
    write(log, "d")
    assert reader.lines(4) == ["b", "c", "d"]


def test_a_daemon_that_goes_on_with_the_renamed_file_is_followed(tmp_path):
    log, old = tmp_path / "kern.log", tmp_path / "kern.log.1"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    log.rename(old)
    log.touch()
    assert reader.lines(2) == []
    write(old, "still here")
    assert reader.lines() == ["still here"]
    write(log, "now here")
    assert reader.lines(2) == ["now here"]


def test_a_half_line_at_the_end_of_an_old_file_is_all_there_will_be(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a", "cra", end="")
    reader.lines()
    log.rename(tmp_path / "kern.log.1")
    write(log, "b")
    assert reader.lines(3) == ["cra", "b"]


def test_a_log_that_was_copied_and_emptied_is_read_from_the_copy_and_then_anew(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a first line that is long enough", "second")
    reader.lines()
    write(log, "unread")
    (tmp_path / "kern.log.1").write_bytes(log.read_bytes())
    log.write_text("")
    write(log, "x")
    assert reader.lines(3) == ["unread", "x"]
    assert reader.missed == ""


def test_a_file_that_was_emptied_and_grew_beyond_the_offset_is_not_mistaken(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    log.write_text("")
    write(log, "other", "lines")
    assert reader.lines(2) == ["other", "lines"]
    assert "was replaced" in reader.missed


def test_files_that_are_packed_or_gone_are_told_as_missed(tmp_path):
    log = tmp_path / "kern.log"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    (tmp_path / "kern.log.1.gz").write_bytes(b"\x1f\x8b")
    log.unlink()
    assert reader.lines() == [], "between two files there is none"
    assert reader.missed == ""
    write(log, "b")
    assert reader.lines() == ["b"]
    assert "gone or packed" in reader.missed


def test_names_with_brackets_are_names(tmp_path):
    log = tmp_path / "kern[1].log"
    reader = Reader(log)
    write(log, "a")
    reader.lines()
    write(log, "b")
    log.rename(tmp_path / "kern[1].log.1")
    write(log, "c")
    assert reader.lines(3) == ["b", "c"]


def test_bytes_that_are_no_text_do_no_harm(tmp_path):
    log = tmp_path / "kern.log"
    log.write_bytes(b"\xff\xfe\nb\n")
    assert Reader(log).lines() == ["\ufffd\ufffd", "b"]


def be_busy(daemon: Daemon) -> None:
    for _ in range(60):
        daemon.burst()


@pytest.mark.slow
def test_nothing_is_lost_or_told_twice_while_files_are_renamed(tmp_path: Path):
    """Given a daemon that rotates again and again while somebody reads, each line is read once, in order."""
    for seed in range(30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        daemon = Daemon(folder / "kern.log", random.Random(seed))
        log = LogFile(daemon.path, from_start=True)
        cursor, read, quiet = log.read(None).cursor, list[str](), 0
        writing = threading.Thread(target=be_busy, args=(daemon,))
        writing.start()
        while quiet < daemon.rotations + 3:
            # Quiet before the last line says nothing: the thread that writes may not have had its turn.
            all_written = not writing.is_alive()
            batch = log.read(cursor)
            cursor, read = batch.cursor, [*read, *batch.lines]
            quiet = quiet + 1 if all_written and not batch.lines else 0
        writing.join()
        daemon.file.close()
        pids = [int(line.partition("pid=")[2].partition(",")[0]) for line in read if "pid=" in line]
        assert pids == [*range(1, daemon.written + 1)], f"seed {seed}"
