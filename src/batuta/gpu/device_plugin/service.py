"""One resource's side of the talk with the kubelet: the gRPC service `v1beta1.DevicePlugin`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from batuta.gpu.device_plugin import messages as m
from batuta.gpu.device_plugin.clerk import Clerk
from batuta.gpu.device_plugin.decision import Refused
from batuta.gpu.device_plugin.stock import Resource, Stock
from batuta.gpu.wire import decode, encode

log = logging.getLogger("batuta.device_plugin")

_LAST_WORDS_S: Final = 0.5


class ResourceService:
    """Serves one resource on a socket of the kubelet's folder."""

    def __init__(self, resource: Resource, folder: Path, stock: Stock, clerk: Clerk) -> None:
        self.resource = resource
        self.endpoint = f"batuta-gpu-{resource.word}.sock"
        self._socket = folder / self.endpoint
        self._stock, self._clerk = stock, clerk
        self._server: grpc.aio.Server | None = None

    @property
    def options(self) -> m.Options:
        return m.Options(self._clerk.asks_before_start, preferred_allocation=True)

    @property
    def is_served(self) -> bool:
        """Whether the kubelet can reach it; a kubelet that starts removes all sockets of its folder."""
        return self._server is not None and self._socket.is_socket()

    async def start(self) -> None:
        """Listens, on a new socket if there was one."""
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
        # The watch never ends by itself; what else is on its way is done in less.
        await server.stop(grace=_LAST_WORDS_S)

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
                "GetPreferredAllocation": answers(self._prefer, m.PreferredRequest),
                "Allocate": answers(self._allocate, m.AllocateRequest),
                "PreStartContainer": answers(self._before_start, m.Wanted),
            },
        )

    async def _get_options(self, _: m.Empty, context: Any) -> m.Options:
        return self.options

    async def _list_and_watch(self, _: m.Empty, context: Any) -> AsyncIterator[m.DeviceList]:
        """All units now, and again whenever a card falls ill or recovers, until we end."""
        log.info("the kubelet watches the units of %s", self.resource)
        async for _cards in self._stock.watch():
            yield self._stock.units(self.resource)

    async def _prefer(self, request: m.PreferredRequest, context: Any) -> m.PreferredResponse:
        found = []
        for one in request.containers:
            units = await self._or_refuse(context, self._clerk.prefer(self.resource, one))
            found.append(m.Preferred(tuple(units)))
        return m.PreferredResponse(tuple(found))

    async def _allocate(self, request: m.AllocateRequest, context: Any) -> m.AllocateResponse:
        found = [
            await self._or_refuse(context, self._clerk.allocate(self.resource, one.ids))
            for one in request.containers
        ]
        return m.AllocateResponse(tuple(found))

    async def _before_start(self, request: m.Wanted, context: Any) -> m.Empty:
        await self._or_refuse(context, self._clerk.before_start(self.resource, request.ids))
        return m.Empty()

    async def _or_refuse(self, context: Any, work: Any) -> Any:
        """The result of it; a refusal ends the call, and the kubelet shows its words in the pod's events."""
        try:
            return await work
        except Refused as refusal:
            log.warning("refused: %s", refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"batuta: {refusal}")
