"""Serve both GPU resources to the kubelet, and register with it again after each of its restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from batuta.gpu.device_plugin import messages as m
from batuta.gpu.device_plugin.allocation import (
    AllocationRefused,
    AllocationState,
    CheckpointUnreadable,
    ListPods,
    PodsUnavailable,
    read_assignments,
)
from batuta.gpu.device_plugin.enforcement import ShareEnforcer
from batuta.gpu.device_plugin.inventory import DeviceInventory, Resource
from batuta.gpu.protobuf import decode, encode
from batuta.spec.problem import InputError

log = logging.getLogger("batuta.device_plugin")
_GRACE_S: Final = 0.5
KUBELET_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET: Final = "kubelet.sock"
_CHECK_EVERY_S: Final = 1.0
_REGISTER_TIMEOUT_S: Final = 5.0


class Allocator:
    """Answers the kubelet's requests, one at a time, each from the state read afresh."""

    def __init__(self, folder: Path, inventory: DeviceInventory, pods: ListPods, enforcer: ShareEnforcer) -> None:
        """`folder`: the kubelet's, with its sockets and its checkpoint file."""
        self._folder, self._inventory, self._pods, self._enforcer = folder, inventory, pods, enforcer
        self._one_at_a_time = asyncio.Lock()
        # Only a hint between the two requests of one container: forgotten after the next one, or a restart.
        self._began: tuple[Resource, str, str] | None = None

    @property
    def needs_pre_start(self) -> bool:
        return self._enforcer.needs_pre_start

    async def prefer(self, resource: Resource, wanted: m.ContainerPreferredAllocationRequest) -> list[str]:
        async with self._one_at_a_time:
            state = await self._read_state(resource)
            return state.prefer(resource, wanted.available, wanted.included, wanted.size)

    async def allocate(self, resource: Resource, units: Sequence[str]) -> m.ContainerAllocateResponse:
        """Return what the container of a request gets with its units, or raise AllocationRefused."""
        async with self._one_at_a_time:
            state = await self._read_state(resource)
            self._began = None
            grant = state.grant(resource, units)
            self._began = (resource, grant.pod.uid, grant.container.name)
            self._enforcer.keep_only(frozenset(pod.uid for pod in state.pods))
            with _refusing(f"cannot prepare the share of {grant.pod}"):
                answer = self._enforcer.container_response(grant)
        card = grant.card
        log.info(
            *("%s, container %s: %d units of %s on GPU %d (%s)", grant.pod, grant.container.name),
            *(len(units), resource, card.index, card.uuid),
        )
        return answer

    async def pre_start(self, resource: Resource, units: Sequence[str]) -> None:
        """Prepare the start of the container that has these units, or raise AllocationRefused."""
        async with self._one_at_a_time:
            grant = (await self._read_state(resource)).grant(resource, units)
            with _refusing(f"cannot enforce the share of {grant.pod}"):
                self._enforcer.pre_start(grant)

    async def _read_state(self, resource: Resource) -> AllocationState:
        with _refusing("cannot tell what is free on this node"):
            pods = await self._pods()
            assignments = await asyncio.to_thread(read_assignments, self._folder)
        began = self._began
        begun = None if began is None or began[0] is resource else began[1:]
        return AllocationState(self._inventory, pods, assignments, begun)


@contextmanager
def _refusing(why: str) -> Iterator[None]:
    try:
        yield
    except (OSError, InputError, PodsUnavailable, CheckpointUnreadable) as error:
        raise AllocationRefused(f"{why}: {error}") from error


class ResourceService:
    """Serves one resource on a socket of the kubelet's folder."""

    def __init__(self, resource: Resource, folder: Path, inventory: DeviceInventory, allocator: Allocator) -> None:
        self.resource = resource
        self.endpoint = f"batuta-gpu-{resource.word}.sock"
        self._socket = folder / self.endpoint
        self._inventory, self._allocator = inventory, allocator
        self._server: grpc.aio.Server | None = None

    @property
    def options(self) -> m.DevicePluginOptions:
        return m.DevicePluginOptions(self._allocator.needs_pre_start, preferred_allocation=True)

    @property
    def is_served(self) -> bool:
        """Return whether the kubelet can reach it; a starting kubelet removes all sockets of its folder."""
        return self._server is not None and self._socket.is_socket()

    async def start(self) -> None:
        await self.stop()
        self._socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        # ListAndWatch never ends by itself; other calls are done in less.
        await server.stop(grace=_GRACE_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        def answers(behaviour: Callable[..., Any], request: type[Any]) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(behaviour, lambda raw: decode(request, raw), encode)

        return grpc.method_handlers_generic_handler(
            m.SERVICE,
            {
                "GetDevicePluginOptions": answers(self._get_options, m.Empty),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch, lambda raw: decode(m.Empty, raw), encode
                ),
                "GetPreferredAllocation": answers(self._prefer, m.PreferredAllocationRequest),
                "Allocate": answers(self._allocate, m.AllocateRequest),
                "PreStartContainer": answers(self._pre_start, m.ContainerAllocateRequest),
            },
        )

    async def _get_options(self, _: m.Empty, context: Any) -> m.DevicePluginOptions:
        return self.options

    async def _list_and_watch(self, _: m.Empty, context: Any) -> AsyncIterator[m.ListAndWatchResponse]:
        """Send all units now, and again after each change of a GPU's health."""
        log.info("the kubelet watches the units of %s", self.resource)
        async for _cards in self._inventory.watch():
            yield self._inventory.units(self.resource)

    async def _prefer(self, request: m.PreferredAllocationRequest, context: Any) -> m.PreferredAllocationResponse:
        found = []
        for one in request.containers:
            units = await self._or_refuse(context, self._allocator.prefer(self.resource, one))
            found.append(m.ContainerPreferredAllocationResponse(tuple(units)))
        return m.PreferredAllocationResponse(tuple(found))

    async def _allocate(self, request: m.AllocateRequest, context: Any) -> m.AllocateResponse:
        found = [
            await self._or_refuse(context, self._allocator.allocate(self.resource, one.ids))
            for one in request.containers
        ]
        return m.AllocateResponse(tuple(found))

    async def _pre_start(self, request: m.ContainerAllocateRequest, context: Any) -> m.Empty:
        await self._or_refuse(context, self._allocator.pre_start(self.resource, request.ids))
        return m.Empty()

    async def _or_refuse(self, context: Any, work: Any) -> Any:
        """Return the result; a refusal ends the call, and the kubelet shows its text in the pod's events."""
        try:
            return await work
        except AllocationRefused as refusal:
            log.warning("refused: %s", refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"batuta: {refusal}")


class RegistrationFailed(Exception):
    """The kubelet refuses the registration, or does not answer."""


class DevicePlugin:
    """Serves both resources of one node, from `run` until it is cancelled."""

    def __init__(self, inventory: DeviceInventory, allocator: Allocator, folder: Path = KUBELET_FOLDER) -> None:
        self._folder = folder
        self._services = tuple(ResourceService(one, folder, inventory, allocator) for one in Resource)
        self._registered: tuple[int, int] | None = None

    async def run(self) -> None:
        """Check every second whether the current kubelet is the one registered with, and register if not."""
        async with AsyncExitStack() as stack:
            for service in self._services:
                stack.push_async_callback(service.stop)
            while True:
                await self._ensure_registered()
                await asyncio.sleep(_CHECK_EVERY_S)

    async def _ensure_registered(self) -> None:
        kubelet = self._kubelet()
        served = all(service.is_served for service in self._services)
        if kubelet is None or (kubelet == self._registered and served):
            return
        try:
            await self._register_all()
        except (RegistrationFailed, OSError) as error:
            # A kubelet that is starting has its socket before it listens; it is tried again.
            log.warning("not registered: %s", error)
            self._registered = None
        else:
            self._registered = kubelet
            log.info("registered %s with the kubelet", " and ".join(Resource))

    async def _register_all(self) -> None:
        for service in self._services:
            await service.start()
            request = m.RegisterRequest(m.VERSION, service.endpoint, service.resource, service.options)
            await register(self._folder / KUBELET_SOCKET, request)

    def _kubelet(self) -> tuple[int, int] | None:
        """Return what tells one process of the kubelet from the next: a new one has a new socket."""
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns


async def register(socket: Path, registration: m.RegisterRequest) -> None:
    """Register a plugin with the kubelet that listens there, or raise RegistrationFailed."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(m.REGISTER, encode, lambda raw: decode(m.Empty, raw))
        try:
            await call(registration, timeout=_REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise RegistrationFailed(f"{registration.resource}: {error.details()}") from None
