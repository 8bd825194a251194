"""A node falls ill: it is shut with the reason, its job goes on elsewhere, and it has to prove itself."""

import json
from functools import partial

from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Jobs


def nodes_of(job):
    return {node for node, _ in job.places().values()}


def is_alarmed(ward: Ward, node: str) -> bool:
    return "HealthGuardRail" in ward.events(node)


def is_held(ward: Ward, node: str) -> bool:
    return ward.condition(node).get("reason") == "HeldByGuardRail"


def test_xid_79_moves_the_job_shuts_the_node_and_a_burn_in_decides(jobs: Jobs, ward: Ward, add_nodes):
    """Given a job on four of five nodes, when one falls off the bus, then the job runs on the other four.

    The node has taint, condition and event. A burn-in that fails leaves it out; one that passes puts it on
    probation and then back.
    """
    nodes = add_nodes(5, pool(jobs.namespace))
    job = jobs.submit("train", replicas=4)
    job.runs_with(4)
    (victim, *_) = sorted(nodes_of(job))

    (note,) = ward.note(victim, 79)
    assert ward.is_shut(victim) == "Xid-79"
    # Within seconds; it takes one or two where nothing else is done.
    wait_until(lambda: victim not in nodes_of(job) and len(job.running()) == 4, "the job to run elsewhere", 15)
    assert nodes_of(job) == set(nodes) - {victim}
    condition = wait_until(lambda: ward.condition(victim), "the condition")
    assert condition["status"] == "True"
    assert "Xid 79: GPU has fallen off the bus" in condition["message"]
    wait_until(lambda: "Xid 79" in ward.events(victim).get("Unhealthy", [""])[0], "the event")
    ward.acknowledges(victim, note)
    assert not ward.get(victim)["spec"].get("unschedulable")

    ward.annotate(victim, mended="node")
    pod = ward.burn_in(victim)
    assert {"operator": "Exists"} in pod["spec"]["tolerations"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    ward.ends(pod, "Failed", "memory differs at 0x10")
    wait_until(lambda: "memory differs" in ward.condition(victim)["message"], "the reason")
    assert ward.shown(victim)["node"]["remedy"] == "replace"
    assert ward.taint(victim) is not None

    ward.annotate(victim, mended="all")
    ward.ends(ward.burn_in(victim), "Succeeded")
    ward.becomes(victim, "")
    assert ward.taint(victim) is None
    wait_until(lambda: ward.condition(victim)["status"] == "False", "the condition to end")
    told = {"Unhealthy", "BurnIn", "Probation", "Healthy"}
    wait_until(lambda: ward.events(victim).keys() >= told, "all events")


def test_a_node_that_was_rebooted_is_tested_without_being_told(jobs: Jobs, ward: Ward, add_nodes):
    """Given a node that is to be rebooted, when it has booted again, then its burn-in begins."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    ward.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"nodeInfo": {"bootID": "first"}}})
    ward.note(node, 79)
    ward.is_shut(node)
    ward.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"nodeInfo": {"bootID": "second"}}})
    ward.becomes(node, "burn-in")
    assert ward.shown(node)["node"]["who"] == "a reboot"


def test_a_condition_that_a_rule_knows_shuts_a_node(jobs: Jobs, ward: Ward, add_nodes):
    """Given a rule for what node-problem-detector says, that condition is as good as a line of the log."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    said = {"type": "KernelDeadlock", "status": "True", "reason": "Hung", "message": "task blocked"}
    body = {"status": {"conditions": [said | {"lastTransitionTime": "2026-01-02T03:04:05Z"}]}}
    ward.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "--patch", json.dumps(body))
    assert ward.is_shut(node) == "the-kernel-is-stuck"


def test_the_guard_rail_holds_when_half_of_a_pool_fails(jobs: Jobs, ward: Ward, add_nodes, operator: OperatorProcess):
    """Given four nodes that fail one after the other, half are shut; the others stay, and people are told."""
    nodes = add_nodes(4, pool(jobs.namespace))
    for node in nodes:
        ward.note(node, 79)
    wait_until(lambda: all(ward.state(node) == "ill" for node in nodes), "all four to be ill", 20)
    wait_until(lambda: sum(ward.taint(node) is not None for node in nodes) == 2, "two to be shut", 20)
    held = [node for node in nodes if ward.shown(node)["node"]["held"]]
    assert len(held) == 2
    for node in held:
        assert ward.taint(node) is None
        wait_until(partial(is_alarmed, ward, node), "an alert")
        wait_until(partial(is_held, ward, node), "the condition")
    wait_until(lambda: operator.metrics()["batuta_health_held"] == 2, "Prometheus to know")
    operator.assert_calm()
