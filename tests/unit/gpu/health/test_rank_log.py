"""Of a job's log only the end is read, and only what is new."""

from pathlib import Path

from batuta.gpu.health.findings import TAIL_BYTES, read_tail


def test_only_what_is_new_is_read_and_never_more_than_the_end(tmp_path: Path):
    path = tmp_path / "0.log"
    assert read_tail(path, 0) == ([], 0)
    path.write_text("one\ntwo\n")
    assert read_tail(path, 0) == (["one", "two"], 8)
    assert read_tail(path, 4) == (["two"], 8)
    path.write_text("new\n")
    assert read_tail(path, 8) == (["new"], 4)
    path.write_bytes(b"x" * 10 * TAIL_BYTES + b"\nlast\n")
    lines, end = read_tail(path, 0)
    assert (lines[-1], end) == ("last", 10 * TAIL_BYTES + 6)
    assert len(lines[0]) <= 1000
