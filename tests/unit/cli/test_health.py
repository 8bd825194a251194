"""`batuta health` shows the rules and tries them on a log."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.health import app
from batuta.spec.problem import InputError

AT = "2026-11-16T{}:00:00+00:00 n1 kernel: "
XID = "NVRM: Xid (PCI:0000:{}:00): {}, "
LOG = "\n".join(
    (
        AT.format("10") + "usb 1-1: new device",
        AT.format("10") + XID.format("3b", 31) + "pid=100, name=python, MMU Fault",
        AT.format("10") + XID.format("3b", 31) + "pid=100, name=python, MMU Fault",
        AT.format("10") + XID.format("3b", 45) + "pid=100, name=python, Ch 00000009",
        AT.format("11") + XID.format("3b", 31) + "pid=200, name=python, MMU Fault",
        AT.format("12") + XID.format("3b", 31) + "pid=300, name=python, MMU Fault",
        AT.format("12") + XID.format("86", 63) + "Row Remapper: New row marked",
        AT.format("12") + "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 22013, Non-fatal, Link 12",
        AT.format("13") + XID.format("86", 79) + "GPU has fallen off the bus.",
        AT.format("13") + XID.format("86", 79) + "GPU has fallen off the bus.",
        AT.format("13") + XID.format("86", 999) + "?",
        "RuntimeError: CUDA error: invalid device ordinal",
    )
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(LOG + "\n")
    return path


def run(*arguments: object, given: str | None = None):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_each_line_is_told_with_what_would_be_done(log):
    found = json.loads(run("check-rules", "--log", log, "-o", "json").stdout)
    assert [(one["line"], one["what"], one["done"]) for one in found] == [
        (2, "Xid 31", "restart the job of pid 100"),
        (3, "Xid 31", "nothing: it is the same incident"),
        (4, "Xid 45", "nothing: it follows another error"),
        (5, "Xid 31", "restart the job of pid 200"),
        (6, "Xid 31", "take GPU 0000:3b:00 out, reset GPU"),
        (7, "Xid 63", "reset GPU when no job has it"),
        (8, "SXid 22013", "nothing"),
        (9, "Xid 79", "take the node out, reboot"),
        (10, "Xid 79", "nothing more: it is out of service"),
        (11, "Xid 999", "nothing"),
        (12, "log", "restart the job that has it"),
    ]


def test_people_get_a_table(log):
    shown = run("check-rules", "--log", log).stdout.splitlines()
    assert shown[0].split() == ["LINE", "WHAT", "WHERE", "MEANS", "WOULD", "BE", "DONE"]
    assert shown[8].endswith("GPU has fallen off the bus                 take the node out, reboot")


def test_standard_input_will_do():
    shown = run("check-rules", "--log", "-", given="[ 1.5] " + XID.format("3b", 48) + "DBE\n").stdout
    assert "double-bit ECC error" in shown


def test_a_quiet_log_is_said_to_be_quiet():
    assert "no line of this log" in run("check-rules", "--log", "-", given="all is well\n").stdout


def test_edited_rules_decide(log, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("version: 1\nxid: [{code: 79, means: a joke, action: ignore}]\n")
    found = json.loads(run("check-rules", "--log", log, "--rules", mine, "-o", "json").stdout)
    assert {one["done"] for one in found} == {"nothing"}
    assert {one["means"] for one in found if one["what"] == "Xid 79"} == {"a joke"}


def test_the_printed_rules_are_rules_that_can_be_read_again(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(run("rules").stdout)
    assert "nothing wrong" in run("check-rules", "--rules", mine).stderr


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--rules", "version: 1\nxid: [{code: 1}]\n", "needs means"),
        ("--rules", None, "no such file"),
        ("--log", None, "cannot be read"),
    ],
)
def test_bad_input_is_left_to_the_command_line_to_print(tmp_path, option, text, told):
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=told):
        run("check-rules", option, path)
