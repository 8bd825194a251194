"""The table of rules says what the vendor's does, and an edited copy is checked to the last comma."""

import csv
from pathlib import Path

import pytest

from batuta.core.health_rules import Action, Scope, Source
from batuta.gpu.health.rules import default_rules_text, parse_rules, read_rules
from batuta.spec.problem import InputError

OWN = read_rules()
APPLICATION = (13, 31, 43, 45, 68, 69)
HARDWARE = (46, 48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 140)
HARMLESS_SXIDS = (11012, 12021, 15008, 19049, 20001, 22013, 24001)
FATAL_SXIDS = (11001, 12020, 14017, 19047, 22003, 23001, 23017, 24007)


def action(source: Source, code: int, text: str = "") -> Action | None:
    rule = OWN.find(source, code, text)
    return rule.action if rule is not None else None


def problems(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_rules(text, "rules.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_application_errors_restart_jobs_and_hardware_acts():
    assert {action(Source.XID, code) for code in APPLICATION} == {Action.RESTART_JOB}
    assert all(found.takes_out for code in HARDWARE if (found := action(Source.XID, code)))
    assert None not in {action(Source.XID, code) for code in HARDWARE}


def test_harmless_sxids_are_ignored_and_fatal_ones_are_not():
    assert {action(Source.SXID, code) for code in HARMLESS_SXIDS} == {Action.IGNORE}
    assert {action(Source.SXID, code) for code in FATAL_SXIDS} == {Action.REBOOT}
    assert action(Source.SXID, 29999, "Fatal, Link 3 something new") is Action.REBOOT
    assert action(Source.SXID, 29999, "Non-fatal, Link 3 something new") is None


def test_an_nvlink_unit_acts_when_it_says_that_it_is_fatal():
    assert action(Source.XID, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00") is Action.RESET_GPU
    assert action(Source.XID, 145, "RLW_RXPIPE Nonfatal XC0 i0 Link 11") is Action.IGNORE


def test_only_a_reboot_and_a_switch_take_a_whole_node():
    for rule in OWN.rules:
        whole = rule.action is Action.REBOOT or rule.source not in {Source.XID, Source.NVML}
        assert rule.scope is (Scope.NODE if whole else Scope.GPU), rule


def test_every_xid_of_the_shared_table_has_a_rule_that_does_what_it_says(shared_data: Path):
    wanted = {
        "RESTART_APP": {Action.RESTART_JOB, Action.RESET_GPU},
        "RESET_GPU": {Action.RESET_GPU},
        "RESTART_BM": {Action.REBOOT},
        "RESTART_VM": {Action.REBOOT},
        "CHECK_MECHANICALS": {Action.REPLACE},
        "UPDATE_SWFW": {Action.REPLACE},
    }
    with (shared_data / "xid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 30
    for row in rows:
        first, _, last = row["xid"].partition("-")
        for code in range(int(first), int(last or first) + 1):
            found = action(Source.XID, code, "Fatal")
            assert found is not None, code
            assert found in wanted.get(row["vendor_resolution"], set(Action)), row


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("RuntimeError: CUDA error: invalid device ordinal", "a GPU that the job was given is not there"),
        ("n1:77:99 [0] NCCL WARN Call to ibv_post_send failed", "NCCL failed"),
    ],
)
def test_lines_that_jobs_print_are_known(line, means):
    rule = OWN.find(Source.LOG, 0, line)
    assert rule is not None
    assert (rule.means, rule.action) == (means, Action.RESTART_JOB)


def test_an_edited_copy_is_used(tmp_path: Path):
    copy = tmp_path / "mine.yaml"
    text = default_rules_text().replace("share: 0.25", "share: 0.1").replace("jobs: 3 ", "jobs: 5 ")
    copy.write_text(
        text.replace(
            "{code: 92, means: high rate of single-bit ECC errors, action: ignore",
            "{code: 92, means: many single-bit errors, action: replace",
        )
    )
    mine = read_rules(copy)
    assert (mine.limits.share, mine.limits.jobs) == (0.1, 5)
    rule = mine.find(Source.XID, 92, "")
    assert rule is not None
    assert rule.action is Action.REPLACE


def test_all_that_is_wrong_is_told_at_once_with_its_place_and_a_fix():
    text = """\
version: 2
limits: {jobs: 1, within: soon, shore: 3}
xid:
  - {code: 79, means: x, action: rebot}
  - {code: 79-3, means: x, action: reboot}
  - {code: 13, means: x, action: ignore}
  - {code: 14, means: x, action: ignore, at: idle}
  - {code: 13, means: x, action: ignore}
  - {code: 15, action: ignore, if: '(('}
log:
  - {code: 14, means: x, action: ignore}
nvml:
  - {figure: temprature, from: 0, means: x, action: suspect}
"""
    assert problems(text) == [
        "rules.yaml:1:10: is of a version that is not known (write version: 1)",
        "rules.yaml:2:16: jobs must be a whole number within 2..1000, found '1'",
        "rules.yaml:2:27: within: duration 'soon' is not a duration (write it like 30s, 5m, 1.5h or 2d)",
        "rules.yaml:2:33: unknown key shore in limits (did you mean share?)",
        "rules.yaml:4:34: action cannot be 'rebot' (did you mean reboot?)",
        "rules.yaml:5:12: code cannot be '79-3' (write 79, 144-150, [13, 31] or any)",
        "rules.yaml:7:46: ignore cannot wait (at: idle is for reset GPU, reboot and replace)",
        "rules.yaml:8:5: the rule for xid 13 is never used: line 6 decides",
        "rules.yaml:9:5: a rule of xid needs means"
        " (known: code, if, means, action, scope, at, follows, counts, vendor)",
        "rules.yaml:9:36: if is not a regular expression: missing ), unterminated subpattern at position 1"
        " (put it between single quotes)",
        "rules.yaml:11:5: a rule of log needs if (known: if, means, action, scope, at, follows, counts, vendor)",
        "rules.yaml:11:6: unknown key code in a rule of log (did you mean scope?)",
        "rules.yaml:13:14: figure cannot be 'temprature' (did you mean temperature?)",
        "rules.yaml:13:32: from must be a whole number within 1..999999, found '0'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("# nothing\n", "holds nothing but comments"),
        ("version: 1\n", "holds no rules"),
        ("xid: []\n", "says no version"),
        ("- a\n", "must be a mapping"),
        ("version: 1\nxid: 3\n", "must be a list"),
        ("version: 1\nxid: [3]\n", "must be a mapping"),
        ("version: 1\n---\nversion: 1\n", "second document"),
        ("version: 1\nlimits: {probation: 2d}\nxid: [{code: 1, means: x, action: ignore}]\n", "shorter"),
        ("version: 1\nlimits: {share: 1.5}\nxid: [{code: 1, means: x, action: ignore}]\n", "share must be"),
        ("version: 1\nxid: [{code: [], means: x, action: ignore}]\n", "needs at least one"),
        ("version: 1\nxid: [{code: 1, means: x, action: ignore, follows: maybe}]\n", "follows cannot be"),
    ],
)
def test_bad_files_are_refused_with_a_sentence(text, told):
    assert any(told in problem for problem in problems(text)), problems(text)
