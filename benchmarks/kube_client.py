"""The Kubernetes client and a real API server: binds a second, CPU of a bind and of a list of 5,000 pods.

Three clients in turns, 16 requests in flight: ours; aiohttp alone, with the same requests and nothing around
them; kubernetes_asyncio. What an informer takes for each change is measured as well. Bars: our bind takes at
most 0.8 times the CPU of the bare request, and 0.3 times the library's; our list at most a fifth. The server
is on the same machine and takes most of it, so binds a second say more about it than about a client.
BATUTA_BENCH_PODS sets how many pods.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.informer import Change, Informer
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.client.transport import RateLimit
from batuta.backends.kube.objects import Pod
from benchmarks.measure import no_collection, ratio_of, show, times
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options

T = TypeVar("T")
PODS = int(os.environ.get("BATUTA_BENCH_PODS", "5000"))
IN_FLIGHT, TURNS, LISTS = 16, 5, 3
NAMESPACE, NODE = "bench", "node-0"
BARE_BAR, LIBRARY_BAR, LIST_BAR = 0.8, 0.3, 0.2


@dataclass(slots=True)
class Client:
    """One way to talk to the API server, and what it took."""

    name: str
    bind: Callable[[Pod], Awaitable[object]]
    list_all: Callable[[], Awaitable[int]]
    bind_cpu_ms: list[float] = field(default_factory=list)
    binds_per_s: list[float] = field(default_factory=list)
    list_cpu_ms: list[float] = field(default_factory=list)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="batuta-kube-") as folder,
        ControlPlane(Path(folder), Options(kwok=False, audit=False)) as cluster,
    ):
        cluster.new_namespace(NAMESPACE)
        cluster.add_nodes(1)
        asyncio.run(compare(cluster.kubeconfig_path))


async def compare(kubeconfig: Path) -> None:
    access = await find_access(kubeconfig)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(access, rate=RateLimit(1e6, 1e6)))
        made_cpu_s = await cpu_s(lambda: spread(range(PODS), lambda k: api.create(POD, pod(k), NAMESPACE)))
        clients = [our_client(api), await bare_client(stack, api), await library_client(stack, kubeconfig)]
        for client in clients * LISTS:
            client.list_cpu_ms.append(1e3 * await cpu_s(client.list_all))
        watch = await measure_binds(api, clients)
    report(clients)
    print(f"  create: {1e3 * made_cpu_s / PODS:.2f} ms CPU each; a change told by an informer: {watch:.3f} ms")


async def measure_binds(api: Api, clients: list[Client]) -> float:
    """Binds all pods, a part by each client in turns; CPU milliseconds of an informer for each change."""
    pods = list((await api.list(POD, NAMESPACE)).items)
    warm, size = 20, len(pods) // (len(clients) * (TURNS + 1))
    for client in clients:  # connections, and what is made at the first use
        await spread([pods.pop() for _ in range(warm)], client.bind)
    for client in clients * TURNS:
        part = [pods.pop() for _ in range(size)]
        begun_s = time.perf_counter()
        used_s = await cpu_s(lambda: spread(part, client.bind))  # noqa: B023  (awaited here)
        client.binds_per_s.append(len(part) / (time.perf_counter() - begun_s))
        client.bind_cpu_ms.append(1e3 * used_s / len(part))
    return await measure_watch(api, clients[0], pods)


async def measure_watch(api: Api, ours: Client, pods: Sequence[Pod]) -> float:
    """What the same binds take more while an informer listens, for each change."""
    half = len(pods) // 2
    alone_s = await cpu_s(lambda: spread(pods[:half], ours.bind))
    told = 0
    all_told = asyncio.Event()

    def on(changes: Sequence[Change[Pod]]) -> None:
        nonlocal told
        told += sum(change.old is not None for change in changes)
        if told >= half:
            all_told.set()

    informer = Informer(api, POD, on, namespace=NAMESPACE)
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()

    async def watched() -> None:
        await spread(pods[half : 2 * half], ours.bind)
        await all_told.wait()

    watched_s = await cpu_s(watched)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return 1e3 * (watched_s - alone_s) / half


def report(clients: Sequence[Client]) -> None:
    ours, bare, library = clients
    rows = [
        (
            client.name,
            f"{statistics.median(client.binds_per_s):,.0f}",
            f"{statistics.median(client.bind_cpu_ms):.3f}",
            f"{statistics.median(client.list_cpu_ms):.0f}",
        )
        for client in clients
    ]
    show(
        f"{PODS:,} pods, {IN_FLIGHT} requests in flight, medians of {TURNS} turns ({LISTS} lists)",
        ("client", "binds/s", "CPU ms/bind", "CPU ms/list"),
        rows,
        [
            f"ours to bare, bind: {compare_cpu(ours.bind_cpu_ms, bare.bind_cpu_ms, BARE_BAR)}",
            f"ours to the library, bind: {compare_cpu(ours.bind_cpu_ms, library.bind_cpu_ms, LIBRARY_BAR)}",
            f"ours to the library, list: {compare_cpu(ours.list_cpu_ms, library.list_cpu_ms, LIST_BAR)}",
        ],
    )


def compare_cpu(over: Sequence[float], under: Sequence[float], bar: float) -> str:
    return times(ratio_of(over, under), bar)


async def cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of this process until it is done; the API server's are its own."""
    with no_collection():
        begun_s = time.process_time()
        await work()
        return time.process_time() - begun_s


async def spread(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Does it for each of them, so many at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


def our_client(api: Api) -> Client:
    async def bind(found: Pod) -> None:
        await api.bind(NAMESPACE, found.metadata.name, found.metadata.uid, NODE, {"batuta.dev/gpus": "0"})

    async def whole() -> int:
        return len((await api.list(POD, NAMESPACE)).items)

    return Client("batuta", bind, whole)


async def bare_client(stack: AsyncExitStack, api: Api) -> Client:
    """The same request with aiohttp alone; its list is decoded into dictionaries by msgspec."""
    session = await stack.enter_async_context(
        aiohttp.ClientSession(
            api.access.server,
            connector=aiohttp.TCPConnector(ssl=api.access.ssl or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )
    )

    async def bind(found: Pod) -> None:
        body = {
            "metadata": {
                "name": found.metadata.name,
                "uid": found.metadata.uid,
                "annotations": {"batuta.dev/gpus": "0"},
            },
            "target": {"kind": "Node", "name": NODE},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{found.metadata.name}/binding"
        async with session.post(path, data=msgspec.json.encode(body)) as answer:
            await answer.read()
            assert answer.status == 201

    async def whole() -> int:
        async with session.get(f"/api/v1/namespaces/{NAMESPACE}/pods") as answer:
            return len(msgspec.json.decode(await answer.read())["items"])

    return Client("aiohttp alone", bind, whole)


async def library_client(stack: AsyncExitStack, kubeconfig: Path) -> Client:
    from kubernetes_asyncio import client, config

    settings = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
    api = client.CoreV1Api(await stack.enter_async_context(client.ApiClient(settings)))

    async def bind(found: Pod) -> None:
        meta = client.V1ObjectMeta(
            name=found.metadata.name, uid=found.metadata.uid, annotations={"batuta.dev/gpus": "0"}
        )
        target = client.V1ObjectReference(kind="Node", name=NODE, api_version="v1")
        # The answer is a Status, which the library would fail to take for a Binding.
        await api.create_namespaced_pod_binding(
            found.metadata.name,
            NAMESPACE,
            client.V1Binding(metadata=meta, target=target),
            _preload_content=False,
        )

    async def whole() -> int:
        return len((await api.list_namespaced_pod(NAMESPACE)).items)

    return Client("kubernetes_asyncio", bind, whole)


def pod(number: int) -> dict[str, Any]:
    """A worker of a training job, with about as much in it as such a pod has."""
    limits = {"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi"}
    environment = [{"name": f"SETTING_{k}", "value": f"value {k}"} for k in range(8)]
    container = {
        "name": "main",
        "image": "example.com/train:1",
        "command": ["torchrun", "train.py"],
        "env": environment,
        "resources": {"limits": limits},
    }
    labels = {"batuta.dev/job-name": f"job-{number // 8}", "batuta.dev/replica-index": str(number % 8)}
    return {
        "metadata": {"name": f"pod-{number}", "labels": labels},
        "spec": {"schedulerName": "batuta", "containers": [container]},
    }
