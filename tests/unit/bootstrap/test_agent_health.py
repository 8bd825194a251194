"""What an agent makes of lines of the kernel log, and what it says of a log that it cannot read."""

import asyncio
import json
from pathlib import Path

import pytest

from batuta.backends.kube.client.errors import Unavailable
from batuta.bootstrap.agent import AgentOptions
from batuta.bootstrap.agent_health import HealthNotesPublisher, KernelNotes, health_problems
from batuta.gpu.health.kernel_log import LogFile
from batuta.gpu.health.log_queue import KernelLogQueue
from batuta.gpu.health.nvml_source import PciAddresses
from batuta.gpu.owners import Owner

XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 1\n"
SXID = "kernel: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11001, Non-fatal\n"


class Node:
    """The annotation of a node, and what the operator says of it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.seen = 0
        self.is_gone = False

    async def publish(self, text: str) -> int:
        if self.is_gone:
            raise Unavailable("no API server")
        self.texts.append(text)
        return self.seen


def make_notes(folder: Path, ledger: KernelLogQueue) -> KernelNotes:
    addresses = PciAddresses(folder / "gpus.json", lambda: {"00000000:3B:00.0": 2})
    return KernelNotes(ledger, addresses, lambda pid, gpu: (Owner("train", f"train-{pid}-{gpu}", "team"),))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


def test_a_line_becomes_a_note_with_its_gpu_and_whose_it_was(tmp_path: Path, log: Path):
    with KernelLogQueue(tmp_path / "ledger", LogFile(log), lambda: 5.0) as ledger:
        notes = make_notes(tmp_path, ledger)
        notes.look()
        log.write_text(XID + "kernel: usb\n" + SXID)
        first, second = notes.look()
        assert (first.source, first.code, first.gpu, first.text) == ("xid", 31, 2, "pid=7, name=python, Ch 1")
        assert first.owners == ("team/train/train-7-2",)
        assert (second.source, second.code, second.gpu) == ("sxid", 11001, None)
        notes.done(first.n)
        assert notes.look() == (second,)


def test_what_is_acknowledged_goes_and_what_cannot_be_told_is_told_later(tmp_path: Path, log: Path):
    """Given an API server that is gone for a while, the note is told then; acknowledged, it is taken back."""
    node, now = Node(), [0.0]

    async def story(teller: HealthNotesPublisher) -> None:
        await teller.turn()
        assert node.texts == [""]
        log.write_text(XID)
        node.is_gone = True
        with pytest.raises(Unavailable):
            await teller.turn()
        node.is_gone = False
        await teller.turn()
        (told,) = json.loads(node.texts[-1])
        await teller.turn()
        assert len(node.texts) == 2  # nobody has answered, and it is not asked all the time
        node.seen, now[0] = told["n"], 100.0
        await teller.turn()
        await teller.turn()
        assert node.texts[-1] == ""

    with KernelLogQueue(tmp_path / "ledger", LogFile(log), lambda: 5.0) as ledger:
        asyncio.run(story(HealthNotesPublisher(make_notes(tmp_path, ledger), node.publish, lambda: now[0])))


def test_a_gpu_that_fell_off_the_bus_is_known_by_where_it_was(tmp_path: Path):
    path = tmp_path / "gpus.json"
    before = PciAddresses(path, lambda: {"00000000:01:00.0": 0, "00000000:02:00.0": 1})
    before.look()
    after = PciAddresses(path, lambda: {"00000000:01:00.0": 0})
    after.look()
    assert after.index("0000:02:00") == 1
    # After a boot without the first, the second has its number.
    again = PciAddresses(path, lambda: {"00000000:02:00.0": 0})
    again.look()
    assert (again.index("0000:02:00"), again.index("0000:01:00")) == (0, None)


def test_all_that_is_wrong_with_a_log_is_said_at_once(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    problems = health_problems(tmp_path, file / "state")
    assert [problem.message.split(":")[0] for problem in problems] == ["--kernel-log", "--state"]
    assert health_problems(tmp_path / "later.log", tmp_path / "state") == []


def test_a_kernel_log_without_a_cluster_is_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (problem,) = AgentOptions(kernel_log=tmp_path / "log").problems()
    assert "batuta up --health-log" in problem.fix
