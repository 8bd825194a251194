"""Of a job's log the end is read, and each thing that it says about GPUs is heard once."""

from pathlib import Path

from batuta.core.cluster import Span
from batuta.gpu.health.job_log import TAIL_BYTES, RankLog, findings_in
from batuta.gpu.health.rules_file import read_rules

RULES = read_rules()
BAD = "RuntimeError: CUDA error: invalid device ordinal"


def found(lines: list[str], *gpus: int) -> list[tuple[str, int | None]]:
    return [(one.text, one.gpu) for one in findings_in(RULES, lines, Span("n0", gpus), "j", 1.0)]


def test_what_a_program_says_many_times_is_one_finding():
    assert found(["epoch 1", BAD, "Traceback", BAD], 3) == [(BAD, 3)]


def test_of_several_gpus_nobody_knows_which_it_was():
    assert found([BAD], 0, 1) == [(BAD, None)]


def test_only_what_is_new_is_read_and_never_more_than_the_end(tmp_path: Path):
    path = tmp_path / "0.log"
    log = RankLog(path)
    assert log.tail(0) == ([], 0)
    path.write_text("one\ntwo\n")
    assert log.tail(0) == (["one", "two"], 8)
    assert log.tail(4) == (["two"], 8)
    path.write_text("new\n")
    assert log.tail(8) == (["new"], 4)
    path.write_bytes(b"x" * 10 * TAIL_BYTES + b"\nlast\n")
    lines, end = log.tail(0)
    assert (lines[-1], end) == ("last", 10 * TAIL_BYTES + 6)
    assert len(lines[0]) <= 1000
