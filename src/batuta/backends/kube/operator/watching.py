"""Informers of all kinds that the operator cares for, also of those that the cluster gets later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.operator.inbox import Changed, Inbox
from batuta.backends.kube.operator.watched import ALWAYS, EVERYWHERE, IF_SERVED, WORKLOAD_GROUP

LOOK_AGAIN_S: Final = 30.0
"""How often the cluster is asked whether it has more kinds by now."""
_log = logging.getLogger(__name__)


class Watching:
    """Puts what informers hear into the inbox. For the event loop."""

    def __init__(self, api: Api, inbox: Inbox, namespaces: Sequence[str], tasks: asyncio.TaskGroup) -> None:
        """`namespaces`: where jobs may be; empty for everywhere. Pods are watched in all of them anyway."""
        self._api = api
        self._inbox = inbox
        self._namespaces = tuple(namespaces) or ("",)
        self._tasks = tasks
        self._missing = list(IF_SERVED)

    async def start(self) -> None:
        """Returns when all that is there has been listed."""
        informers = [one for kind in ALWAYS for one in self._watch(kind, kind)]
        for kind, served in await self._found():
            informers += self._watch(kind, served)
        for informer in informers:
            await informer.synced.wait()
        self._tasks.create_task(self._look_again())

    def _watch(self, kind: Kind[Any], served: Kind[Any]) -> list[Informer[Any]]:
        places = ("",) if kind in EVERYWHERE else self._namespaces
        found = [Informer(self._api, served, self._teller(kind), namespace=place) for place in places]
        for informer in found:
            self._tasks.create_task(informer.run())
        return found

    def _teller(self, kind: Kind[Any]) -> Callable[[Any], None]:
        return lambda changes: self._inbox.put(Changed(kind, changes))

    async def _look_again(self) -> None:
        while self._missing:
            await asyncio.sleep(LOOK_AGAIN_S)
            for kind, served in await self._found():
                _log.info("the cluster has %s now", served)
                self._watch(kind, served)

    async def _found(self) -> list[tuple[Kind[Any], Kind[Any]]]:
        """Kinds of other projects that the cluster has and that were missing, each as it is served."""
        found: list[tuple[Kind[Any], Kind[Any]]] = []
        for kind in tuple(self._missing):
            try:
                served = await self._api.discover(kind.group)
            except ApiError as error:
                _log.warning("cannot see whether the cluster has %s: %s; trying again", kind, error)
                continue
            version = kind.version
            if kind is WORKLOAD_GROUP and not served.has(version, kind.plural):
                version = served.version_of(kind.plural)
            if served.has(version, kind.plural):
                self._missing.remove(kind)
                found.append((kind, kind if version == kind.version else replace(kind, version=version)))
        return found
