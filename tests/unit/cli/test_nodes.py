"""`batuta nodes` says what is not well, and what to do about it; of what is well it says nothing."""

import time

import pytest

from batuta.apitypes.resources import Gpu, HealthShown, Node
from batuta.cli.nodes import print_health


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_nothing_is_said_where_all_is_well(capsys: pytest.CaptureFixture[str]):
    back = HealthShown("healthy", "passed burn-in and probation", 1.0, "health")
    print_health((Node("n0", "ready", gpus=(Gpu(0, health=back), Gpu(1))),))
    assert capsys.readouterr().out == ""


def test_what_is_ill_says_why_since_when_by_whom_and_what_to_do(capsys: pytest.CaptureFixture[str]):
    now_s = time.time()
    since_s = now_s - 7265.0
    ill = HealthShown("ill", "Xid 79: off the bus", since_s, "health", "reboot")
    held = HealthShown("ill", "Xid 62", since_s, "health", "reset GPU", held=True)
    waits = HealthShown("probation", "Xid 48", since_s, "health", until_s=now_s + 7310.0)
    print_health(
        (
            Node("n0", "unhealthy", health=ill),
            Node("n1", "ready", gpus=(Gpu(0), Gpu(1, health=held), Gpu(2, health=waits))),
            Node("n2", "cordoned", cordoned_by="ana", cordoned_s=since_s),
            Node("n3", "draining", cordoned_by="bob"),
        )
    )
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]
    assert rows == [
        "WHAT HEALTH SINCE BY WHY TO DO",
        "n0 ill 2h 1m ago health Xid 79: off the bus reboot, then: batuta nodes mended n0",
        "n1 GPU 1 ill, in service 2h 1m ago health Xid 62 reset GPU, then: batuta nodes mended n1 --gpu 1",
        "n1 GPU 2 probation 2h 1m ago health Xid 48 back in 2h 1m",
        "n2 cordoned 2h 1m ago ana cordoned by hand batuta nodes uncordon n2",
        "n3 draining – bob cordoned by hand batuta nodes uncordon n3",
    ]
