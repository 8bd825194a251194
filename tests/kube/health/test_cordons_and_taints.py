"""What people do to nodes is theirs: it is not undone, and it is not taken for something else."""

import time

from batuta.backends.kube import names
from tests.kube.cli.command_line import Batuta
from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.unified import Jobs


def test_a_cordon_of_a_human_outlasts_the_illness(jobs: Jobs, ward: Ward, add_nodes):
    """Given a node that is ill and that somebody has cordoned, when it is well, then the cordon is there."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    ward.cluster.kubectl("cordon", node)
    ward.note(node, 79)
    ward.is_shut(node)
    ward.annotate(node, mended="all")
    ward.ends(ward.burn_in(node), "Succeeded")
    ward.becomes(node, "")
    assert ward.taint(node) is None
    assert ward.get(node)["spec"]["unschedulable"]


def test_taints_of_others_stay_as_they_are(jobs: Jobs, ward: Ward, add_nodes):
    """Given a taint of somebody else, also with our key, it is there before and after an illness."""
    mine, ours, _, _ = add_nodes(4, pool(jobs.namespace))
    ward.cluster.kubectl("taint", "node", mine, f"{names.UNHEALTHY}=mine:NoSchedule")
    ward.cluster.kubectl("taint", "node", ours, "example.com/team=a:NoExecute")
    before = ward.get(ours)["spec"]["taints"]
    (note,) = ward.note(mine, 79)
    ward.acknowledges(mine, note)
    ward.note(ours, 79)
    ward.is_shut(ours)
    for node in (mine, ours):
        ward.becomes(node, "ill")
        ward.annotate(node, mended="all")
        ward.ends(ward.burn_in(node), "Succeeded")
        ward.becomes(node, "")
    assert ward.taint(mine) == "mine"
    assert ward.get(ours)["spec"]["taints"] == before


def test_who_takes_the_taint_off_overrules_health(jobs: Jobs, ward: Ward, add_nodes):
    """Given a node that is shut, when somebody removes the taint, then it is well by their word."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    ward.note(node, 79)
    ward.is_shut(node)
    job = jobs.submit("train", replicas=1)
    ward.cluster.kubectl("taint", "node", node, f"{names.UNHEALTHY}-")
    job.runs_with(1)
    ward.becomes(node, "")
    assert ward.taint(node) is None
    wait_until(lambda: "a human said so" in ward.events(node).get("Healthy", [""])[0], "the event")


def test_nodes_are_shown_with_reasons_and_are_told_what_people_did(jobs: Jobs, ward: Ward, add_nodes):
    """Given a node that is ill and a GPU of another, `batuta nodes` lists both, and people's words count."""
    ill, part, *_ = add_nodes(4, pool(jobs.namespace, gpus=2))
    batuta = Batuta(ward.cluster.kubeconfig_path, jobs.namespace)

    def seen(name: str) -> dict:
        return next(one for one in batuta("nodes", "-o", "json").json() if one["name"] == name)

    began_s = time.time()
    ward.note(ill, 79)
    ward.note(part, 48, gpu=1)
    ward.is_shut(ill)
    wait_until(lambda: seen(part)["gpus"][1]["health"], "the GPU to be shown", 20)
    node = seen(ill)
    assert (node["state"], node["cordoned_by"]) == ("unhealthy", "")
    health = node["health"]
    assert (health["state"], health["who"], health["remedy"]) == ("ill", "health", "reboot")
    assert health["reason"] == "Xid 79: GPU has fallen off the bus"
    assert began_s - 5 < health["since_s"] < time.time() + 5
    assert [gpu["healthy"] for gpu in seen(part)["gpus"]] == [True, False]
    assert seen(part)["state"] == "ready"
    assert "Xid 79" in batuta("nodes").out

    assert "GPU 0" in batuta("nodes", "mended", part, "--gpu", "0").err
    assert batuta("nodes", "mended", part, "--gpu", "1").code == 0
    ward.burn_in(part)
    assert batuta("nodes", "cordon", ill).code == 0
    assert seen(ill)["cordoned_by"] == "kubectl cordon"
    assert batuta("nodes", "uncordon", ill).code == 0
    assert ward.taint(ill) is not None
    assert batuta("nodes", "uncordon", ill).code == 0
    ward.becomes(ill, "")
    assert seen(ill)["state"] == "ready"
