"""The log as it is written and as it is read: both sides of one format."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.backends.local.logs import Piece, ReplicaLog
from batuta.backends.local.supervisor.output_log import CappedLog
from tests.support.local_replicas import follow

CAP = 32 * 1024  # the least there is


def write(path: Path, chunks: list[bytes], cap: int = CAP) -> None:
    log = CappedLog(str(path), cap)
    for chunk in chunks:
        log.write(chunk, 0, len(chunk))
    log.close()


def content(path: Path) -> bytes:
    log = ReplicaLog(path)
    return b"".join(piece.data for piece in log.pieces(0, log.span().end))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "log"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(0, 9000), max_size=8), max_size=30),
    lines=st.integers(0, 60),
    runs=st.integers(1, 3),
)
def test_what_is_kept_is_the_end_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], lines: int, runs: int
):
    path = tmp_path_factory.mktemp("log") / "log"
    numbered = iter(range(10**6))
    chunks = ["\n".join(f"{next(numbered)}:" + "x" * n for n in chunk).encode() for chunk in lengths]
    for run in range(runs):  # a log may be continued by another runner
        write(path, chunks[run::runs])
    everything = b"".join(b"".join(chunks[run::runs]) for run in range(runs))
    kept = content(path)
    span = ReplicaLog(path).span()
    assert everything[span.begin : span.end] == kept
    assert span.end == len(everything)
    assert len(kept) == len(everything) or len(kept) >= CAP // 2 - 9010
    for name in ("log", "log.1"):
        file = path.with_name(name)
        assert not file.exists() or file.stat().st_size <= CAP // 2
    all_lines = kept.decode().removesuffix("\n").split("\n") if kept else []
    assert ReplicaLog(path).tail(lines) == (all_lines[-lines:] if lines else [])


def test_rotation_is_at_the_end_of_a_line(path: Path):
    lines = [f"{i:05d} {'y' * (i % 300)}\n".encode() for i in range(400)]
    write(path, [b"".join(lines[i : i + 7]) for i in range(0, 400, 7)])
    older, newer = Path(f"{path}.1").read_bytes(), path.read_bytes()
    assert older.endswith(b"\n")
    assert older + newer == b"".join(lines)[-len(older + newer) :]
    assert older.splitlines(keepends=True)[0] in lines


def test_line_longer_than_the_log_is_cut(path: Path):
    write(path, [b"z" * 100_000, b"\nlast\n"])
    assert content(path).endswith(b"z\nlast\n")
    assert ReplicaLog(path).span().end == 100_006


def test_offset_that_was_rotated_away_is_moved_on(path: Path):
    write(path, [b"%07d\n" % i for i in range(20_000)])
    log = ReplicaLog(path)
    piece = log.read(8, 16)
    assert piece.begin == log.span().begin > 8
    assert piece.data == b"%07d\n%07d\n" % (piece.begin // 8, piece.begin // 8 + 1)


def test_offsets_beyond_the_end_and_before_the_beginning(path: Path):
    write(path, [b"abcdef"])
    log = ReplicaLog(path)
    assert log.read(100) == Piece(6, b"")
    assert log.read(-2) == Piece(4, b"ef")
    assert log.read(-100) == Piece(0, b"abcdef")
    assert [piece.data for piece in log.pieces(2, 4)] == [b"cd"]
    assert list(log.pieces(4, 2)) == []


def test_log_that_is_not_there_is_empty(path: Path):
    log = ReplicaLog(path)
    assert (log.span().begin, log.span().end, log.tail(5)) == (0, 0, [])
    assert list(follow(log, lambda: True)) == []


@pytest.mark.parametrize("step", ["renamed", "reopened"])
def test_log_whose_runner_was_killed_during_a_rotation(path: Path, step: str):
    write(path, [b"%07d\n" % i for i in range(3_000)])
    before = ReplicaLog(path).span()
    os.replace(path, f"{path}.1")
    if step == "reopened":
        path.write_bytes(b"new\n")
    assert ReplicaLog(path).span().end == before.end + (4 if step == "reopened" else 0)
    write(path, [b"more\n"])
    assert ReplicaLog(path).span().end == before.end + (9 if step == "reopened" else 5)
    assert content(path).endswith(b"0002999\nnew\nmore\n" if step == "reopened" else b"0002999\nmore\n")


def test_reader_during_rotations_sees_every_line_where_it_belongs(path: Path):
    """A writer that rotates a hundred times, and a reader that never sees a wrong byte."""
    done = threading.Event()

    def write_all() -> None:
        try:
            write(path, [b"".join(b"%07d\n" % i for i in range(n, n + 64)) for n in range(0, 200_000, 64)])
        finally:
            done.set()

    writer = threading.Thread(target=write_all)
    writer.start()
    end = 0
    for piece in follow(ReplicaLog(path), done.is_set):
        assert piece.begin >= end
        assert piece.begin % 8 == 0
        first = piece.begin // 8
        assert piece.data == b"".join(b"%07d\n" % i for i in range(first, first + len(piece.data) // 8))
        end = piece.end
    writer.join()
    assert end == 8 * 200_000


def test_tail_looks_at_a_bounded_part(path: Path):
    write(path, [b"\n" * (12 * 1024 * 1024)], cap=64 * 1024 * 1024)
    log = ReplicaLog(path)
    assert log.tail_offset(10**9) == 4 * 1024 * 1024


def test_bytes_that_are_no_text_are_replaced(path: Path):
    write(path, [b"a\xff\xfeb\n\xe2\x82"])
    assert ReplicaLog(path).tail(2) == ["a��b", "�"]


def test_log_that_cannot_be_written_counts_what_is_lost(path: Path):
    path.mkdir(parents=True)  # a directory in its place
    log = CappedLog(str(path), CAP)
    log.write(b"lost", 0, 4)
    log.write(b"x" * 50_000, 0, 50_000)
    assert log.dropped_bytes == 50_004
    path.rmdir()
    log.write(b"kept\n", 0, 5)
    log.close()
    assert path.read_bytes() == b"[batuta: 50004 bytes of output lost: cannot rotate]\nkept\n"
