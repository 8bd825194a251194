import os
import threading
from pathlib import Path

import pytest

from batuta.backends.local.progress import ProgressTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress"


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_each_complete_line_comes_once(path: Path):
    tail = ProgressTail(path)
    assert tail.poll() == []
    append(path, b"one\ntw")
    assert tail.poll() == ["one"]
    assert tail.poll() == []
    append(path, b"o\n\nfour\n")
    assert tail.poll() == ["two", "", "four"]
    append(path, b"five")
    assert tail.poll() == []
    assert tail.poll(at_end=True) == ["five"]
    assert tail.poll(at_end=True) == []


def test_file_that_was_cut_or_replaced_is_read_from_its_start(path: Path):
    tail = ProgressTail(path)
    append(path, b"epoch,time\n0,1.0\n")
    assert len(tail.poll()) == 2
    path.write_bytes(b"again\n")
    assert tail.poll() == ["again"]
    draft = path.with_name("draft")
    draft.write_bytes(b"another\n")
    os.replace(draft, path)
    assert tail.poll() == ["another"]
    path.unlink()
    assert tail.poll() == []


def test_rotated_file_is_read_to_its_end(path: Path):
    tail = ProgressTail(path, most_bytes=16)
    append(path, b"one\n")
    assert tail.poll() == ["one"]
    append(path, b"line 2\nline 3\nline 4\nline 5\nlast")
    os.replace(path, path.with_name("progress.1"))
    append(path, b"new\n")
    seen = []
    for _ in range(5):
        seen += tail.poll()
    assert seen == ["line 2", "line 3", "line 4", "line 5", "last", "new"]


def test_poll_reads_a_bounded_part_and_skips_lines_that_are_too_long(path: Path):
    tail = ProgressTail(path, most_bytes=10)
    append(path, b"a\nb\n" + b"x" * 37 + b"\nc\nd\n" + b"12345678901\n")
    polls = [tail.poll() for _ in range(12)]
    assert [line for lines in polls for line in lines] == ["a", "b", "c", "d"]
    append(path, b"e\n")
    assert tail.poll() == ["e"]


def test_a_flood_is_read_by_pieces_and_its_last_part_alone(path: Path):
    tail = ProgressTail(path)
    assert tail.poll() == []
    append(path, b"".join(b"%09d\n" % number for number in range(400_000)))
    first = tail.poll()
    assert first[0] == "000000000"
    assert 1000 < len(first) < 10_000
    tail.skip()
    assert 290_000 < int(tail.poll()[0]) < 300_000
    tail.skip(to_bytes=100)
    assert tail.poll() == [f"{number:09d}" for number in range(399_991, 400_000)]
    assert tail.poll() == []


def test_a_line_that_is_longer_than_a_piece_is_read_whole(path: Path):
    tail = ProgressTail(path)
    append(path, b"x" * 500_000 + b"\nshort\n")
    assert [len(line) for line in (*tail.poll(), *tail.poll())] == [500_000, 5]


def test_bytes_that_are_no_text_are_replaced(path: Path):
    append(path, b"\xff{}\n")
    assert ProgressTail(path).poll() == ["�{}"]


def test_what_is_no_file_is_not_read_and_nobody_waits_for_it(path: Path):
    tail = ProgressTail(path)
    path.mkdir()
    assert tail.poll() == tail.poll(at_end=True) == []
    path.rmdir()
    append(path, b"one\n")
    assert tail.poll() == ["one"]
    path.rename(path.with_name("kept"))  # or its number might be given to the next file
    os.mkfifo(path.with_name("progress.1"))
    append(path, b"two\n")
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(tail.poll()), daemon=True)
    reader.start()
    reader.join(10)
    assert seen == ["two"]
