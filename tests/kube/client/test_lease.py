"""Of several, one leads: never two, and soon another when it goes or hangs."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.leader_election import LEASE, LeaderElector, LeaseTiming
from tests.kube.client.stories import running, tell, until
from tests.support.kube.control_plane import ControlPlane

TIMING = LeaseTiming(lease_s=4, renew_s=2.0, retry_s=0.3)


def test_when_the_leader_leaves_the_next_leads_at_once(cluster: ControlPlane, namespace: str) -> None:
    long = LeaseTiming(lease_s=600, renew_s=500.0, retry_s=0.3)  # it can only be handed over

    async def story(api: Api) -> None:
        first = LeaderElector(api, "leader", namespace, "first", timing=long)
        second = LeaderElector(api, "leader", namespace, "second", timing=long)
        async with running(first.run()):
            await until(lambda: first.leading, "the first")
            async with running(second.run()):
                await until(lambda: second.leader == "first", "the second to look")
                assert not second.leading
        async with running(second.run()):
            await until(lambda: second.leading, "the second to lead")
            assert not first.leading
        lease = await api.get(LEASE, "leader", namespace)
        assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("", 1)

    tell(story, cluster.kubeconfig_path)


class OnAThread(threading.Thread):
    """An elector with an event loop of its own, which a test can block as SIGSTOP would."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        super().__init__(daemon=True)
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self.said: list[str] = []
        self.elector: LeaderElector | None = None

    def run(self) -> None:
        asyncio.run(self._elect())

    async def _elect(self) -> None:
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        async with Api(await find_access(self.kubeconfig)) as api:
            self.elector = LeaderElector(
                api,
                "leader",
                self.namespace,
                "hangs",
                on_started=lambda: self.said.append("started"),
                on_stopped=lambda: self.said.append("stopped"),
                timing=TIMING,
            )
            try:
                await self.elector.run()
            except asyncio.CancelledError:
                return

    @property
    def leading(self) -> bool:
        return self.elector is not None and self.elector.leading

    def hang(self, for_s: float) -> None:
        self.loop.call_soon_threadsafe(time.sleep, for_s)

    def end(self) -> None:
        assert self.task is not None
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.join(30.0)
        assert not self.is_alive()


def test_a_leader_that_hangs_has_stopped_before_another_starts(cluster: ControlPlane, namespace: str) -> None:
    hanging = OnAThread(cluster.kubeconfig_path, namespace)
    hanging.start()

    async def story(api: Api) -> None:
        at_start: list[bool] = []
        other = LeaderElector(
            api,
            "leader",
            namespace,
            "other",
            timing=TIMING,
            on_started=lambda: at_start.append(hanging.leading),
        )
        await until(lambda: hanging.leading, "the first leader")
        async with running(other.run()):
            await until(lambda: other.leader == "hangs", "the other to look")
            hanging.hang(for_s=10.0)
            await until(lambda: other.leading, "the other to take over")
            assert at_start == [False]
            await until(lambda: hanging.said == ["started", "stopped"], "the first to learn of it")
            assert other.leading
            assert not hanging.leading

    try:
        tell(story, cluster.kubeconfig_path)
    finally:
        hanging.end()


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_the_clocks_of_others_do_not_matter(cluster: ControlPlane, namespace: str, renewed: str) -> None:
    lease_s = 3

    async def story(api: Api) -> None:
        spec = {"holderIdentity": "ghost", "leaseDurationSeconds": lease_s, "renewTime": renewed}
        await api.create(LEASE, {"metadata": {"name": "leader"}, "spec": spec}, namespace)
        elector = LeaderElector(api, "leader", namespace, "one", timing=TIMING)
        begun_s = time.monotonic()
        async with running(elector.run()):
            await until(lambda: elector.leading, "the ghost's lease to run out")
            assert time.monotonic() - begun_s >= lease_s

    tell(story, cluster.kubeconfig_path)


def test_a_leader_whose_lease_is_taken_by_force_stops(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        said: list[str] = []
        elector = LeaderElector(
            api,
            "leader",
            namespace,
            "one",
            on_stopped=lambda: said.append("stopped"),
            timing=LeaseTiming(lease_s=600, renew_s=500.0, retry_s=0.3),
        )
        async with running(elector.run()):
            await until(lambda: elector.leading, "a leader")
            await api.patch(LEASE, "leader", {"spec": {"holderIdentity": "admin"}}, namespace)
            await until(lambda: said, "it to stop")
            assert not elector.leading
            assert elector.leader == "admin"

    tell(story, cluster.kubeconfig_path)


def test_what_others_wrote_into_the_lease_stays(cluster: ControlPlane, namespace: str) -> None:
    async def story(api: Api) -> None:
        body = {"metadata": {"name": "leader", "labels": {"team": "a"}, "finalizers": ["example.com/keep"]}}
        await api.create(LEASE, body, namespace)
        elector = LeaderElector(api, "leader", namespace, "one", timing=TIMING)
        async with running(elector.run()):
            await until(lambda: elector.leading, "a leader")
        kept = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/leader")["metadata"]
        assert (kept["labels"], kept["finalizers"]) == ({"team": "a"}, ["example.com/keep"])
        await api.patch(LEASE, "leader", {"metadata": {"finalizers": None}}, namespace)

    tell(story, cluster.kubeconfig_path)


def test_times_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="must last longer"):
        LeaseTiming(lease_s=10, renew_s=10.0)
