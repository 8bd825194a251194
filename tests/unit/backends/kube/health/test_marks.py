"""What a node carries because of its health, and what of others stays."""

import json
from typing import Any

from batuta.backends.kube import names
from batuta.backends.kube.health.taints import NodeMarks, marks_of, node_patch, taint_value
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import Target
from batuta.core.health_rules import Action, Finding, HealthLimits, HealthRules, Rule, Scope, Source

RULES = HealthRules(
    (
        Rule(Source.XID, "off the bus", Action.REBOOT, Scope.NODE, 79, 79),
        Rule(Source.XID, "memory", Action.RESET_GPU, Scope.GPU, 48, 48),
    ),
    HealthLimits(share=1.0, probation_s=10.0),
)
OTHER = {"key": "example.com/team", "value": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def book_with(*codes: int) -> HealthStateMachine:
    book = HealthStateMachine(RULES)
    book.add_node("n", 4, "pool")
    for code in codes:
        book.found(Finding(100.0, "n", Source.XID, code, gpu=2))
    return book


def live(marks: NodeMarks | None = None, *taints: dict[str, str], **annotations: str) -> dict[str, Any]:
    """A node as the API server has it, after these marks were written."""
    node: dict[str, Any] = {
        "metadata": {"resourceVersion": "7", "annotations": dict(annotations)},
        "spec": {"taints": list(taints)},
    }
    if marks is not None:
        patch = node_patch(node, marks)
        told = {**node["metadata"]["annotations"], **patch["metadata"].get("annotations", {})}
        node["metadata"]["annotations"] = {key: text for key, text in told.items() if text is not None}
        node["spec"] = patch.get("spec", node["spec"])
    return node


def test_a_node_that_is_well_needs_nothing():
    assert node_patch(live(), marks_of(book_with(), "n", 0)) == {}


def test_a_node_that_is_ill_is_tainted_with_the_reason_beside_the_taints_of_others():
    marks = marks_of(book_with(79), "n", 5)
    patch = node_patch(live(None, OTHER), marks)
    ours = {"key": names.UNHEALTHY, "value": "Xid-79", "effect": "NoSchedule"}
    assert patch["spec"]["taints"] == [OTHER, ours]
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["metadata"]["annotations"][names.HEALTH_SEEN] == "5"
    assert marks.condition is not None
    assert marks.condition.message == "the node: Xid 79: off the bus; it needs: reboot"


def test_what_is_written_needs_not_be_written_again():
    marks = marks_of(book_with(79, 48), "n", 5)
    assert node_patch(live(marks, OTHER), marks) == {}


def test_a_gpu_alone_leaves_the_node_without_a_taint():
    marks = marks_of(book_with(48), "n", 0)
    assert (marks.taint, json.loads(marks.ill_gpus)) == ("", {"2": "Xid 48: memory"})


def test_a_node_that_is_back_loses_our_taint_and_keeps_others():
    book = book_with(79)
    node = live(marks_of(book, "n", 5), OTHER)
    book.mended(Target("n"), 200.0)
    book.burnt_in(Target("n"), True, "", 300.0)
    book.passes(400.0)
    patch = node_patch(node, marks_of(book, "n", 5))
    assert patch["spec"]["taints"] == [OTHER]
    assert patch["metadata"]["annotations"][names.HEALTH] is None


def test_a_taint_of_somebody_else_with_our_key_is_neither_changed_nor_taken_for_ours():
    mine = {"key": names.UNHEALTHY, "value": "mine", "effect": "NoSchedule"}
    patch = node_patch(live(None, mine), marks_of(book_with(79), "n", 5))
    assert "spec" not in patch
    assert "taint" not in json.loads(patch["metadata"]["annotations"][names.HEALTH])


def test_a_taint_that_somebody_has_taken_off_is_not_put_back():
    marks = marks_of(book_with(79), "n", 5)
    node = live(marks)
    node["spec"]["taints"] = []
    assert node_patch(node, marks) == {}


def test_a_reason_becomes_the_value_of_a_taint():
    assert taint_value("Xid 79: GPU has fallen off the bus") == "Xid-79"
    assert taint_value("the burn-in failed: x") == "the-burn-in-failed"
    assert len(taint_value("é" + "long " * 40)) <= 63
    assert taint_value(": ") == "ill"
