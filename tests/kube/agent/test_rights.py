"""What an agent may do in a cluster: what it needs, and nothing besides."""

from pathlib import Path

import pytest

from tests.kube.agent.conftest import GROUPS, USER
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import ControlPlane

ALL = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RIGHTS = {
    "pods": {"list", "watch"},
    "pods/status": set(),
    "pods/exec": set(),
    "pods/log": set(),
    "pods/eviction": set(),
    "nodes": {"patch"},
    "nodes/status": set(),
    "nodes/proxy": set(),
    "secrets": set(),
    "configmaps": set(),
    "serviceaccounts/token": set(),
    "events": set(),
}


@pytest.mark.parametrize("what", RIGHTS)
def test_it_has_what_it_needs_and_no_more(cluster: ControlPlane, agent_kubeconfig: Path, what: str):
    resource, _, subresource = what.partition("/")
    found = set()
    for verb in ALL:
        asked = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": "default"}
        review = {"spec": {"user": USER, "groups": list(GROUPS), "resourceAttributes": asked}}
        answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        found |= {verb} if answer["status"]["allowed"] else set()
    assert found == RIGHTS[what]


def test_it_cannot_say_that_a_node_is_ready(cluster: ControlPlane, agent_kubeconfig: Path, add_nodes):
    (node,) = add_nodes(1)
    with cluster.api_as(USER, GROUPS) as api, pytest.raises(ApiError, match="cannot patch resource"):
        api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": []}}, "strategic")
