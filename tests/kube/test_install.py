"""`batuta install --apply` on a real cluster: all is there, a second time changes nothing, and it goes."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.chart import by_key
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.flags import Options
from tests.support.kube.programs import program
from tests.support.server_process import run_batuta

HOME = "batuta-install"
KINDS = (
    "serviceaccounts,configmaps,secrets,services,deployments.apps,roles.rbac.authorization.k8s.io,"
    "rolebindings.rbac.authorization.k8s.io,poddisruptionbudgets.policy"
)


@pytest.fixture(scope="module")
def cluster(
    programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A cluster that never had Batuta: on the shared one others have left their rights."""
    options = Options(controllers=True)
    programs_for(options)
    with ControlPlane(tmp_path_factory.mktemp("cluster"), options) as running:
        yield running


@pytest.fixture
def path_with_kubectl(cluster: ControlPlane) -> dict[str, str]:
    """An environment in which `kubectl` is the one that fits this cluster."""
    folder = program("kubectl").parent
    assert (folder / "kubectl").is_file()
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "KUBECONFIG": "/nowhere"}


def batuta(env: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_batuta("install", "--namespace", HOME, *words, env=env)


def test_install_and_uninstall(cluster: ControlPlane, path_with_kubectl: dict[str, str]):
    # given a cluster without Batuta, when it is installed
    access = ("--kubeconfig", cluster.kubeconfig_path)
    first = batuta(path_with_kubectl, "--apply", *access, "--set", "config.policy=afs-l")
    assert first.returncode == 0, first.stderr
    assert f"namespace/{HOME} serverside-applied" in first.stdout

    # then the API server has all of it
    found = cluster.kubectl("get", KINDS, "-n", HOME, "-l", "app.kubernetes.io/name=batuta", "--output=name")
    assert len(found.split()) == 9
    config = cluster.api.get(f"/api/v1/namespaces/{HOME}/configmaps/batuta-config")
    assert "policy: afs-l" in config["data"]["config.yaml"]
    deployment = f"/apis/apps/v1/namespaces/{HOME}/deployments/batuta-operator"
    before = cluster.api.get(deployment)["metadata"]["generation"]

    # and the controllers make its pods, which the namespace's pod security lets pass
    pods = f"/api/v1/namespaces/{HOME}/pods"
    wait_until(lambda: len(cluster.api.items(pods)) == 2, "two replicas")

    # when it is installed again, then nothing changes
    again = batuta(path_with_kubectl, "--apply", *access, "--set", "config.policy=afs-l")
    assert again.returncode == 0, again.stderr
    assert cluster.api.get(deployment)["metadata"]["generation"] == before

    # when the commands of --uninstall are run, then only what holds data is left
    said = batuta(path_with_kubectl, "--uninstall")
    assert said.returncode == 0, said.stderr
    env = path_with_kubectl | {"KUBECONFIG": str(cluster.kubeconfig_path)}
    removed = subprocess.run(
        ["sh", "-e"], input=said.stdout, capture_output=True, text=True, check=False, env=env, timeout=120
    )
    assert removed.returncode == 0, removed.stderr
    cluster_wide = "clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io"
    labelled = ("-l", "app.kubernetes.io/name=batuta", "--output=name")
    assert cluster.kubectl("get", KINDS, "-n", HOME, *labelled) == ""
    assert cluster.kubectl("get", cluster_wide, *labelled) == ""
    assert "unifiedjobs" in cluster.kubectl("get", "crd", "--output=name")
    cluster.delete_namespace(HOME)


def test_edits_of_others_are_not_overwritten(cluster: ControlPlane, path_with_kubectl: dict[str, str]):
    home = "batuta-edited"
    access = ("--apply", "--kubeconfig", cluster.kubeconfig_path, "-n", home)
    rights = ("--set", "rbac.create=false", "--set", "rbac.userRoles=false")
    assert batuta(path_with_kubectl, *access, *rights).returncode == 0
    # given somebody who took the number of replicas into their own hands
    cluster.kubectl(
        "patch",
        "deployment",
        "batuta-operator",
        "-n",
        home,
        "--field-manager=hpa",
        '--patch={"spec":{"replicas":1}}',
    )
    # when Batuta is installed again
    again = batuta(path_with_kubectl, *access, *rights)
    # then the conflict is reported and nothing is forced
    assert again.returncode == 1
    assert "conflict" in again.stderr
    assert "kubectl apply ended with exit code" in again.stderr
    kept = cluster.api.get(f"/apis/apps/v1/namespaces/{home}/deployments/batuta-operator")
    assert kept["spec"]["replicas"] == 1
    cluster.delete_namespace(home)


def test_a_cluster_that_is_not_there_is_one_clear_error(path_with_kubectl: dict[str, str], tmp_path: Path):
    done = batuta(path_with_kubectl, "--apply", "--kubeconfig", tmp_path / "none")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: kubectl apply ended with exit code" in done.stderr


def test_what_is_printed_is_what_is_applied(cluster: ControlPlane, path_with_kubectl: dict[str, str]):
    home = "batuta-printed"  # another test's may still be on its way out
    printed = batuta(path_with_kubectl, "--release", "printed", "-n", home)
    said = cluster.apply(printed.stdout.replace(f"namespace: {home}", "namespace: default"), "--dry-run=server")
    assert said.count("(server dry run)") == len(by_key(list(yaml.safe_load_all(printed.stdout))))
