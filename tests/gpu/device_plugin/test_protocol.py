"""The device plugin and the kubelet's protocol, over real sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.gpu.device_plugin.allocation import CHECKPOINT_FILE
from batuta.gpu.device_plugin.enforcement import ContainerSpec, MpsEnforcer
from batuta.gpu.device_plugin.messages import HEALTHY, UNHEALTHY, VERSION, DevicePluginOptions
from batuta.gpu.share.cards import CardFolder, Tenant, demand_paths, tenant_key
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, read_limits
from tests.gpu.device_plugin.books import COMPUTE, MEMORY, pod, stock, units
from tests.gpu.device_plugin.kubelet import KnownPods, Kubelet, in_time, running_plugin


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: names of sockets have room for about a hundred characters."""
    made = Path(tempfile.mkdtemp(prefix="plugin-"))
    yield made
    shutil.rmtree(made)


def tenants_of(limits: ShareLimits) -> list[Tenant]:
    """Who was granted something of the card that a container is on."""
    assert limits.cards is not None
    return CardFolder(limits.cards).tenants(limits.devices[0].uuid)


def test_both_resources_are_registered_and_all_units_listed(folder: Path) -> None:
    async def run() -> None:
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), KnownPods()):
            said = await kubelet.registrations()
            assert {one.version for one in said.values()} == {VERSION}
            assert {one.endpoint for one in said.values()} == {
                "batuta-gpu-memory.sock",
                "batuta-gpu-compute.sock",
            }
            options = said[MEMORY].options
            assert options == await kubelet.options(MEMORY)
            assert options is not None
            assert (options.preferred_allocation, options.pre_start_required) == (True, False)
            for resource, count in ((MEMORY, 20), (COMPUTE, 200)):
                listed = await anext(kubelet.watch(resource))
                assert len({device.id for device in listed.devices}) == count
                assert {device.health for device in listed.devices} == {HEALTHY}

    in_time(run)


def test_a_card_that_falls_ill_and_recovers_is_told_at_once(folder: Path) -> None:
    async def run() -> None:
        cards = stock()
        async with Kubelet(folder) as kubelet, running_plugin(folder, cards, KnownPods(pod("a", 2))):
            await kubelet.registrations()
            seen = kubelet.watch(MEMORY)
            await anext(seen)
            cards.update(stock(ill=[0]).cards)
            told = await anext(seen)
            assert {one.id.split("/")[0] for one in told.devices if one.health == UNHEALTHY} == {"GPU-0"}
            assert "is ill" in await kubelet.refusal(kubelet.allocate(MEMORY, units(0, 0, 1)))
            cards.update(stock().cards)
            assert all(one.health == HEALTHY for one in (await anext(seen)).devices)

    in_time(run)


def test_a_container_gets_the_card_that_was_decided_on_and_its_limits(folder: Path) -> None:
    async def run() -> None:
        pods = KnownPods(pod("a", 4, 30, on=1))
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), pods):
            await kubelet.registrations()
            available = [*units(0, *range(10)), *units(1, *range(10))]
            chosen = await kubelet.prefer(MEMORY, available, 4)
            memory = await kubelet.allocate(MEMORY, chosen)
            compute = await kubelet.allocate(COMPUTE, units(1, *range(30), resource=COMPUTE))
            # The kubelet asks for each resource by itself, and merges the answers.
            assert memory == compute
            assert memory.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            host = {mount.container_path: Path(mount.host_path) for mount in memory.mounts}
            limits = read_limits(host["/etc/batuta/share"] / "limits")
            assert limits.devices == (DeviceLimit("GPU-1", 1024, 30, weight=30),)
            assert host["/etc/ld.so.preload"].read_text().strip() in host
            assert all(path.exists() for path in host.values())
            # It may write its own accounts and what it wants; what others were granted it may only read.
            writable = {mount.container_path for mount in memory.mounts if not mount.read_only}
            assert writable == {str(limits.region.parent), *map(str, demand_paths(limits))}
            (granted,) = tenants_of(limits)
            assert (granted.key, granted.hard_permille, granted.weight) == (tenant_key(limits), 300, 30)

    in_time(run)


def test_grants_end_with_the_pod_and_outlast_the_plugin(folder: Path) -> None:
    async def run() -> None:
        pods = KnownPods(pod("a", 4, 30), pod("b", 3, 20))

        async def allocated(kubelet: Kubelet, *numbers: int) -> ShareLimits:
            answer = await kubelet.allocate(MEMORY, units(0, *numbers))
            host = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
            return read_limits(host["/etc/batuta/share"] / "limits")

        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), pods):
            await kubelet.registrations()
            first, second = await allocated(kubelet, 0, 1, 2, 3), await allocated(kubelet, 4, 5, 6)
            assert [one.key for one in tenants_of(first)] == [tenant_key(first), tenant_key(second)]
        # when the plugin starts again and has lost the card, then all that still have a share are on it again
        assert first.cards is not None
        (first.cards / "GPU-0").unlink()
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), pods):
            await kubelet.registrations()
            assert {one.key for one in tenants_of(first)} == {tenant_key(first), tenant_key(second)}
            # and when a pod is gone, then so is its grant, at the next request
            pods.pods = (pod("b", 3, 20),)
            await allocated(kubelet, 4, 5, 6)
            assert [one.key for one in tenants_of(second)] == [tenant_key(second)]
            assert not any(path.exists() for path in demand_paths(first))

    in_time(run)


def test_a_soft_share_may_have_more_while_the_card_is_idle(folder: Path) -> None:
    async def run() -> None:
        async with (
            Kubelet(folder) as kubelet,
            running_plugin(folder, stock(), KnownPods(pod("a", 4, 30, is_soft=True))),
        ):
            await kubelet.registrations()
            answer = await kubelet.allocate(MEMORY, units(0, 0, 1, 2, 3))
            host = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
            limits = read_limits(host["/etc/batuta/share"] / "limits")
            assert limits.devices == (DeviceLimit("GPU-0", 1024, soft_compute_percent=30, weight=30),)

    in_time(run)


def test_the_same_allocation_again_and_again_is_one(folder: Path) -> None:
    """Given a kubelet that asks twice, before and after it has written it down, the answer is the same."""

    async def run() -> None:
        ids = units(0, 0, 1)
        async with (
            Kubelet(folder) as kubelet,
            running_plugin(folder, stock(), KnownPods(pod("a", 2, bound_s=1), pod("b", 2, bound_s=2))),
        ):
            await kubelet.registrations()
            answers = [await kubelet.allocate(MEMORY, ids), await kubelet.allocate(MEMORY, ids)]
            kubelet.writes_down({("uid-a", MEMORY): ids})
            answers.append(await kubelet.allocate(MEMORY, ids))
            assert answers[0] == answers[1] == answers[2]
            other = await kubelet.allocate(MEMORY, units(0, 2, 3))
            assert other.mounts != answers[0].mounts

    in_time(run)


def test_what_the_plugin_refuses_it_says_why(folder: Path) -> None:
    async def run() -> None:
        pods = KnownPods(pod("a", 2))
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), pods):
            await kubelet.registrations()
            refused = [await kubelet.refusal(kubelet.allocate(MEMORY, ["GPU-7/memory/0"]))]
            pods.pods = None
            refused.append(await kubelet.refusal(kubelet.allocate(MEMORY, units(0, 0, 1))))
            pods.pods = (pod("a", 2),)
            (folder / CHECKPOINT_FILE).write_text("{")
            refused.append(await kubelet.refusal(kubelet.allocate(MEMORY, units(0, 0, 1))))
        assert refused[0] == "batuta: unknown unit of batuta.dev/gpu-memory: GPU-7/memory/0"
        assert "the API server is gone" in refused[1]
        assert "cannot read" in refused[2]

    in_time(run)


def test_a_kubelet_that_restarts_is_told_again(folder: Path) -> None:
    """Given a kubelet that has removed our sockets and made its own anew, both resources come back."""

    async def run() -> None:
        async with running_plugin(folder, stock(), KnownPods(pod("a", 2))):
            for _ in range(2):
                async with Kubelet(folder) as kubelet:
                    await kubelet.registrations()
                    assert len((await anext(kubelet.watch(COMPUTE))).devices) == 200
                    await kubelet.allocate(MEMORY, units(0, 0, 1))

    in_time(run)


def test_a_plugin_that_restarts_gives_nothing_twice(folder: Path) -> None:
    """Given a new plugin that remembers nothing, what the kubelet has written down is not free."""

    async def run() -> None:
        running, waiting = pod("a", 4, is_waiting=False), pod("b", 4)
        async with Kubelet(folder) as kubelet:
            async with running_plugin(folder, stock(), KnownPods(pod("a", 4))):
                await kubelet.registrations()
                await kubelet.allocate(MEMORY, units(0, 0, 1, 2, 3))
            kubelet.writes_down({("uid-a", MEMORY): units(0, 0, 1, 2, 3)})
            async with running_plugin(folder, stock(), KnownPods(running, waiting)):
                await kubelet.registrations()
                again = await kubelet.refusal(kubelet.allocate(MEMORY, units(0, 3, 4, 5, 6)))
                assert "are held by team/a" in again
                chosen = await kubelet.prefer(MEMORY, units(0, *range(10)), 4)
                assert not set(chosen) & set(units(0, 0, 1, 2, 3))
                await kubelet.allocate(MEMORY, chosen)

    in_time(run)


def test_what_was_kept_for_a_pod_goes_when_it_is_gone(folder: Path) -> None:
    async def run() -> None:
        pods = KnownPods(pod("a", 2))
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), pods):
            await kubelet.registrations()
            await kubelet.allocate(MEMORY, units(0, 0, 1))
            pods.pods = (pod("b", 3),)
            await kubelet.allocate(MEMORY, units(0, 0, 1, 2))
        assert [path.name for path in (folder / "state" / "pods").iterdir()] == ["uid-b"]

    in_time(run)


def test_where_the_kernel_holds_memory_it_does_before_the_container_starts(folder: Path) -> None:
    """Given a pod whose cgroup is there, its limit is written; one without a cgroup does not start."""

    async def run() -> None:
        cgroup = folder / "cgroups/kubepods/poduid-a"
        cgroup.mkdir(parents=True)
        for parent in (folder / "cgroups", folder / "cgroups/kubepods"):
            (parent / "cgroup.subtree_control").write_text("cpu")
        outfit = MpsEnforcer({}, ContainerSpec(), {"": "nvidia/0000:3b:00.0/vidmem"}, folder / "cgroups")
        a, b = pod("a", 2), pod("b", 3)
        async with Kubelet(folder) as kubelet, running_plugin(folder, stock(), KnownPods(a, b), outfit):
            said = await kubelet.registrations()
            assert said[MEMORY].options == DevicePluginOptions(pre_start_required=True, preferred_allocation=True)
            kubelet.writes_down({("uid-a", MEMORY): units(0, 0, 1), ("uid-b", MEMORY): units(0, 2, 3, 4)})
            await kubelet.before_start(MEMORY, units(0, 0, 1))
            words = await kubelet.refusal(kubelet.before_start(MEMORY, units(0, 2, 3, 4)))
        assert (cgroup / "dmem.max").read_text() == f"nvidia/0000:3b:00.0/vidmem {512 << 20}\n"
        assert "cannot enforce the share of team/b: there is no cgroup" in words

    in_time(run)
