"""No line of a kernel log is missed or counted twice, whoever is killed when."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.gpu.health.kernel_log import Batch, Cursor, KernelLog
from batuta.gpu.health.log_queue import KernelLogQueue, QueueBusy

REPO = Path(__file__).resolve().parents[4]
XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid={}, name=python"


class Scroll(KernelLog):
    """A log in memory; a cursor is how many lines were read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed = ""

    def read(self, cursor: Cursor | None) -> Batch:
        start = int(cursor["line"]) if cursor else 0
        return Batch(tuple(self.lines[start:]), {"line": len(self.lines)}, self.missed)

    def close(self) -> None: ...


@pytest.mark.parametrize("seed", [1, 2])
def test_over_a_hundred_restarts_and_rotations_each_line_counts_once(tmp_path: Path, seed: int) -> None:
    program = [sys.executable, "-m", "tests.unit.gpu.health.killed_readers", str(tmp_path), str(seed)]
    done = subprocess.run(program, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["killed"] == 100
    assert told["rotations"] > 10
    assert told["pids"] == [*range(1, told["written"] + 1)]


def test_only_lines_about_gpus_are_noted_with_numbers_that_go_up(tmp_path: Path) -> None:
    log = Scroll()
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        log.lines += ["usb 1-1: new device", XID.format(1), "eth0: link up", XID.format(2)]
        assert ledger.collect()
        assert [note.line for note in ledger.waiting] == [XID.format(1), XID.format(2)]
        first, second = (note.number for note in ledger.waiting)
        assert second == first + 1
        assert not ledger.collect()
        ledger.done(first)
        assert [note.number for note in ledger.waiting] == [second]


def test_what_nobody_took_is_there_after_a_restart(tmp_path: Path) -> None:
    log = Scroll()
    log.lines.append(XID.format(1))
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        ledger.collect()
        before = ledger.waiting
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 6.0) as ledger:
        assert not ledger.collect()
        assert ledger.waiting == before


def test_two_processes_cannot_have_the_same_ledger(tmp_path: Path) -> None:
    with (
        KernelLogQueue(tmp_path / "ledger", Scroll(), lambda: 5.0),
        pytest.raises(QueueBusy, match="in use"),
        KernelLogQueue(tmp_path / "ledger", Scroll(), lambda: 5.0),
    ):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"form": 9}', '{"form": 1, "cursor": null}'])
def test_a_damaged_ledger_is_said_and_its_successor_counts_higher(tmp_path: Path, text: str) -> None:
    log = Scroll()
    log.lines.append(XID.format(1))
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        ledger.collect()
        highest = ledger.waiting[-1].number
    (tmp_path / "ledger").write_text(text)
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 6.0) as ledger:
        ledger.collect()
        assert "damaged" in ledger.missed[0]
        assert ledger.waiting[0].number > highest
        ledger.done(ledger.waiting[-1].number)
        assert ledger.missed == ()


def test_what_the_log_has_lost_is_told_until_somebody_knows(tmp_path: Path) -> None:
    log = Scroll()
    log.lines, log.missed = ["usb"], "7 records were overwritten"
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        ledger.collect()
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        assert ledger.missed == ("7 records were overwritten",)
        ledger.done(0)
        assert not ledger.missed


def test_a_flood_that_nobody_takes_keeps_the_newest(tmp_path: Path) -> None:
    log = Scroll()
    log.lines += [XID.format(k) for k in range(10_005)]
    with KernelLogQueue(tmp_path / "ledger", log, lambda: 5.0) as ledger:
        ledger.collect()
        assert len(ledger.waiting) == 10_000
        assert ledger.waiting[-1].line == XID.format(10_004)
        assert ledger.missed == ("5 lines were dropped: no reader took them",)
