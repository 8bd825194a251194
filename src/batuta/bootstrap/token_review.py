"""Authenticates callers of an operator's API by TokenReview: users and service accounts of the cluster.

The cluster is not asked at every request, and an answer does not hold for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from batuta.api.auth import Caller
from batuta.api.responses import LATER, HttpProblem
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden
from batuta.backends.kube.operator.access_review import may_patch_config_map, review
from batuta.store.records import Role, hash_of

TOKEN_FRESH_S, TOKEN_REFUSED_S = 60.0, 10.0
"""The cluster is asked again about a token after the first, and about one that it did not know after the second."""
MOST_TOKENS = 1_000
UNKNOWN_AT_ONCE, MOST_UNKNOWN = 16, 256
"""Reviews of unknown tokens at a time, and with those that wait for their turn: more are refused."""


@contextmanager
def _reviewing() -> Iterator[None]:
    """Answer 503 where the cluster cannot be asked."""
    try:
        yield
    except Forbidden as error:
        raise HttpProblem(
            503, "the operator may not review tokens: its role is of an older version (batuta install)"
        ) from error
    except ApiError as error:
        raise HttpProblem(503, f"the cluster cannot say who asks: {error}") from error


class _Known(NamedTuple):
    token: str
    who: Caller | None  # None for one that the cluster does not know, or that may not list jobs
    until_s: float
    refusal: str = ""  # why a user whom the cluster knows may not ask


class TokenReviewAuthenticator:
    """Asks the API server who bears a token, and keeps the answer for a while. For one event loop.

    Who may see the UnifiedJobs of all namespaces may ask everything; who may change them, too, may also say
    which policy watches. Made-up tokens have a cache and turns of their own: they can neither displace those that
    the cluster knows nor make their bearers wait.
    """

    def __init__(self, api: Api, audiences: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """Tokens have to be made for one of the audiences; without any, for the API server itself."""
        self._api, self._audiences, self._clock = api, tuple(audiences), clock
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by hash: tokens of callers
        self._refused: OrderedDict[str, _Known] = OrderedDict()  # and all others that were shown lately
        self._reviews: dict[str, asyncio.Task[_Known]] = {}  # by hash: those under way
        self._unknown_turns = asyncio.Semaphore(UNKNOWN_AT_ONCE)
        self._unknown: set[str] = set()  # of those under way: tokens that were not known before

    async def bearing(self, token: str) -> Caller | None:
        """The caller, if the cluster knows the token.

        Raises HttpProblem when the caller may not list jobs, or the API server does not answer.
        """
        hash_ = hash_of(token)
        found = self._known.get(hash_) or self._refused.get(hash_)
        if found is None or self._clock() >= found.until_s:
            found = await self._review(token, hash_)
        if found.refusal:
            raise HttpProblem(403, found.refusal)
        return found.who

    async def find(self, hash_: str) -> Caller | None:
        """The bearer of a token that was seen since this process leads."""
        known = self._known.get(hash_)
        return None if known is None else await self.bearing(known.token)

    async def may_patch(self, caller: Caller, namespace: str, config_map: str) -> bool:
        """Whether a caller may patch a ConfigMap. The cluster is asked each time: it is asked rarely."""
        known = self._known.get(caller.token_hash)
        if known is None:
            return False
        with _reviewing():
            return await may_patch_config_map(self._api, known.token, self._audiences, namespace, config_map)

    async def _review(self, token: str, hash_: str) -> _Known:
        """One for all who wait: a page of the dashboard asks ten things at once, with one token."""
        review = self._reviews.get(hash_)
        if review is None:
            if hash_ in self._known:
                asking = self._ask(token, hash_)
            elif len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(hash_)
                asking = self._ask_in_turn(token, hash_)
            else:
                raise HttpProblem(429, "too many unknown tokens are being reviewed: try again", headers=LATER)
            review = self._reviews[hash_] = asyncio.create_task(asking)
            review.add_done_callback(partial(self._reviewed, hash_))
        return await asyncio.shield(review)  # a client that leaves does not end it for the others

    def _reviewed(self, hash_: str, review: asyncio.Task[_Known]) -> None:
        del self._reviews[hash_]
        self._unknown.discard(hash_)
        if not review.cancelled():
            review.exception()  # seen, also when all who waited have left

    async def _ask_in_turn(self, token: str, hash_: str) -> _Known:
        async with self._unknown_turns:
            return await self._ask(token, hash_)

    async def _ask(self, token: str, hash_: str) -> _Known:
        with _reviewing():
            found = await review(self._api, token, self._audiences)
        who, refusal = None, ""
        if found is not None and found.may_see:
            who = Caller(found.user, Role.ADMIN if found.may_change else Role.USER, hash_)
        elif found is not None:
            refusal = f"{found.user} may not list the UnifiedJobs of all namespaces, which this takes"
        known = _Known(token, who, self._clock() + (TOKEN_REFUSED_S if who is None else TOKEN_FRESH_S), refusal)
        kept, other = (self._refused, self._known) if who is None else (self._known, self._refused)
        other.pop(hash_, None)
        kept[hash_] = known
        kept.move_to_end(hash_)
        if len(kept) > MOST_TOKENS:
            kept.popitem(last=False)
        return known
