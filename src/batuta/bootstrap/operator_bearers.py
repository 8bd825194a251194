"""Who asks an operator something: tokens of the cluster's own users and service accounts."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from batuta.api.auth import Who
from batuta.api.problems import Refusal
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden
from batuta.backends.kube.operator.reviews import Reviewed, review
from batuta.store.records import Role, hash_of

FRESH_S = 60.0
"""The cluster is asked again about a token after this, …"""
REFUSED_S = 10.0
"""… and after this about one that it did not know."""
MOST = 1_000


class _Known(NamedTuple):
    token: str
    who: Who | None
    until_s: float


class ClusterBearers:
    """Asks the API server who bears a token, and keeps the answer for a while. For one event loop.

    Who may see the UnifiedJobs of all namespaces may ask everything; who may change them, too, may also say
    which policy watches.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking = asyncio.Lock()

    async def bearing(self, token: str) -> Who | None:
        """The bearer, if the cluster knows them. A refusal when they may not see jobs, or nobody can say."""
        hash_ = hash_of(token)
        # One at a time: a page of the dashboard asks ten things at once, with one token.
        async with self._asking:
            known = self._known.get(hash_)
            if known is None or self._clock() >= known.until_s:
                known = await self._ask(token, hash_)
        return known.who

    async def find(self, hash_: str) -> Who | None:
        """The bearer of a token that was seen since this process leads."""
        known = self._known.get(hash_)
        return None if known is None else await self.bearing(known.token)

    async def _ask(self, token: str, hash_: str) -> _Known:
        try:
            found = await review(self._api, token)
        except Forbidden as error:
            raise Refusal(
                503, "the operator may not review tokens: its role is of an older version (batuta install)"
            ) from error
        except ApiError as error:
            raise Refusal(503, f"the cluster cannot say who asks: {error}") from error
        who = None if found is None else _who(found, hash_)
        known = _Known(token, who, self._clock() + (REFUSED_S if who is None else FRESH_S))
        self._known[hash_] = known
        self._known.move_to_end(hash_)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return known


def _who(found: Reviewed, hash_: str) -> Who:
    if not found.may_see:
        raise Refusal(403, f"{found.user} may not list the UnifiedJobs of all namespaces, which this takes")
    return Who(found.user, Role.ADMIN if found.may_change else Role.USER, hash_)
