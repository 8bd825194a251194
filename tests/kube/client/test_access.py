"""Who we are to a real API server: a service account whose token changes, a stranger, a certificate."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Unauthorized, Unavailable
from batuta.backends.kube.client.kinds import POD
from tests.kube.client.stories import tell
from tests.support.kube.certificates import Authority
from tests.support.kube.control_plane import ControlPlane


async def who(api: Api) -> str:
    """Our name, as the API server sees us."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await api.raw("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    return str(json.loads(answer)["status"]["userInfo"]["username"])


@pytest.fixture
def token_of(cluster: ControlPlane, namespace: str) -> Callable[[str], str]:
    """Makes a service account, and a token for it."""

    def make(name: str) -> str:
        cluster.kubectl("create", "serviceaccount", name, "--namespace", namespace)
        return cluster.kubectl("create", "token", name, "--namespace", namespace).strip()

    return make


def in_pod(cluster: ControlPlane, folder: Path, story: Callable[[Api], Awaitable[None]]) -> None:
    """Runs the story as if in a pod with this folder of secrets."""
    (folder / "ca.crt").write_text(cluster.access.ca.read_text())
    environ = {
        "HOME": str(folder),
        "KUBERNETES_SERVICE_HOST": cluster.access.address,
        "KUBERNETES_SERVICE_PORT": str(cluster.access.port),
    }

    async def run() -> None:
        access = await find_access(environ=environ, service_account=folder)
        async with asyncio.timeout(60.0), Api(access) as api:
            await story(api)

    asyncio.run(run())


def test_an_expired_token_is_replaced_by_the_one_that_the_kubelet_wrote_since(
    cluster: ControlPlane, namespace: str, tmp_path: Path, token_of: Callable[[str], str]
) -> None:
    token = token_of("operator")
    (tmp_path / "token").write_text("expired")

    async def story(api: Api) -> None:
        with pytest.raises(Unauthorized, match="does not accept the credentials of this pod's service account"):
            await who(api)
        (tmp_path / "token").write_text(token)
        assert await who(api) == f"system:serviceaccount:{namespace}:operator"

    in_pod(cluster, tmp_path, story)


def test_a_token_file_that_changes_is_read_again_while_the_old_token_still_works(
    cluster: ControlPlane, namespace: str, tmp_path: Path, token_of: Callable[[str], str]
) -> None:
    first, second = token_of("first"), token_of("second")
    (tmp_path / "token").write_text(first)

    async def story(api: Api) -> None:
        assert (await who(api)).endswith(":first")
        (tmp_path / "token").write_text(second)
        while not (await who(api)).endswith(":second"):
            await asyncio.sleep(0.1)

    in_pod(cluster, tmp_path, story)


def test_an_administrator_may_act_for_somebody_else(cluster: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig_path.read_text())
    config["users"][0]["user"]["as"] = "somebody"
    (tmp_path / "config").write_text(yaml.safe_dump(config))

    async def story(api: Api) -> None:
        assert await who(api) == "somebody"

    tell(story, tmp_path / "config")


def test_a_server_of_another_authority_is_not_trusted(cluster: ControlPlane, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "pki").pair.certificate
    config = yaml.safe_load(cluster.kubeconfig_path.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    config["clusters"][0]["cluster"]["certificate-authority"] = str(stranger)
    (tmp_path / "config").write_text(yaml.safe_dump(config))

    async def story(api: Api) -> None:
        with pytest.raises(Unavailable, match="is not accepted"):
            await api.get(POD, "a", "default")

    tell(story, tmp_path / "config")
