"""Each thing that a job says about GPUs is heard once."""

from batuta.core.cluster import Span
from batuta.core.health_signals import findings_in
from batuta.gpu.health.rules import read_rules

RULES = read_rules()
BAD = "RuntimeError: CUDA error: invalid device ordinal"


def found(lines: list[str], *gpus: int) -> list[tuple[str, int | None]]:
    return [(one.text, one.gpu) for one in findings_in(RULES, lines, Span("n0", gpus), "j", 1.0)]


def test_what_a_program_says_many_times_is_one_finding():
    assert found(["epoch 1", BAD, "Traceback", BAD], 3) == [(BAD, 3)]


def test_of_several_gpus_nobody_knows_which_it_was():
    assert found([BAD], 0, 1) == [(BAD, None)]
