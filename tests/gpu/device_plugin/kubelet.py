"""The kubelet's side of the protocol, over real sockets: takes registrations, then asks the plugin."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from batuta.gpu.device_plugin import messages as m
from batuta.gpu.device_plugin.allocation import CHECKPOINT_FILE, PodsUnavailable, SharePod
from batuta.gpu.device_plugin.enforcement import ContainerSpec, PreloadEnforcer
from batuta.gpu.device_plugin.inventory import DeviceInventory, Resource
from batuta.gpu.device_plugin.server import KUBELET_SOCKET, Allocator, DevicePlugin
from batuta.gpu.protobuf import decode, encode

WITHIN_S = 10.0


class KnownPods:
    """The API server's pods, as the test says; None: it cannot be reached."""

    def __init__(self, *pods: SharePod) -> None:
        self.pods: tuple[SharePod, ...] | None = pods

    async def __call__(self) -> Sequence[SharePod]:
        if self.pods is None:
            raise PodsUnavailable("the API server is gone")
        return self.pods


class Kubelet:
    """One life of a kubelet in its folder. As a real one, it starts by removing all sockets there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: asyncio.Queue[m.RegisterRequest] = asyncio.Queue()
        self._server: Any = None

    async def __aenter__(self) -> "Kubelet":
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, lambda raw: decode(m.RegisterRequest, raw), encode
        )
        service, method = m.REGISTER.strip("/").split("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._server.add_insecure_port(f"unix:{self.folder / KUBELET_SOCKET}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _register(self, request: m.RegisterRequest, _: Any) -> m.Empty:
        await self.registered.put(request)
        return m.Empty()

    async def registrations(self) -> dict[str, m.RegisterRequest]:
        """Waits until every resource is registered."""
        found: dict[str, m.RegisterRequest] = {}
        while set(found) != set(Resource):
            one = await asyncio.wait_for(self.registered.get(), WITHIN_S)
            found[one.resource] = one
        return found

    def writes_down(self, given: Mapping[tuple[str, Resource], Sequence[str]]) -> None:
        """Its file: units by the uid of the pod and resource."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": "main",
                "ResourceName": resource,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": base64.b64encode(b"").decode(),
            }
            for (uid, resource), ids in given.items()
        ]
        data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
        (self.folder / CHECKPOINT_FILE).write_text(json.dumps(data))

    async def watch(self, resource: Resource) -> AsyncIterator[m.ListAndWatchResponse]:
        """The lists of units that the plugin sends."""
        async with self._channel(resource) as channel:
            call = channel.unary_stream(
                f"/{m.SERVICE}/ListAndWatch", encode, lambda raw: decode(m.ListAndWatchResponse, raw)
            )
            async for one in call(m.Empty()):
                yield one

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> m.ContainerAllocateResponse:
        answer = await self._ask(
            resource,
            "Allocate",
            m.AllocateRequest((m.ContainerAllocateRequest(tuple(ids)),)),
            m.AllocateResponse,
        )
        return answer.containers[0]

    async def prefer(self, resource: Resource, available: Sequence[str], size: int) -> list[str]:
        request = m.PreferredAllocationRequest((m.ContainerPreferredAllocationRequest(tuple(available), (), size),))
        answer = await self._ask(resource, "GetPreferredAllocation", request, m.PreferredAllocationResponse)
        return list(answer.containers[0].ids)

    async def before_start(self, resource: Resource, ids: Sequence[str]) -> None:
        await self._ask(resource, "PreStartContainer", m.ContainerAllocateRequest(tuple(ids)), m.Empty)

    async def options(self, resource: Resource) -> m.DevicePluginOptions:
        found: m.DevicePluginOptions = await self._ask(
            resource, "GetDevicePluginOptions", m.Empty(), m.DevicePluginOptions
        )
        return found

    async def refusal(self, work: Any) -> str:
        """The words with which the plugin refuses."""
        try:
            await work
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        raise AssertionError("it was not refused")

    async def _ask(self, resource: Resource, method: str, request: Any, kind: type[Any]) -> Any:
        async with self._channel(resource) as channel:
            call = channel.unary_unary(f"/{m.SERVICE}/{method}", encode, lambda raw: decode(kind, raw))
            return await call(request, timeout=WITHIN_S)

    def _channel(self, resource: Resource) -> Any:
        return grpc.aio.insecure_channel(f"unix:{self.folder}/batuta-gpu-{resource.word}.sock")


@asynccontextmanager
async def running_plugin(
    folder: Path, stock: DeviceInventory, pods: KnownPods, outfit: Any = None
) -> AsyncIterator[DevicePlugin]:
    """A plugin in a kubelet's folder, with Batuta's library in a stand-in that is never loaded."""
    library = folder / "libbatuta-share.so"
    library.write_bytes(b"a library")
    held_by = outfit or PreloadEnforcer(folder / "state", library, ContainerSpec())
    plugin = DevicePlugin(stock, Allocator(folder, stock, pods, held_by), folder)
    running = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def in_time(work: Callable[[], Any]) -> None:
    """Runs a test's coroutine; a hang is a failure."""
    asyncio.run(asyncio.wait_for(work(), 3 * WITHIN_S))
