"""Answers the kubelet's requests, one at a time, each from fresh books."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from batuta.gpu.device_plugin.checkpoint import CheckpointUnreadable, read_holdings
from batuta.gpu.device_plugin.decision import Books, Grant, Refused
from batuta.gpu.device_plugin.messages import Allocated, Preference
from batuta.gpu.device_plugin.outfit import Outfit
from batuta.gpu.device_plugin.pods import Pods, PodsUnknown
from batuta.gpu.device_plugin.stock import Resource, Stock
from batuta.spec.problem import InputError

log = logging.getLogger("batuta.device_plugin")


class Clerk:
    """Knows where the books are, and dresses the containers that they are kept for."""

    def __init__(self, folder: Path, stock: Stock, pods: Pods, outfit: Outfit) -> None:
        """`folder`: the kubelet's, with its sockets and its file of what it has given to whom."""
        self._folder, self._stock, self._pods, self._outfit = folder, stock, pods, outfit
        self._one_at_a_time = asyncio.Lock()
        # Only a hint between the two requests of one container: forgotten after the next one, or a restart.
        self._began: tuple[Resource, str, str] | None = None

    @property
    def asks_before_start(self) -> bool:
        return self._outfit.asks_before_start

    async def prefer(self, resource: Resource, wanted: Preference) -> list[str]:
        """The units that would be best; raises `Refused`."""
        async with self._one_at_a_time:
            books = await self._books(resource)
            return books.prefer(resource, wanted.available, wanted.included, wanted.size)

    async def allocate(self, resource: Resource, units: Sequence[str]) -> Allocated:
        """What the container gets whose turn it is; raises `Refused`."""
        async with self._one_at_a_time:
            books = await self._books(resource)
            self._began = None
            grant = books.grant(resource, units)
            self._began = (resource, grant.pod.uid, grant.container.name)
            self._outfit.keep_only(frozenset(pod.uid for pod in books.pods))
            answer = self._dressed(grant)
        log.info(
            "%s, container %s: %d units of %s on GPU %d (%s)",
            grant.pod,
            grant.container.name,
            len(units),
            resource,
            grant.card.index,
            grant.card.uuid,
        )
        return answer

    async def before_start(self, resource: Resource, units: Sequence[str]) -> None:
        """Called before the container that has these units starts; raises `Refused`."""
        async with self._one_at_a_time:
            grant = (await self._books(resource)).grant(resource, units)
            try:
                self._outfit.before_start(grant)
            except (OSError, InputError) as error:
                raise Refused(f"cannot hold {grant.pod} to its share: {error}") from error

    def _dressed(self, grant: Grant) -> Allocated:
        try:
            return self._outfit.dress(grant)
        except (OSError, InputError) as error:
            raise Refused(f"cannot prepare the share of {grant.pod}: {error}") from error

    async def _books(self, resource: Resource) -> Books:
        try:
            pods = await self._pods.on_this_node()
            holdings = await asyncio.to_thread(read_holdings, self._folder)
        except (PodsUnknown, CheckpointUnreadable) as error:
            raise Refused(f"cannot tell what is free on this node: {error}") from error
        began = self._began
        return Books(
            self._stock, pods, holdings, None if began is None or began[0] is resource else began[1:]
        )
