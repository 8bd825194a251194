"""Every verb of the client, against a real API server."""

import msgspec
import pytest

from batuta.backends.kube.client.api import Api, Patch
from batuta.backends.kube.client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from batuta.backends.kube.client.kinds import CONFIG_MAP, NAMESPACE, NODE, POD, Kind
from batuta.backends.kube.objects import Meta
from tests.kube.client.stories import config_map, pod, tell
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane


class Strict(msgspec.Struct):
    """A ConfigMap without data, in this test's opinion."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    data: dict[str, int] | None = None


def test_what_is_created_can_be_read_listed_and_deleted(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        made = await api.create(POD, pod("a", app="x"), namespace)
        assert (await api.get(POD, "a", namespace)).metadata.uid == made.metadata.uid
        with pytest.raises(AlreadyExists):
            await api.create(POD, pod("a"), namespace)
        await api.create(POD, pod("b", app="y"), namespace)
        listing = await api.list(POD, namespace, labels="app in (x, z)")
        assert [found.metadata.name for found in listing.items] == ["a"]
        assert int(listing.resource_version) >= int(made.metadata.resource_version)
        await api.delete(POD, "a", namespace, grace_s=0)
        with pytest.raises(NotFound, match='"a" not found'):
            await api.get(POD, "a", namespace)
        await api.delete(POD, "b", namespace, grace_s=0)
        assert not (await api.list(POD, namespace)).items

    tell(story, cluster.kubeconfig_path)


def test_a_list_in_pages_is_the_whole_list(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        names = [f"m{number}" for number in range(7)]
        for name in names:
            await api.apply(CONFIG_MAP, config_map(name, namespace))
        listing = await api.list(CONFIG_MAP, namespace, page=3)
        assert set(names) <= {found.metadata.name for found in listing.items}

    tell(story, cluster.kubeconfig_path)


def test_a_dry_run_makes_nothing(cluster: ControlPlane) -> None:
    async def story(api: Api) -> None:
        await api.create(NAMESPACE, {"metadata": {"name": "only-thought"}}, dry_run=True)
        with pytest.raises(NotFound):
            await api.get(NAMESPACE, "only-thought")

    tell(story, cluster.kubeconfig_path)


def test_applying_fields_of_somebody_else_is_a_conflict_that_names_them(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        await api.apply(CONFIG_MAP, config_map("m", namespace, size="4"), manager="somebody")
        with pytest.raises(Conflict) as refused:
            await api.apply(CONFIG_MAP, config_map("m", namespace, size="8"))
        assert refused.value.fields == (".data.size",)
        await api.apply(CONFIG_MAP, config_map("m", namespace, other="1"))  # theirs stays, ours is added
        kept = msgspec.json.decode(await api.raw("GET", CONFIG_MAP.path(namespace, "m")))
        assert kept["data"] == {"size": "4", "other": "1"}
        await api.apply(CONFIG_MAP, config_map("m", namespace, size="8"), force=True)
        taken = msgspec.json.decode(await api.raw("GET", CONFIG_MAP.path(namespace, "m")))
        assert taken["data"]["size"] == "8"

    tell(story, cluster.kubeconfig_path)


def test_a_write_on_an_old_version_is_a_conflict(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        first = await api.apply(CONFIG_MAP, config_map("m", namespace))
        await api.patch(CONFIG_MAP, "m", {"data": {"a": "1"}}, namespace)
        body = config_map("m", namespace)
        body["metadata"]["resourceVersion"] = first.metadata.resource_version
        with pytest.raises(Conflict):
            await api.update(CONFIG_MAP, "m", body, namespace)
        with pytest.raises(Conflict):
            await api.patch(CONFIG_MAP, "m", {"metadata": body["metadata"]}, namespace)
        with pytest.raises(Conflict):
            await api.delete(CONFIG_MAP, "m", namespace, resource_version=first.metadata.resource_version)
        with pytest.raises(Conflict):
            await api.delete(CONFIG_MAP, "m", namespace, uid="another")

    tell(story, cluster.kubeconfig_path)


def test_patches_of_every_sort_and_of_the_status(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        await api.create(POD, pod("a"), namespace)
        await api.patch(POD, "a", {"metadata": {"labels": {"one": "1"}}}, namespace)
        labels = {"op": "add", "path": "/metadata/labels/two", "value": "2"}
        await api.patch(POD, "a", [labels], namespace, how=Patch.JSON)
        tolerations = {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}
        await api.patch(POD, "a", tolerations, namespace, how=Patch.STRATEGIC)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        got = await api.patch_status(POD, "a", {"conditions": [condition]}, namespace)
        assert got.metadata.labels == {"one": "1", "two": "2"}
        assert "k" in {toleration.key for toleration in got.spec.tolerations}
        assert [found.reason for found in got.status.conditions] == ["Unschedulable"]

    tell(story, cluster.kubeconfig_path)


def test_a_binding_gives_node_and_annotations_in_one_write(
    cluster: ControlPlane, namespace: str, add_nodes: AddNodes
) -> None:
    node, other = add_nodes(2)

    async def story(api: Api) -> None:
        made = await api.create(POD, pod("a"), namespace)
        uid = made.metadata.uid
        with pytest.raises(Conflict):
            await api.bind(namespace, "a", "an-earlier-pod", node)
        await api.bind(namespace, "a", uid, node, {"batuta.dev/gpus": "0,1"})
        bound = await api.get(POD, "a", namespace)
        assert (bound.spec.node_name, bound.metadata.annotations["batuta.dev/gpus"]) == (node, "0,1")
        await api.bind(namespace, "a", uid, node, {"batuta.dev/gpus": "0,1"})  # once more: as good as once
        with pytest.raises(Conflict):
            await api.bind(namespace, "a", uid, other)
        with pytest.raises(Conflict):
            await api.bind(namespace, "a", uid, node, {"batuta.dev/gpus": "2"})

    tell(story, cluster.kubeconfig_path)


def test_a_server_says_which_kinds_it_has(cluster: ControlPlane) -> None:
    async def story(api: Api) -> None:
        batch = await api.discover("batch")
        assert batch.has("v1", "jobs")
        assert not batch.has("v1", "unicorns")
        assert batch.version_of("jobs") == "v1"
        assert (await api.discover("")).has("v1", "pods/binding")
        nothing = await api.discover("unicorns.example.com")
        assert nothing.version_of("unicorns") == ""

    tell(story, cluster.kubeconfig_path)


def test_an_object_that_the_server_does_not_accept_is_invalid(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        body = pod("a")
        body["spec"]["containers"] = []
        with pytest.raises(Invalid, match=r"spec\.containers") as refused:
            await api.create(POD, body, namespace)
        assert "spec.containers" in [cause.field for cause in refused.value.causes]

    tell(story, cluster.kubeconfig_path)


def test_what_the_rules_do_not_allow_is_forbidden(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        with pytest.raises(Forbidden, match='User "nobody" cannot list resource "nodes"'):
            await api.list(NODE)

    tell(story, cluster.kubeconfig("nobody"))


def test_a_name_never_reaches_into_another_path(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        for name in ("../../kube-system", "a/b", "a?b", "..", "a#b"):
            with pytest.raises((NotFound, Invalid)):
                await api.get(CONFIG_MAP, name, namespace)

    tell(story, cluster.kubeconfig_path)


def test_a_malformed_object_is_left_out_of_a_list_and_named_once(
    cluster: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict = Kind("", "v1", "configmaps", "ConfigMap", Strict)

    async def story(api: Api) -> None:
        await api.apply(CONFIG_MAP, config_map("good", namespace))
        await api.apply(CONFIG_MAP, config_map("bad", namespace, a="x"))
        for _ in range(2):
            listing = await api.list(strict, namespace)
            names = [found.metadata.name for found in listing.items]
            assert "good" in names
            assert "bad" not in names

    tell(story, cluster.kubeconfig_path)
    assert caplog.text.count(f"{namespace}/bad is malformed") == 1


def test_counters_say_how_often_the_server_was_asked(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        await api.list(POD, namespace)
        with pytest.raises(NotFound):
            await api.get(POD, "a", namespace)
        assert api.transport.requests == {("list", 200): 1, ("get", 404): 1}

    tell(story, cluster.kubeconfig_path)
