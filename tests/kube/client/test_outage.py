"""The API server goes, hangs, or forgets: nobody crashes, nothing is lost, and nobody asks in a hot loop."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Unavailable
from batuta.backends.kube.client.informer import Informer, WatchTiming
from batuta.backends.kube.client.kinds import CONFIG_MAP, NAMESPACE
from batuta.backends.kube.client.leader_election import LeaderElector, LeaseTiming
from batuta.backends.kube.client.transport import Limits
from tests.kube.client.stories import Heard, config_map, running, tell, until
from tests.support.kube.control_plane import ControlPlane

TIMING = LeaseTiming(lease_s=6, renew_s=3.0, retry_s=0.5)


async def new_namespace(api: Api) -> str:
    made = await api.create(NAMESPACE, {"metadata": {"generateName": "test-"}})
    return made.metadata.name


def test_an_informer_catches_up_after_the_server_was_away(fragile: ControlPlane) -> None:

    async def story(api: Api) -> None:
        namespace = await new_namespace(api)
        heard = Heard()
        await api.apply(CONFIG_MAP, config_map("before", namespace))
        informer = Informer(api, CONFIG_MAP, heard, namespace=namespace)
        async with running(informer.run()):
            await informer.synced.wait()
            await asyncio.to_thread(fragile.stop_api_server)
            await until(lambda: isinstance(informer.failure, Unavailable), "the loss of the connection")
            before = api.transport.requests.total()
            await asyncio.sleep(3.0)
            assert api.transport.requests.total() - before <= 12
            await asyncio.to_thread(fragile.start_api_server)
            await api.apply(CONFIG_MAP, config_map("after", namespace))
            await until(lambda: ("ADDED", "after") in heard.told, "the news")
            assert informer.failure is None
            assert heard.told.count(("ADDED", "before")) == 1

    tell(story, fragile.kubeconfig_path)


def test_after_410_the_deletions_that_were_missed_are_told(fragile: ControlPlane) -> None:

    async def story(api: Api) -> None:
        namespace = await new_namespace(api)
        heard = Heard()
        for name in ("stays", "changes", "goes"):
            await api.apply(CONFIG_MAP, config_map(name, namespace))
        informer = Informer(api, CONFIG_MAP, heard, namespace=namespace)
        async with running(informer.run()):
            await informer.synced.wait()
        await api.delete(CONFIG_MAP, "goes", namespace)
        await api.patch(CONFIG_MAP, "changes", {"data": {"a": "1"}}, namespace)
        await api.apply(CONFIG_MAP, config_map("comes", namespace))
        await asyncio.to_thread(fragile.forget_history)
        heard.batches.clear()
        async with running(informer.run()):
            await until(lambda: heard.batches, "the difference")
            assert sorted(heard.told) == [("ADDED", "comes"), ("DELETED", "goes"), ("MODIFIED", "changes")]
            assert api.transport.requests["list", 200] == 2

    tell(story, fragile.kubeconfig_path)


def test_a_connection_that_hangs_is_noticed_and_replaced(fragile: ControlPlane) -> None:
    server = fragile.programs["kube-apiserver"].pid

    async def story(api: Api) -> None:
        namespace = await new_namespace(api)
        heard = Heard()
        informer = Informer(
            api,
            CONFIG_MAP,
            heard,
            namespace=namespace,
            timing=WatchTiming(silence_s=1.0, longest_retry_s=1.0),
        )
        async with running(informer.run()):
            await informer.synced.wait()
            os.kill(server, signal.SIGSTOP)
            try:
                await until(lambda: isinstance(informer.failure, Unavailable), "the silence to be noticed")
                with pytest.raises(Unavailable, match="in time"):
                    await api.get(CONFIG_MAP, "m", namespace)
            finally:
                os.kill(server, signal.SIGCONT)
            await api.apply(CONFIG_MAP, config_map("m", namespace))
            await until(lambda: ("ADDED", "m") in heard.told, "the news")

    tell(story, fragile.kubeconfig_path, Limits(request_s=5.0))


def test_a_leader_without_a_server_stops_leading_in_time_and_leads_again_afterwards(
    fragile: ControlPlane,
) -> None:
    said: list[str] = []

    async def story(api: Api) -> None:
        namespace = await new_namespace(api)
        elector = LeaderElector(
            api,
            "leader",
            namespace,
            "one",
            on_started=lambda: said.append("started"),
            on_stopped=lambda: said.append("stopped"),
            timing=TIMING,
        )
        async with running(elector.run()):
            await until(lambda: elector.leading, "a leader")
            await asyncio.to_thread(fragile.stop_api_server)
            await until(lambda: said == ["started", "stopped"], "it to stop", within_s=TIMING.lease_s + 10.0)
            assert not elector.leading
            assert elector.failure is not None
            await asyncio.to_thread(fragile.start_api_server)
            await until(lambda: said == ["started", "stopped", "started"], "it to lead again")

    tell(story, fragile.kubeconfig_path)


def test_a_server_that_is_not_there_is_named(fragile: ControlPlane, tmp_path: Path) -> None:
    config = fragile.kubeconfig_path.read_text().replace(fragile.access.url, "https://127.0.0.1:1")
    (tmp_path / "config").write_text(config)

    async def story(api: Api) -> None:
        with pytest.raises(Unavailable, match=r"cannot reach the API server at https://127\.0\.0\.1:1"):
            await api.get(CONFIG_MAP, "m", "default")
        assert api.transport.requests["get", 0] == 2

    tell(story, tmp_path / "config", Limits(attempts=2))
