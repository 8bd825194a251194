"""People of the cluster who ask its operator, each with a token of their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from batuta.backends.kube import names
from batuta.client.client import Client
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import OperatorProcess, published_authority
from tests.support.kube.unified import Jobs

RIGHTS = {"nobody": (), "watcher": ("list",), "keeper": ("list", "patch")}
"""What each may do with the UnifiedJobs of all namespaces."""


@dataclass(frozen=True)
class People:
    """By name: what their token opens."""

    url: str
    ca_file: Path
    tokens: dict[str, str]

    def client(self, name: str) -> Client:
        return Client(self.url, self.tokens[name], ca_file=self.ca_file)

    def environment(self, name: str) -> dict[str, str]:
        """The variables by which `batuta` finds the operator."""
        own = {"SERVER": self.url, "TOKEN": self.tokens[name], "CA_FILE": str(self.ca_file)}
        return {f"BATUTA_{variable}": value for variable, value in own.items()}


@pytest.fixture(scope="module")
def people(
    cluster: ControlPlane, operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[People]:
    home = cluster.new_namespace()
    tokens = {}
    for name, verbs in RIGHTS.items():
        user = f"system:serviceaccount:{home}:{name}"
        cluster.api.create(f"/api/v1/namespaces/{home}/serviceaccounts", {"metadata": {"name": name}})
        if verbs:
            cluster.apply(_rights(f"{home}-{name}", name, home, verbs))
            wait_until(partial(_may, cluster, user, verbs[-1]), f"{name} to have rights")
        tokens[name] = _token(cluster, home, name, "batuta")
    # Of one who has all rights, and for another than the operator.
    tokens["keeper, for the API server"] = _token(cluster, home, "keeper")
    tokens["keeper, for Vault"] = _token(cluster, home, "keeper", "vault")
    ca_file = tmp_path_factory.mktemp("people") / "ca.crt"
    ca_file.write_text(published_authority(cluster))
    yield People(operator.url, ca_file, tokens)
    for name, verbs in RIGHTS.items():
        for one in _rights(f"{home}-{name}", name, home, verbs) if verbs else ():
            cluster.kubectl("delete", one["kind"], one["metadata"]["name"])
    cluster.clear_namespace(home)


@pytest.fixture
def jobs(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Jobs:
    """The UnifiedJobs of a fresh namespace, with an operator that looks after them."""
    return Jobs(cluster, namespace)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet") as running:
        yield running


def _token(cluster: ControlPlane, home: str, name: str, *audiences: str) -> str:
    """A token for the API server itself, unless audiences are named."""
    path = f"/api/v1/namespaces/{home}/serviceaccounts/{name}/token"
    token: str = cluster.api.create(path, {"spec": {"audiences": list(audiences)}})["status"]["token"]
    return token


def _rights(role: str, account: str, home: str, verbs: tuple[str, ...]) -> list[dict]:
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": list(verbs)}
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [rule],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
        },
    ]


def _may(cluster: ControlPlane, user: str, verb: str) -> bool:
    what = {"verb": verb, "group": names.GROUP, "resource": names.PLURAL}
    review = {"spec": {"user": user, "resourceAttributes": what}}
    answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
