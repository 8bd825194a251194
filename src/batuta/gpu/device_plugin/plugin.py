"""The plugin: serves both resources, and registers with the kubelet, again after each of its restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from batuta.gpu.device_plugin import messages as m
from batuta.gpu.device_plugin.clerk import Clerk
from batuta.gpu.device_plugin.service import ResourceService
from batuta.gpu.device_plugin.stock import Resource, Stock
from batuta.gpu.wire import decode, encode

log = logging.getLogger("batuta.device_plugin")

KUBELET_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET: Final = "kubelet.sock"
_LOOK_EVERY_S: Final = 1.0
_ANSWER_WITHIN_S: Final = 5.0


class RegistrationFailed(Exception):
    """The kubelet does not want us, or is not there."""


@dataclass(frozen=True, slots=True)
class _Kubelet:
    """One life of a kubelet: a new one has a new socket."""

    inode: int
    changed_ns: int


class DevicePlugin:
    """Both resources of one node, from `run` until it is cancelled."""

    def __init__(self, stock: Stock, clerk: Clerk, folder: Path = KUBELET_FOLDER) -> None:
        self._folder = folder
        self._services = tuple(ResourceService(one, folder, stock, clerk) for one in Resource)
        self._known: _Kubelet | None = None

    async def run(self) -> None:
        """Looks every second whether the kubelet is the one that knows us, and sees to it that it does."""
        async with AsyncExitStack() as stack:
            for service in self._services:
                stack.push_async_callback(service.stop)
            while True:
                await self._keep_known()
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _keep_known(self) -> None:
        kubelet = self._kubelet()
        served = all(service.is_served for service in self._services)
        if kubelet is None or (kubelet == self._known and served):
            return
        try:
            await self._register_all(self._services)
        except (RegistrationFailed, OSError) as error:
            # A kubelet that is starting has its socket before it listens; it is tried again.
            log.warning("not registered: %s", error)
            self._known = None
        else:
            self._known = kubelet
            log.info("registered %s with the kubelet", " and ".join(Resource))

    async def _register_all(self, services: Sequence[ResourceService]) -> None:
        for service in services:
            await service.start()
            await register(
                self._folder / KUBELET_SOCKET,
                m.Registration(m.VERSION, service.endpoint, service.resource, service.options),
            )

    def _kubelet(self) -> _Kubelet | None:
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return _Kubelet(found.st_ino, found.st_ctime_ns)


async def register(socket: Path, registration: m.Registration) -> None:
    """Makes a plugin known to the kubelet that listens there; raises `RegistrationFailed`."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(m.REGISTER, encode, lambda raw: decode(m.Empty, raw))
        try:
            await call(registration, timeout=_ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            raise RegistrationFailed(f"{registration.resource}: {error.details()}") from None
