"""What the operator may do in a real cluster, and what it may not; and what people may."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from batuta.backends.kube.install.chart import manifests, read_definitions
from tests.support.chart import release_of, rights_of
from tests.support.kube.api import Api, ApiError
from tests.support.kube.control_plane import ControlPlane, wait_until

READ = ("get", "list", "watch")
ALL = (*READ, "create", "update", "patch", "delete", "deletecollection")
HOME, OTHER = "batuta-rights", "batuta-rights-other"

# Resource (with its group and subresource) → what the operator may do with it wherever jobs are.
WHERE_JOBS_ARE: dict[str, tuple[str, ...]] = {
    "unifiedjobs.batuta.dev": (*READ, "create", "delete", "patch", "update"),
    "unifiedjobs.batuta.dev/status": ("get", "patch", "update"),
    "unifiedjobs.batuta.dev/finalizers": ("update",),
    "trialruns.batuta.dev": (*READ, "create", "delete"),
    "trialruns.batuta.dev/status": ("get", "patch"),
    "trialruns.batuta.dev/finalizers": ("update",),
    "unifiedjobs.batuta.dev/scale": (),
    "pods": (*READ, "create", "patch", "delete"),
    "pods/binding": ("create",),
    "pods/eviction": ("create",),
    "pods/status": ("patch",),
    "pods/log": ("get",),
    "pods/exec": (),
    "pods/ephemeralcontainers": (),
    "services": ("create", "patch", "delete"),
    "configmaps": ("create", "patch", "delete"),
    "persistentvolumeclaims": READ,
    "jobs.batch": (*READ, "create", "patch", "delete"),
    "mpijobs.kubeflow.org": (*READ, "create", "patch", "delete"),
    "jobsets.jobset.x-k8s.io": READ,
    "podgroups.scheduling.x-k8s.io": READ,
    "podgroups.scheduling.k8s.io": READ,
    "workloads.scheduling.k8s.io": READ,
    "events": ("create", "patch"),
    "events.events.k8s.io": ("create", "patch"),
    "leases.coordination.k8s.io": (),
    "secrets": (),
    "serviceaccounts": (),
    "serviceaccounts/token": (),
    "deployments.apps": (),
    "roles.rbac.authorization.k8s.io": (),
    "rolebindings.rbac.authorization.k8s.io": (),
}
WHOLE_CLUSTER: dict[str, tuple[str, ...]] = {
    "nodes": READ,
    "nodes/status": (),
    "nodes/proxy": (),
    "namespaces": READ,
    "persistentvolumes": (),
    "priorityclasses.scheduling.k8s.io": READ,
    "noderesourcetopologies.topology.node.k8s.io": READ,
    "customresourcedefinitions.apiextensions.k8s.io": (),
    "tokenreviews.authentication.k8s.io": ("create",),
    "subjectaccessreviews.authorization.k8s.io": ("create",),
    "clusterroles.rbac.authorization.k8s.io": (),
    "clusterrolebindings.rbac.authorization.k8s.io": (),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (),
}


@dataclass(frozen=True)
class Judge:
    """Asks the API server what somebody may do."""

    api: Api
    user: str
    groups: tuple[str, ...] = ("system:authenticated",)

    def may(self, verb: str, what: str, namespace: str = "", name: str = "") -> bool:
        plain, _, subresource = what.partition("/")
        resource, _, group = plain.partition(".")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        place = {"namespace": namespace, "name": name}
        review: dict[str, Any] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": self.user, "groups": list(self.groups), "resourceAttributes": asked | place},
        }
        answer = self.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return answer["status"]["allowed"]

    def rights(self, what: str, namespace: str = "") -> set[str]:
        return {verb for verb in ALL if self.may(verb, what, namespace)}


def account(namespace: str = HOME) -> str:
    return f"system:serviceaccount:{namespace}:batuta-operator"


@pytest.fixture(scope="module")
def homes(cluster: ControlPlane) -> Iterator[ControlPlane]:
    for name in (HOME, OTHER):
        cluster.new_namespace(name)
    cluster.apply(read_definitions())
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/unifiedjobs.batuta.dev")
    yield cluster
    for name in (HOME, OTHER):
        cluster.delete_namespace(name)


@pytest.fixture
def everywhere(homes: ControlPlane) -> Iterator[Judge]:
    yield from _installed(homes, {})


@pytest.fixture
def in_one_namespace(homes: ControlPlane) -> Iterator[Judge]:
    yield from _installed(homes, {"namespaces": [OTHER]})


def _installed(cluster: ControlPlane, values: dict[str, Any]) -> Iterator[Judge]:
    objects = rights_of(values, HOME)
    cluster.apply(objects)
    judge = Judge(cluster.api, account())
    # The authorizer watches roles, and hears of them a moment later.
    wait_until(lambda: judge.may("get", "nodes") and judge.may("create", "events", HOME), "the rights to hold")
    yield judge
    for one in objects:
        place = ("--namespace", one["metadata"]["namespace"]) if "namespace" in one["metadata"] else ()
        cluster.kubectl("delete", *place, one["kind"], one["metadata"]["name"])
    wait_until(lambda: not judge.may("get", "nodes"), "the rights to be gone")


def test_the_operator_has_exactly_the_rights_of_the_table(everywhere: Judge):
    found = {what: everywhere.rights(what, OTHER) for what in WHERE_JOBS_ARE}
    assert found == {what: set(verbs) for what, verbs in WHERE_JOBS_ARE.items()}
    found = {what: everywhere.rights(what) for what in WHOLE_CLUSTER}
    assert found == {what: set(verbs) for what, verbs in WHOLE_CLUSTER.items()}


def test_it_has_one_lease_in_its_own_namespace(everywhere: Judge):
    lease = "leases.coordination.k8s.io"
    assert everywhere.may("create", lease, HOME)
    for verb in ("get", "patch", "update"):
        assert everywhere.may(verb, lease, HOME, "batuta-operator")
        assert not everywhere.may(verb, lease, HOME, "somebody-else")
        assert not everywhere.may(verb, lease, OTHER, "batuta-operator")
    assert not everywhere.may("create", lease, "kube-system")


def test_it_has_one_secret_and_its_authority_in_its_own_namespace(everywhere: Judge):
    for what, name in (("secrets", "batuta-tls"), ("configmaps", "batuta-ca")):
        for verb in ("get", "patch"):
            assert everywhere.may(verb, what, HOME, name)
        assert not everywhere.may("get", what, OTHER, name)
    for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
        assert not everywhere.may(verb, "secrets", HOME, "another")
        assert not everywhere.may(verb, "secrets", OTHER, "batuta-tls")


def test_it_may_ask_for_the_definitions_that_it_knows(everywhere: Judge):
    definitions = "customresourcedefinitions.apiextensions.k8s.io"
    assert everywhere.may("get", definitions, name="mpijobs.kubeflow.org")
    assert not everywhere.may("get", definitions, name="certificates.example.com")
    assert not everywhere.may("delete", definitions, name="unifiedjobs.batuta.dev")


def test_named_namespaces_bound_what_it_may_write(in_one_namespace: Judge):
    found = {what: in_one_namespace.rights(what, OTHER) for what in WHERE_JOBS_ARE}
    assert found == {what: set(verbs) for what, verbs in WHERE_JOBS_ARE.items()}
    elsewhere = {what: in_one_namespace.rights(what, "default") for what in WHERE_JOBS_ARE}
    # Pods of others use up nodes too, so it has to see them.
    assert {what: verbs for what, verbs in elsewhere.items() if verbs} == {"pods": set(READ)}
    assert {what: in_one_namespace.rights(what) for what in WHOLE_CLUSTER} == {
        what: set(verbs) for what, verbs in WHOLE_CLUSTER.items()
    }


def test_under_these_rights_it_can_do_its_work(everywhere: Judge, homes: ControlPlane, add_nodes):
    """Real requests, because a right on paper may need another one: a server-side apply, a binding."""
    (node,) = add_nodes(1)
    pods, maps = f"/api/v1/namespaces/{OTHER}/pods", f"/api/v1/namespaces/{OTHER}/configmaps"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases"
    spec = {"schedulerName": "batuta", "containers": [{"name": "main", "image": "none"}]}
    job = {
        "apiVersion": "batuta.dev/v1alpha1",
        "kind": "UnifiedJob",
        "metadata": {"name": "owner", "namespace": OTHER},
        "spec": {
            "jobType": "Pods",
            "queueName": "default",
            "replicaSpec": {"template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}},
        },
    }
    with homes.api_as(account(), everywhere.groups) as api:
        lease = api.create(leases, {"metadata": {"name": "batuta-operator"}, "spec": {"holderIdentity": "a"}})
        lease["spec"]["holderIdentity"] = "b"
        api.replace(f"{leases}/batuta-operator", lease)

        jobs = f"/apis/batuta.dev/v1alpha1/namespaces/{OTHER}/unifiedjobs"
        # It makes jobs for trials, and trials for jobs; what is to be tried out others say.
        uid = api.create(jobs, job)["metadata"]["uid"]
        api.patch(f"{jobs}/owner/status", {"status": {"reason": "Pending"}})
        trials = jobs.replace("unifiedjobs", "trialruns")
        head = {"apiVersion": "batuta.dev/v1alpha1", "kind": "TrialRun", "metadata": {"name": "owner"}}
        api.create(trials, head | {"spec": {"jobName": "owner"}})
        api.patch(f"{trials}/owner/status", {"status": {"reason": "InTrial"}})
        with pytest.raises(ApiError, match="cannot patch resource"):
            api.patch(f"{trials}/owner", {"spec": {"parallelism": 2}})

        owner = {"apiVersion": "batuta.dev/v1alpha1", "kind": "UnifiedJob", "name": "owner", "uid": uid}
        owners = [owner | {"controller": True, "blockOwnerDeletion": True}]
        metadata = {"name": "one", "ownerReferences": owners}
        api.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        api.create(f"{pods}/one/binding", {"metadata": {"name": "one"}, "target": target})
        condition = {"type": "PodScheduled", "status": "True"}
        api.patch(f"{pods}/one/status", {"status": {"conditions": [condition]}}, "strategic")

        hosts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hosts"}, "data": {"a": "b"}}
        for _ in range(2):
            api.request("PATCH", f"{maps}/hosts?fieldManager=batuta-operator", hosts, "application/apply-patch+yaml")
        with pytest.raises(ApiError, match="cannot get resource"):
            api.get(f"{maps}/hosts")
        with pytest.raises(ApiError, match="cannot list resource"):
            api.get(f"/api/v1/namespaces/{OTHER}/secrets")
        with pytest.raises(ApiError, match="cannot patch resource"):
            api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        api.delete(f"{maps}/hosts")
        api.delete(f"{pods}/one", gracePeriodSeconds=0)


def test_no_rule_has_a_wildcard():
    for values in ({}, {"namespaces": ["team-a"]}):
        for one in manifests(release_of(values)):
            for rule in one.get("rules", ()):
                assert "*" not in str(rule)


def test_who_may_view_or_edit_a_namespace_may_do_so_with_its_jobs(everywhere: Judge, homes: ControlPlane):
    jobs, scale = "unifiedjobs.batuta.dev", "unifiedjobs.batuta.dev/scale"
    people = {role: Judge(homes.api, f"{role}er") for role in ("view", "edit", "admin", "batuta-edit")}
    for role, judge in people.items():
        homes.kubectl(
            "create",
            "rolebinding",
            f"{role}ers",
            f"--clusterrole={role}",
            f"--user={judge.user}",
            f"-n={OTHER}",
        )
    # The controller manager adds our rules to the roles that everybody knows.
    wait_until(
        lambda: people["view"].may("get", jobs, OTHER) and people["admin"].may("create", jobs, OTHER),
        "the roles to have been extended",
    )
    assert people["view"].rights(jobs, OTHER) == set(READ)
    assert people["view"].rights(scale, OTHER) == {"get"}
    # Who has nothing but our own role can edit jobs, and see what has become of them.
    for role in ("edit", "admin", "batuta-edit"):
        assert people[role].rights(jobs, OTHER) == set(ALL)
        assert people[role].rights(scale, OTHER) == {"get", "patch", "update"}
        assert "patch" not in people[role].rights("unifiedjobs.batuta.dev/status", OTHER)
    assert people["edit"].rights(jobs, HOME) == set()
