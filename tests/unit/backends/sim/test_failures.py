"""Failures are drawn with a seed or written in a script."""

from pathlib import Path

import pytest

from batuta.backends.sim.failures import (
    FailureKind,
    FailureOptions,
    FailureRecord,
    draw_failures,
    parse_failure_options,
    read_failure_script,
    read_failures,
)
from batuta.spec.cluster import read_cluster
from batuta.spec.problem import InputError

DAY_S = 86_400.0
NODES = read_cluster("4x4:T4")
ALL = FailureOptions(until_s=100 * DAY_S, seed=1, node_mtbf_s=DAY_S, gpu_mtbf_s=5 * DAY_S, straggler_mtbf_s=2 * DAY_S)
NEXT = {
    FailureKind.NODE_LOST: FailureKind.NODE_RETURNED,
    FailureKind.GPU_FAILED: FailureKind.GPU_REPAIRED,
    FailureKind.SLOW: FailureKind.NORMAL,
}


def test_the_same_seed_gives_the_same_failures_and_another_seed_others():
    assert draw_failures(NODES, ALL) == draw_failures(NODES, ALL)
    from dataclasses import replace

    assert draw_failures(NODES, ALL) != draw_failures(NODES, replace(ALL, seed=2))


def test_failures_come_in_order_of_time_and_each_is_mended():
    records = draw_failures(NODES, ALL)
    assert [record.time_s for record in records] == sorted(record.time_s for record in records)
    broken: set[tuple[FailureKind, str, int]] = set()
    for record in records:
        if record.kind in NEXT:
            assert record.time_s <= ALL.until_s
            broken.add((NEXT[record.kind], record.node, record.gpu))
        else:
            broken.remove((record.kind, record.node, record.gpu))
    assert not broken


def test_a_nodes_failures_do_not_depend_on_the_nodes_after_it():
    alone = draw_failures(NODES[:1], ALL)
    assert alone == [record for record in draw_failures(NODES, ALL) if record.node == NODES[0].name]


def test_mean_times_are_those_asked_for():
    options = FailureOptions(until_s=2000 * DAY_S, node_mtbf_s=DAY_S, node_mttr_s=DAY_S)
    lost = [record for record in draw_failures(NODES, options) if record.kind == "node-lost"]
    assert len(lost) == pytest.approx(4 * 1000, rel=0.1)


def test_only_what_is_turned_on_happens():
    options = FailureOptions(until_s=50 * DAY_S, straggler_mtbf_s=DAY_S, straggler_factors=(0.4, 0.6))
    records = draw_failures(NODES, options)
    assert {record.kind for record in records} == {FailureKind.SLOW, FailureKind.NORMAL}
    assert all(0.4 <= record.factor <= 0.6 for record in records if record.kind is FailureKind.SLOW)
    assert draw_failures(NODES, FailureOptions(until_s=DAY_S)) == []


def test_options_are_parsed_from_a_short_text():
    options = parse_failure_options("mtbf=30d, mttr=2h, gpu-mtbf=90d, slow-mtbf=1d, slow-mttr=30m, slow-factor=0.5")
    assert (options.node_mtbf_s, options.node_mttr_s) == (30 * DAY_S, 7200.0)
    assert (options.gpu_mtbf_s, options.straggler_mttr_s) == (90 * DAY_S, 1800.0)
    assert options.straggler_factors == (0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not understood"),
        ("mtfb=3d", "did you mean mtbf?"),
        ("mtbf", "is not a duration"),
        ("mtbf=soon", "is not a duration"),
        ("mtbf=0s", "finite number > 0"),
        ("mttr=2h", "does not say how often anything fails"),
        ("slow-mtbf=1d,slow-factor=2", "within 0 < low ≤ high ≤ 1"),
        ("slow-mtbf=1d,slow-factor=half", "must be a number in (0, 1]"),
    ],
)
def test_senseless_options_are_refused(text, said):
    with pytest.raises(InputError) as caught:
        read_failures(text, NODES, DAY_S, 0)
    assert said in str(caught.value)


YAML = """\
# a bad night
- {time_s: 7200, kind: node-returned, node: t4-003}
- {time_s: 3600, kind: node-lost, node: t4-003}
- time_s: 100
  kind: gpu-failed
  node: t4-000
  gpu: 2
- {time_s: 500.5, kind: slow, node: t4-001, factor: 0.5}
"""
JSONL = """\
{"time_s": 7200, "kind": "node-returned", "node": "t4-003"}
{"time_s": 3600, "kind": "node-lost", "node": "t4-003"}

{"time_s": 1e2, "kind": "gpu-failed", "node": "t4-000", "gpu": 2}
{"time_s": 500.5, "kind": "slow", "node": "t4-001", "factor": 0.5}
"""


@pytest.mark.parametrize(("name", "text"), [("x.yaml", YAML), ("x.jsonl", JSONL)])
def test_a_script_is_read_in_order_of_time(tmp_path: Path, name, text):
    (tmp_path / name).write_text(text)
    assert read_failures(str(tmp_path / name), NODES, DAY_S, 0) == [
        FailureRecord(100.0, FailureKind.GPU_FAILED, "t4-000", gpu=2),
        FailureRecord(500.5, FailureKind.SLOW, "t4-001", factor=0.5),
        FailureRecord(3600.0, FailureKind.NODE_LOST, "t4-003"),
        FailureRecord(7200.0, FailureKind.NODE_RETURNED, "t4-003"),
    ]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{kind: node-lost, node: t4-000}", "a record needs time_s"),
        ("{time_s: -1, kind: node-lost, node: t4-000}", "time_s must be a number ≥ 0, found '-1'"),
        ("{time_s: .nan, kind: node-lost, node: t4-000}", "time_s must be a number"),
        ("{time_s: 1, kind: node-list, node: t4-000}", "unknown kind node-list (did you mean node-lost?)"),
        ("{time_s: 1, kind: node-lost, node: t4-009}", "no node t4-009 (did you mean t4-00"),
        ("{time_s: 1, kind: gpu-failed, node: t4-000}", "of kind gpu-failed needs gpu"),
        ("{time_s: 1, kind: gpu-failed, node: t4-000, gpu: 4}", "gpu must be a whole number within 0..3"),
        ("{time_s: 1, kind: node-lost, node: t4-000, gpu: 1}", "of kind node-lost has no gpu"),
        ("{time_s: 1, kind: slow, node: t4-000}", "of kind slow needs factor"),
        ("{time_s: 1, kind: slow, node: t4-000, factor: 0}", "factor must be a number"),
        ("{time_s: 1, kind: node-lost, nod: t4-000}", "unknown key nod in a record (did you mean node?)"),
        ("[1, 2]", "a record must be a mapping, found a list"),
        ("{time_s: 1", "is not YAML"),
    ],
)
@pytest.mark.parametrize("ending", ["yaml", "jsonl"])
def test_a_bad_record_is_named_with_its_line(tmp_path: Path, record, said, ending):
    path = tmp_path / f"x.{ending}"
    good = "{time_s: 1, kind: node-lost, node: t4-000}"
    path.write_text(f"- {good}\n- {record}\n" if ending == "yaml" else f"{good}\n{record}\n")
    with pytest.raises(InputError) as caught:
        read_failure_script(path, NODES)
    assert any(said in str(problem) for problem in caught.value.problems)
    assert {problem.line for problem in caught.value.problems} <= {2, 3}


@pytest.mark.parametrize("text", ["# nothing\n", "[]", "a: b", "3"])
def test_a_script_without_records_is_refused(tmp_path: Path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError):
        read_failure_script(tmp_path / "x.yaml")
