"""What quota there is: from Kueue's objects on the API server, or from files in a ConfigMap."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.kueue import (
    FILES,
    ROOT,
    SHORT_FORM,
    Heard,
    cluster_queue,
    flavor,
    hearing,
    local_queue,
    nominal,
    queue_names,
    set_quota,
    warnings,
    write_files,
)


@pytest.fixture
def heard(kueue_cluster: ControlPlane, team: str) -> Iterator[Heard]:
    """What is heard on a cluster with Kueue's objects."""
    with hearing(kueue_cluster.kubeconfig_path, team) as found:
        yield found


@pytest.fixture
def heard_of_files(kueue_cluster: ControlPlane, team: str) -> Iterator[Heard]:
    """What is heard where an administrator wants no objects of Kueue."""
    with hearing(kueue_cluster.kubeconfig_path, team, reads_objects=False) as found:
        yield found


def test_objects_that_are_applied_and_edited_are_the_quota(kueue_cluster, team, heard):
    """Given a queue, when its quota is edited, then the World is told the whole, once for each change."""
    kueue_cluster.apply([flavor(), cluster_queue("team-a", 4), local_queue("train", team, "team-a")])
    quota = heard.until(lambda quota: quota.door(team, "train"), "the queue")
    assert nominal(quota, "team-a") == 4
    assert [one.name for one in quota.flavors] == ["gpus"]

    set_quota(kueue_cluster, "team-a", 6)
    heard.until(lambda quota: nominal(quota, "team-a") == 6, "other quota")

    kueue_cluster.api.delete(f"{ROOT}/clusterqueues/team-a")
    heard.until(lambda quota: not quota.cluster_queues, "the end of the queue")


def test_a_status_that_somebody_writes_is_no_news(kueue_cluster, team, heard):
    """Given a queue, when its status changes, then the World is not told of it again."""
    kueue_cluster.apply([flavor(), cluster_queue("team-a", 4)])
    heard.until(lambda quota: queue_names(quota) == {"team-a"}, "the queue")
    told = heard.times
    for pending in range(3):
        kueue_cluster.api.patch(f"{ROOT}/clusterqueues/team-a/status", {"status": {"pendingWorkloads": pending}})
    kueue_cluster.apply(cluster_queue("team-b", 1))
    heard.until(lambda quota: queue_names(quota) == {"team-a", "team-b"}, "the next queue")
    assert heard.times == told + 1


def test_an_object_that_makes_no_sense_is_left_out_and_warned_of(kueue_cluster, team, heard):
    """Given a queue that lends more than it has, the others hold, and it does when it is mended."""
    broken = cluster_queue("greedy", 2, cohortName="all")
    broken["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = 5
    kueue_cluster.apply([flavor(), cluster_queue("team-a", 4), broken])
    heard.until(lambda quota: queue_names(quota) == {"team-a"}, "the sound queue alone")
    wait_until(lambda: any("lendingLimit" in one for one in warnings(kueue_cluster, "greedy")), "a warning")

    set_quota(kueue_cluster, "greedy", 5)
    heard.until(lambda quota: queue_names(quota) == {"team-a", "greedy"}, "both queues")


def test_a_queue_takes_the_namespaces_that_it_selects(kueue_cluster, team, heard):
    """Given a selector, a namespace has no way in until it has the label."""
    selector: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    kueue_cluster.apply([flavor(), cluster_queue("team-a", 4, **selector), local_queue("train", team, "team-a")])
    wait_until(lambda: "namespaceSelector" in "".join(warnings(kueue_cluster, "train", team)), "a warning")
    assert heard.quota.door(team, "train") is None

    kueue_cluster.api.patch(f"/api/v1/namespaces/{team}", {"metadata": {"labels": {"team": "a"}}})
    heard.until(lambda quota: quota.door(team, "train"), "the way in")


def test_files_in_a_config_map_are_the_quota(kueue_cluster, team, heard_of_files):
    """Given files with faults, all of these are told at once, and the last good value stays."""
    write_files(kueue_cluster, team, a=SHORT_FORM)
    heard_of_files.until(lambda quota: nominal(quota, "team-a") == 4, "the queue of the file")
    told = heard_of_files.times

    write_files(kueue_cluster, team, a="queues: [{nam: team-a}]", b="kind: ClusterQueue")

    def warned() -> list[str]:
        return [one for one in warnings(kueue_cluster, FILES, team) if "a.yaml" in one and "b.yaml" in one]

    wait_until(warned, "a warning of both files")
    assert nominal(heard_of_files.quota, "team-a") == 4
    assert heard_of_files.times == told

    kueue_cluster.api.delete(f"/api/v1/namespaces/{team}/configmaps/{FILES}")
    heard_of_files.until(lambda quota: not quota, "no quota")
