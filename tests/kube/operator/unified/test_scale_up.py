"""New members of a running job get their places together or not at all, and those that run never notice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.flags import FAKE_NODE
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import USER
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import Jobs, Submitted, manifest

NO = "not on this evening"
CANARY = "canary"


@contextmanager
def refused_bindings(jobs: Jobs, *pods: str) -> Iterator[None]:
    """Has the API server refuse to bind these pods of a namespace, from now to the end of the block."""
    api, name = jobs.api, f"no-{jobs.namespace}"
    path = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [
                {"name": "here", "expression": f"request.namespace == '{jobs.namespace}'"},
            ],
            "validations": [{"expression": f"!(request.name in {[CANARY, *pods]})", "message": NO}],
        },
    }
    api.create(f"{path}/validatingadmissionpolicies", policy)
    binding = {"policyName": name, "validationActions": ["Deny"]}
    api.create(f"{path}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding})
    api.create(jobs.pods_path, make_pod(CANARY, gpus=0) | {"spec": _idle()})
    wait_until(lambda: _is_refused(jobs), "the policy to hold")
    try:
        yield
    finally:
        api.delete(f"{path}/validatingadmissionpolicybindings/{name}")
        api.delete(f"{path}/validatingadmissionpolicies/{name}")
        wait_until(lambda: not _is_refused(jobs), "the policy to be gone")


def _idle() -> dict[str, object]:
    """A pod that no scheduler takes, so that a test can try to bind it."""
    return {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}


def _is_refused(jobs: Jobs) -> bool:
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    body = {"metadata": {"name": CANARY}, "target": target}
    try:
        jobs.api.create(f"{jobs.pods_path}/{CANARY}/binding?dryRun=All", body)
    except ApiError as error:
        if NO not in error.text:
            raise
        return True
    return False


def bindings(cluster: ControlPlane, mark: int, namespace: str) -> dict[str, set[int]]:
    """What the API server answered when the operator bound pods: codes by pod."""
    found: dict[str, set[int]] = {}
    for one in cluster.requests.since(mark, USER):
        if one.resource == "pods/binding" and one.namespace == namespace:
            found.setdefault(one.name, set()).add(one.code)
    return found


def goes_on_as_before(job: Submitted, before: dict[str, str]) -> bool:
    """Whether the old members run, nobody else has a node, and the job says that it runs."""
    status = job.status
    shown = status["state"], status["readyReplicas"], status["restarts"]
    return job.running() == before and job.places().keys() == before.keys() and shown == ("RUNNING", 2, 0)


def test_one_member_that_cannot_be_bound_undoes_a_scale_up(jobs, add_nodes, cluster):
    """Given an API server that refuses one of two new members, the other one goes again, and old ones stay.

    The job says why. When the API server lets it pass, the next try succeeds.
    """
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("torch", replicas=(2, 4), replica_spec={"sizes": [2, 4]})
    before = job.runs_with(2)
    mark = cluster.requests.mark()
    with refused_bindings(jobs, "torch-3"):
        # A node that has refused a job is not tried again for a while: there are several.
        add_nodes(6, NodeShape(gpus=2))
        said = wait_until(lambda: job.condition("PodsReady") if NO in job.status["message"] else {}, "why")
        assert (said["status"], said["reason"]) == ("True", "ResizeBackoff")
        wait_until(lambda: goes_on_as_before(job, before), "it to be as it was")
        assert NO in job.events()["NotPlaced"][0]
    # It was bound in part, so there was something to undo.
    tried = bindings(cluster, mark, jobs.namespace)
    assert tried["torch-2"] == {201}
    assert min(tried["torch-3"]) >= 400
    assert before.items() <= job.runs_with(4, within_s=120.0).items()
    assert (job.starts(), job.status["restarts"]) == ({"0"}, 0)


def test_a_scale_up_that_the_nodes_will_not_have_is_made_elsewhere(jobs, add_nodes, cluster):
    """Given a node with GPUs for both new members and a port for one, neither goes there; old ones stay."""
    ports = [{"containerPort": 29500, "hostPort": 29500}]
    body = manifest("torch", replicas=(1, 3), replica_spec={"sizes": [1, 3]})
    body["spec"]["replicaSpec"]["template"]["spec"]["containers"][0]["ports"] = ports
    (first,) = add_nodes(1, NodeShape(gpus=1))
    job = jobs.create(body)
    before = job.runs_with(1)
    mark = cluster.requests.mark()
    (narrow,) = add_nodes(1, NodeShape(gpus=2))
    wait_until(lambda: narrow in job.events().get("NotPlaced", [""])[0], "the node to refuse")
    wait_until(lambda: job.workers().keys() == before.keys(), "the new members to go")
    assert bindings(cluster, mark, jobs.namespace) == {}
    others = add_nodes(2, NodeShape(gpus=1))
    assert before.items() <= job.runs_with(3).items()
    assert {node for node, _ in job.places().values()} == {first, *others}


@pytest.fixture
def held_up(jobs: Jobs, add_nodes) -> Iterator[tuple[Submitted, dict[str, str], str]]:
    """A job that grows from two to four members, of which only one more can be made as long as it lasts.

    With it come the old members, and the name of the new one.
    """
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("torch", replicas=(2, 4), replica_spec={"sizes": [2, 4], "targetReplicas": 2})
    before = job.runs_with(2)
    quotas = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    jobs.api.create(quotas, {"metadata": {"name": "three"}, "spec": {"hard": {"pods": "3"}}})
    wait_until(lambda: jobs.api.get(f"{quotas}/three").get("status", {}).get("hard"), "the quota")
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 4}}})
    wait_until(lambda: len(job.pods()) == 3 and "quota" in job.status["message"], "it to be held up")
    (new,) = job.pods().keys() - before.keys()
    yield job, before, new
    jobs.api.delete(f"{quotas}/three")
    assert before.items() <= job.runs_with(4).items()
    assert (job.starts(), job.status["restarts"]) == ({"0"}, 0)
    assert len(set(job.places().values())) == 4


def test_a_new_member_that_somebody_else_binds_elsewhere_is_made_anew(held_up, jobs, add_nodes):
    """Given a new member on a node that was not meant for it, it goes, and the job grows as was decided."""
    job, before, new = held_up
    (other,) = add_nodes(1, NodeShape(gpus=0))
    jobs.cluster.bind(jobs.namespace, new, other)
    wait_until(lambda: "another scheduler has bound" in str(job.events().get("NotPlaced")), "it to notice")
    wait_until(lambda: job.places().keys() == before.keys(), "the stray to go")
    assert job.running() == before


def test_a_new_member_that_somebody_deletes_before_it_has_a_place_is_made_anew(held_up, jobs):
    """Given a new member that is deleted while the others are missing, the job waits for another one."""
    job, before, new = held_up
    uid = job.pods()[new]["metadata"]["uid"]
    jobs.api.delete(f"{jobs.pods_path}/{new}", gracePeriodSeconds=0)

    def look() -> bool:
        newcomers = [pod for name, pod in job.pods().items() if name not in before]
        return bool(newcomers) and newcomers[0]["metadata"]["uid"] != uid

    wait_until(look, "another one")
    assert job.running() == before


def test_a_node_that_goes_before_new_members_have_begun_takes_only_them(jobs, add_nodes, cluster):
    """Given new members that are bound and do not run yet, when their node is gone, then old ones run on."""
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("torch", replicas=(2, 4), replica_spec={"sizes": [2, 4]})
    before = job.runs_with(2)
    nobody_s = NodeShape(gpus=2, annotations={FAKE_NODE[0]: "nobody's"})  # whose pods do not start
    (doomed,) = cluster.add_nodes(1, nobody_s, f"{jobs.namespace}-doomed")
    wait_until(lambda: len(job.places()) == 4, "new members to be bound")
    cluster.delete_nodes([doomed])
    wait_until(lambda: job.workers().keys() == before.keys(), "the new members to go")
    job.reaches("RUNNING")
    assert goes_on_as_before(job, before)
    assert job.starts() == {"0"}
