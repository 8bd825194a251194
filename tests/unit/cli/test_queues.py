"""Queues in tables, as a tree with bars, and one by one."""

import pytest

from batuta.apitypes.queues import (
    Cohort,
    HoldingJob,
    LocalQueue,
    Queue,
    QueueDetail,
    Queues,
    QuotaCell,
    WaitingJob,
)
from batuta.apitypes.resources import QuotaReserved
from batuta.cli.queues import (
    BORROWED,
    IDLE,
    LENT,
    OWN,
    bar_parts,
    flavor_resource_name,
    format_amount,
    format_requests,
    format_share,
    print_queue_detail,
    print_queue_tree,
    print_queues,
    tree_lines,
)

GPU = "nvidia.com/gpu"
GIB = 1 << 30
BORROWS = QuotaCell("h100", GPU, nominal=4, total=4, used=6, reserved=5, growth=1, borrowed=2)
LENDS = QuotaCell("h100", GPU, nominal=8, total=8, used=3, reserved=3, lent=2)
MEMORY = QuotaCell("h100", "memory", nominal=64 * GIB, total=64 * GIB, used=16 * GIB, reserved=16 * GIB)
TREE = Queues(
    queues=(
        Queue("default", state="open", used={"*": 1.0}, running=1),
        Queue("poor", state="active", cohort="lab", weight=2, share=125.4, pending=3, cells=(BORROWS,)),
        Queue("rich", state="held", cohort="campus", running=1, cells=(LENDS, MEMORY)),
    ),
    cohorts=(
        Cohort("campus", cells=(QuotaCell("h100", GPU, total=12, used=9),)),
        Cohort("lab", parent="campus", pending=3, cells=(BORROWS,)),
    ),
)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        (GPU, 8.0, "8"),
        ("cpu", 2.5, "2.5"),
        ("memory", 64.0 * GIB, "64Gi"),
        ("memory", 1.5 * 1024 * GIB, "1.5Ti"),
        ("memory", 512.0, "512"),
        (GPU, 10_000_000.0, "no limit"),
    ],
)
def test_amounts(resource: str, amount: float, text: str) -> None:
    assert format_amount(resource, amount) == text


def test_kinds_of_quota_are_named_by_flavor_and_resource() -> None:
    assert flavor_resource_name("h100", GPU) == "h100 gpu"
    assert flavor_resource_name("any", "batuta.dev/gpus") == "all GPUs"
    assert list(format_requests({GPU: 8.0, "memory": 2.0 * GIB})) == ["8 gpu", "2Gi memory"]


def test_shares() -> None:
    assert [format_share(one) for one in (0.0, 125.4, None)] == ["–", "125", "∞"]


def test_a_row_for_each_kind_of_quota(capsys: pytest.CaptureFixture[str]) -> None:
    print_queues(TREE.queues)
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:4] == ["QUEUE", "STATE", "OF", "NOMINAL"]
    assert rows[0][:6] == ["default", "open", "all", "GPUs", "no", "limit"]
    assert rows[1] == [*("poor", "active", "h100", "gpu", "4", "6", "2", "–"), *("3", "0", "lab", "2", "125")]
    assert rows[2][:8] == ["rich", "held", "h100", "gpu", "8", "3", "–", "2"]
    assert rows[3] == ["h100", "memory", "64Gi", "16Gi", "–", "–"]


@pytest.mark.parametrize("width", [8, 10, 32, 33])
@pytest.mark.parametrize("cell", [BORROWS, LENDS, MEMORY, QuotaCell("f", GPU, total=1000, used=1)])
def test_a_bar_is_as_wide_as_it_should_be(cell: QuotaCell, width: int) -> None:
    parts = dict(bar_parts(cell, width))
    assert sum(parts.values()) == width
    shown = {sign for sign, part in parts.items() if part}
    wanted = {OWN: cell.used - cell.borrowed, BORROWED: cell.borrowed, LENT: cell.lent}
    assert shown - {IDLE} == {sign for sign, amount in wanted.items() if amount}, "what there is is seen"


def test_a_bar_of_nothing_is_empty() -> None:
    assert bar_parts(QuotaCell("h100", GPU), 10) == []


def test_queues_hang_in_their_cohorts() -> None:
    lines = [f"{line.guide}{line.name}" for line in tree_lines(TREE)]
    assert lines == ["campus", "├─ lab", "│  └─ poor", "└─ rich", "   ", "default"]


def test_the_tree_tells_numbers_beside_the_bars(capsys: pytest.CaptureFixture[str]) -> None:
    print_queue_tree(TREE)
    shown = capsys.readouterr().out
    poor, rich = (next(line for line in shown.splitlines() if name in line) for name in ("poor", "rich"))
    assert "6 of 4, 2 borrowed, 3 waiting" in poor
    assert BORROWED in poor
    assert LENT not in poor
    assert "3 of 8, 2 lent, held" in rich
    assert LENT in rich
    assert "1 used, no limit" in shown


def test_no_limit_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    free = QuotaCell("any", "batuta.dev/gpus", nominal=10_000_000, total=10_000_000, used=3)
    print_queue_tree(Queues((Queue("free", cells=(free,)),)))
    assert "3 used, no limit" in capsys.readouterr().out


def test_one_queue_with_who_is_ahead_of_whom(capsys: pytest.CaptureFixture[str]) -> None:
    print_queue_detail(
        QueueDetail(
            "poor",
            state="held",
            message="nothing starts",
            pending=2,
            running=1,
            suspended=1,
            needs={GPU: 8.0},
            cells=(BORROWS,),
            local_queues=(LocalQueue("train", "team-a"),),
            waiting=(WaitingJob(1, "7", "bert", gpus=4, quota_reserved=QuotaReserved(False, "WaitingForQuota", "x")),),
            holding=(HoldingJob("3", "resnet", gpus=6, reserved=5, flavors={GPU: "h100", "memory": "h100"}),),
        )
    )
    shown = capsys.readouterr().out
    assert "held: nothing starts" in shown
    assert "1 running, 2 waiting, 1 parked" in shown
    assert "team-a/train" in shown
    assert "waiting workloads, the next one first (the first 1 of 2):" in shown
    assert "WaitingForQuota: x" in shown
    assert [line.split()[-1] for line in shown.splitlines() if "resnet" in line] == ["h100"]


def test_a_queue_in_which_nobody_waits(capsys: pytest.CaptureFixture[str]) -> None:
    print_queue_detail(QueueDetail("idle", state="open", local_queues=(LocalQueue("idle"),)))
    shown = capsys.readouterr().out
    assert "no job waits in it" in shown
    assert "reached by" not in shown, "its own name says nothing new"
