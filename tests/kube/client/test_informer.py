"""Informers see everything that happens, in order, and hold on through what goes wrong on our side."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.informer import Change, Informer, WatchTiming, newer
from batuta.backends.kube.client.kinds import CONFIG_MAP, POD, ConfigMap, Kind
from batuta.backends.kube.objects import Meta
from tests.kube.client.stories import Heard, config_map, pod, running, tell, until
from tests.support.kube.control_plane import ControlPlane


class Numbers(msgspec.Struct):
    """Only this key: a controller may put a ConfigMap of its own into every namespace, with other ones."""

    a: int | None = None


class Strict(msgspec.Struct):
    """A ConfigMap whose data are numbers, in this test's opinion."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    data: Numbers | None = None


def test_it_tells_what_is_there_and_then_what_changes(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        heard = Heard()
        await api.create(POD, pod("a"), namespace)
        informer = Informer(api, POD, heard, namespace=namespace)
        async with running(informer.run()):
            await informer.synced.wait()
            assert heard.told == [("ADDED", "a")]
            await api.create(POD, pod("b"), namespace)
            await api.patch(POD, "a", {"metadata": {"labels": {"x": "1"}}}, namespace)
            await api.delete(POD, "b", namespace, grace_s=0)
            await until(lambda: ("DELETED", "b") in heard.told, "the deletion")
            changed = next(c for batch in heard.batches for c in batch if c.did == "MODIFIED")
            assert changed.old is not None
            assert (changed.object.metadata.labels, changed.old.metadata.labels) == ({"x": "1"}, {})
            assert list(informer.objects) == [f"{namespace}/a"]
            assert (api.transport.requests["list", 200], api.transport.requests["watch", 200]) == (1, 1)

    tell(story, cluster.kubeconfig_path)


def test_selectors_say_what_it_sees_and_leaving_them_is_a_deletion(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        heard = Heard()
        await api.create(POD, pod("a", app="x"), namespace)
        await api.create(POD, pod("b", app="y"), namespace)
        informer = Informer(api, POD, heard, namespace=namespace, labels="app=x", fields="spec.nodeName=")
        async with running(informer.run()):
            await informer.synced.wait()
            assert set(informer.objects) == {f"{namespace}/a"}
            await api.patch(POD, "a", {"metadata": {"labels": {"app": "y"}}}, namespace)
            await until(lambda: not informer.objects, "the pod to leave the selection")
            assert heard.told == [("ADDED", "a"), ("DELETED", "a")]

    tell(story, cluster.kubeconfig_path)


def test_a_pod_that_is_made_anew_under_its_name_is_another_pod(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        heard = Heard()
        first = await api.create(POD, pod("a"), namespace)
        informer = Informer(api, POD, heard, namespace=namespace)
        async with running(informer.run()):
            await informer.synced.wait()
        await api.delete(POD, "a", namespace, grace_s=0)
        second = await api.create(POD, pod("a"), namespace)
        informer.resource_version = ""  # as after 410: the events in between are lost
        async with running(informer.run()):
            await until(lambda: len(heard.told) >= 3, "the news")
        assert heard.told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
        uids = [change.object.metadata.uid for batch in heard.batches for change in batch]
        assert uids == [first.metadata.uid, first.metadata.uid, second.metadata.uid]

    tell(story, cluster.kubeconfig_path)


def test_bookmarks_keep_its_version_fresh_when_nothing_happens_to_its_objects(
    cluster: ControlPlane, namespace: str
) -> None:
    async def story(api: Api) -> None:
        heard = Heard()
        informer = Informer(
            api, CONFIG_MAP, heard, namespace=namespace, labels="none=such", timing=WatchTiming(last_s=3.0)
        )
        async with running(informer.run()):
            await informer.synced.wait()
            other = await api.apply(CONFIG_MAP, config_map("m", namespace))
            wanted = other.metadata.resource_version
            await until(lambda: not newer(wanted, informer.resource_version), "a bookmark")
            assert not heard.batches
            assert api.transport.requests["list", 200] == 1

    tell(story, cluster.kubeconfig_path)


def test_a_slow_listener_misses_nothing(cluster: ControlPlane, namespace: str) -> None:
    count = 150

    async def story(api: Api) -> None:
        heard = Heard()

        def slow(changes: Sequence[Change[ConfigMap]]) -> None:
            time.sleep(0.1)
            heard(changes)

        informer = Informer(api, CONFIG_MAP, slow, namespace=namespace, labels="slow=yes")
        async with running(informer.run()):
            await informer.synced.wait()
            await asyncio.gather(*(_write(api, namespace, number) for number in range(count)))
            await until(lambda: heard.told.count(("MODIFIED", "m-last")) == 1, "the last change")
        names = [name for did, name in heard.told if did == "ADDED"]
        assert sorted(names) == sorted([*(f"m{number}" for number in range(count)), "m-last"])
        assert len(heard.batches) < len(heard.told)  # what came meanwhile is told together

    async def _write(api: Api, namespace: str, number: int) -> None:
        body = config_map(f"m{number}", namespace)
        body["metadata"]["labels"] = {"slow": "yes"}
        await api.create(CONFIG_MAP, body, namespace)
        if number == count - 1:
            body["metadata"]["name"] = "m-last"
            await api.create(CONFIG_MAP, body, namespace)
            await api.patch(CONFIG_MAP, "m-last", {"data": {"a": "1"}}, namespace)

    tell(story, cluster.kubeconfig_path)


def test_a_malformed_object_does_not_stop_the_watch(
    cluster: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict = Kind("", "v1", "configmaps", "ConfigMap", Strict)

    async def story(api: Api) -> None:
        heard = Heard()
        informer = Informer(api, strict, heard, namespace=namespace)
        async with running(informer.run()):
            await informer.synced.wait()
            await api.apply(CONFIG_MAP, config_map("bad", namespace, a="x"))
            await api.apply(CONFIG_MAP, config_map("bad", namespace, a="y"))
            await api.apply(CONFIG_MAP, config_map("good", namespace))
            await until(lambda: ("ADDED", "good") in heard.told, "the good one")
            assert f"{namespace}/bad" not in informer.objects
            assert (api.transport.requests["list", 200], api.transport.requests["watch", 200]) == (1, 1)

    tell(story, cluster.kubeconfig_path)
    assert caplog.text.count(f"{namespace}/bad is malformed") == 1


def test_what_its_listener_raises_ends_it(cluster: ControlPlane, namespace: str) -> None:
    def refuse(_: Sequence[Change[Any]]) -> None:
        raise ZeroDivisionError

    async def story(api: Api) -> None:
        await api.create(POD, pod("a"), namespace)
        with pytest.raises(ZeroDivisionError):
            await Informer(api, POD, refuse, namespace=namespace).run()

    tell(story, cluster.kubeconfig_path)


def test_without_permission_it_says_so_asks_seldom_and_goes_on_once_it_has_it(
    cluster: ControlPlane, namespace: str
) -> None:
    async def story(api: Api) -> None:
        mark = cluster.requests.mark()
        informer = Informer(api, POD, Heard(), namespace=namespace, timing=WatchTiming(longest_retry_s=1.0))
        async with running(informer.run()):
            await until(lambda: informer.failure, "the refusal")
            assert isinstance(informer.failure, Forbidden)
            await asyncio.sleep(3.0)
            assert len(cluster.requests.since(mark, user="newcomer")) <= 9
            binding = f"--serviceaccount={namespace}:none"
            words = ("create", "rolebinding", "newcomer", "--clusterrole=view", "--user=newcomer", binding)
            await asyncio.to_thread(cluster.kubectl, *words, "--namespace", namespace)
            await informer.synced.wait()
            await until(lambda: informer.failure is None, "the connection")

    tell(story, cluster.kubeconfig("newcomer", namespace=namespace))


def test_a_kind_that_the_server_does_not_have_is_not_found(cluster: ControlPlane) -> None:
    unicorn = Kind("example.com", "v1", "unicorns", "Unicorn", ConfigMap)

    async def story(api: Api) -> None:
        informer = Informer(api, unicorn, Heard())
        async with running(informer.run()):
            await until(lambda: isinstance(informer.failure, NotFound), "the refusal")

    tell(story, cluster.kubeconfig_path)
