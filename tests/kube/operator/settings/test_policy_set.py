"""`batuta policy set` for a cluster: through its operator as a user of the cluster, or with a kubeconfig."""

from collections.abc import Callable

import pytest

from batuta.backends.kube import names
from batuta.client.client import Client
from batuta.client.errors import ApiError, ClientError
from batuta.client.kube.client import KubeClient
from batuta.spec.problem import InputError
from tests.kube.operator.settings.conftest import CONFIG_MAP, Settings
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import NAMESPACE, OperatorProcess

PLACE = f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"
RBAC = "rbac.authorization.k8s.io"
MakeUser = Callable[[str, bool], Client]


@pytest.fixture
def make_user(cluster: ControlPlane, operator: OperatorProcess, namespace: str) -> MakeUser:
    """A user of the cluster who may see all jobs; and change the ConfigMap, if that is said."""

    def make(name: str, may_change: bool) -> Client:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        cluster.api.create(path, {"metadata": {"name": name}})
        jobs = {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["list"]}
        own = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CONFIG_MAP], "verbs": ["patch"]}
        cluster.apply(_granted("ClusterRole", f"{namespace}-{name}", jobs, subject))
        if may_change:
            cluster.apply(_granted("Role", f"{namespace}-{name}", own, subject))
        token = cluster.api.create(f"{path}/{name}/token", {"spec": {"audiences": ["batuta"]}})["status"]["token"]
        client = Client(operator.url, token)
        wait_until(lambda: _answers(client), f"{name} to have rights")
        return client

    return make


def test_a_user_who_may_change_the_configmap_sets_the_policy_and_is_named(
    settings: Settings, make_user: MakeUser, namespace: str
) -> None:
    before = settings.text
    with make_user("chief", True) as chief:
        wait_until(lambda: _sets(chief, "srjf"), "the chief to have rights")
        assert chief.policy().name == "srjf"
        again = chief.set_policy("srjf")
        assert again.note == f"it stands in {PLACE}; helm upgrade sets it back to config.policy of its values"
        with pytest.raises(ApiError, match=r"unknown policy 'srfj' \(did you mean srjf\?\)"):
            chief.set_policy("srfj")
    last = settings.journal("PolicySet")[-1]
    assert (last["policy"], last["actor"]) == ("srjf", f"system:serviceaccount:{namespace}:chief")
    assert settings.text == before.replace("elastic-fifo", '"srjf"')


def test_a_user_without_the_right_changes_nothing(settings: Settings, make_user: MakeUser) -> None:
    before = settings.text
    with make_user("watcher", False) as watcher:
        with pytest.raises(ApiError, match=f"watcher may not patch {PLACE}") as refused:
            watcher.set_policy("srjf")
        assert refused.value.status == 403
        with pytest.raises(ApiError) as refused:
            watcher.cordon("one")
        assert refused.value.status == 405
    assert settings.text == before


def test_a_kubeconfig_sets_the_policy_with_the_rights_of_its_user(
    settings: Settings, operator: OperatorProcess, cluster: ControlPlane
) -> None:
    with KubeClient(cluster.kubeconfig("root", ["system:masters"])) as client:
        assert client.policy().name == "elastic-fifo"
        with pytest.raises(InputError, match=r"unknown policy 'srfj' \(did you mean srjf\?\)"):
            client.set_policy("srfj")
        assert PLACE in client.set_policy("srjf").note
        assert client.policy().name == "srjf"
    wait_until(lambda: len(settings.journal("PolicySet")) == 2, "the policy to be in the journal")
    assert settings.journal("PolicySet")[-1]["actor"] == "cluster:batuta-cli"
    with KubeClient(cluster.kubeconfig("ana", []), namespace=NAMESPACE) as client, pytest.raises(ClientError) as no:
        client.set_policy("fifo")
    assert "you may not get ConfigMap" in str(no.value)


def _granted(kind: str, name: str, rule: dict, subject: dict) -> list[dict]:
    place = {"namespace": NAMESPACE} if kind == "Role" else {}
    version, ref = f"{RBAC}/v1", {"apiGroup": RBAC, "kind": kind, "name": name}
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name} | place, "rules": [rule]},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": {"name": name} | place,
            "roleRef": ref,
            "subjects": [subject],
        },
    ]


def _answers(client: Client) -> bool:
    try:
        return bool(client.policy().name)
    except ApiError:
        return False


def _sets(client: Client, policy: str) -> bool:
    try:
        return client.set_policy(policy).name == policy
    except ApiError as error:
        if error.status != 403:
            raise
        return False
