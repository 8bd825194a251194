"""Which log is read, and what is wrong with what somebody wants to be read."""

from pathlib import Path

import pytest

from batuta.core.cluster import Node
from batuta.gpu.health import findings
from batuta.gpu.health.findings import open_log
from batuta.gpu.health.kernel_log import LogFile
from batuta.gpu.health.rules import read_health, read_rules
from batuta.gpu.health.state import load_state
from batuta.gpu.local_nodes import virtual_log
from batuta.spec.problem import InputError


class Texts(dict[str, str]):
    def put(self, key: str, value: str) -> None:
        self[key] = value


def test_all_that_is_wrong_with_log_and_rules_is_told_at_once(tmp_path: Path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nlimits: {share: 7}\nxid: [{code: 79, means: x, action: rebot}]\n")
    with pytest.raises(InputError) as caught:
        read_health(tmp_path / "nowhere" / "kern.log", rules)
    told = [str(problem) for problem in caught.value.problems]
    assert len(told) == 3
    assert "there is no folder" in told[0]
    assert "share must be" in told[1]
    assert "did you mean reboot?" in told[2]


def test_a_log_may_come_later_but_is_no_folder(tmp_path: Path):
    assert read_health(tmp_path / "kern.log", None) == read_rules()
    with pytest.raises(InputError, match="is a folder"):
        read_health(tmp_path, None)


def test_virtual_gpus_have_a_log_of_their_own_unless_another_is_named(tmp_path: Path):
    line = "NVRM: Xid (PCI:0000:01:00): 79, x\n"
    virtual_log(tmp_path).parent.mkdir()
    virtual_log(tmp_path).write_text(line)
    own = open_log(tmp_path, None, virtual=True)
    assert isinstance(own, LogFile)
    assert own.read(None).lines == (line.strip(),)
    other = open_log(tmp_path, tmp_path / "other.log", virtual=True)
    assert isinstance(other, LogFile)
    assert other.read(None).lines == ()


def test_what_is_known_of_nodes_that_are_gone_is_forgotten():
    texts, rules = Texts(), read_rules()
    memory = load_state(texts, rules, [Node("n0", 2), Node("n1", 2)])
    memory.machine.cordoned("n1", "ana", 1.0)
    assert rules.limits.may_restart(memory.restarts, "j", 1.0)
    memory.last_note = 7
    memory.save(texts)
    again = load_state(texts, rules, [Node("n0", 4)])
    assert (again.last_note, again.restarts, again.machine.cordons) == (7, {"j": [1.0]}, {})
    assert {name: member.gpus for name, member in again.machine.members.items()} == {"n0": 4}


def test_without_a_log_and_without_nvml_it_is_said_that_nothing_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(findings, "KMSG", tmp_path / "kmsg")
    assert open_log(tmp_path, None, virtual=False, uuids=["GPU-1"]) is None
    assert "errors of GPUs are not seen" in caplog.text
