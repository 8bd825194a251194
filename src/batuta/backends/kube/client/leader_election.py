"""Leader election by a Lease: of several processes, one leads; when it stops or dies, another takes over.

Clocks need not agree. What others wrote is never compared with our own time: a lease is free when we have not
seen it change for as long as it lasts, by our own monotonic clock. And we lead only for `renew_s` after the
start of our last successful renewal, which is shorter than others wait: we stop before they may start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.transport import backoff_delay_s
from batuta.backends.kube.objects import Meta

_log = logging.getLogger(__name__)


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """Who leads, and since when."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, omit_defaults=True):
    """A `coordination.k8s.io/v1` Lease."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", Lease)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a lease lasts for others, how long we trust our own, how often we look."""

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > self.retry_s > 0:
            raise ValueError("a lease must last longer than its renewal may take, and that longer than a retry")


DEFAULT_TIMING: Final = LeaseTiming()


@dataclass(slots=True, eq=False)
class LeaderElector:
    """Takes part in an election until `run` is cancelled; then it hands the lease back.

    `on_started` and `on_stopped` are called on the event loop, in turns. `leading` is safe to read from any
    thread, at any moment: it is false in time even when the event loop hangs.
    """

    _api: Api
    _name: str
    _namespace: str
    identity: str
    _: KW_ONLY
    on_started: Callable[[], None] = lambda: None
    on_stopped: Callable[[], None] = lambda: None
    timing: LeaseTiming = DEFAULT_TIMING
    leader: str = field(default="", init=False)  # who leads, as far as we have seen
    failure: ApiError | None = field(default=None, init=False)
    """Why the last try did not reach the API server; None when it did."""
    _lead_until_s: float = field(default=0.0, init=False)
    _told: bool = field(default=False, init=False)
    _seen: Lease | None = field(default=None, init=False)
    _changed_at_s: float = field(default=0.0, init=False)

    @property
    def leading(self) -> bool:
        """Whether we lead now: no other process may, for as long as this is true."""
        return time.monotonic() < self._lead_until_s

    async def run(self) -> None:
        """Goes on until it is cancelled, through every failure of the API server."""
        try:
            while True:
                begun_s = time.monotonic()
                try:
                    await self._round()
                    self.failure = None
                except ApiError as error:
                    if self.failure is None:
                        _log.warning("lease %s/%s: %s; trying again", self._namespace, self._name, error)
                    self.failure = error
                self._tell()
                await self._sleep_from(begun_s)
        finally:
            held = self.leading
            self._lead_until_s = 0.0
            self._tell()
            if held:
                await self._release()

    async def _round(self) -> None:
        """Takes, renews or looks at the lease once, in less time than we may lead without it."""
        begun_s = time.monotonic()
        limit_s = self._lead_until_s - begun_s if self.leading else self.timing.renew_s
        try:
            async with asyncio.timeout(limit_s):
                if await self._took(begun_s):
                    self._lead_until_s = begun_s + self.timing.renew_s
        except (Conflict, NotFound):  # another process wrote or removed it: look again in the next round
            self._seen = None
        except TimeoutError as error:
            raise Unavailable("no answer in time") from error

    async def _took(self, now_s: float) -> bool:
        if self._seen is not None and self.leading:
            # Another process may have written it meanwhile; then the version differs.
            return await self._write(self._seen)
        self._tell()  # a process that leads again after a gap has stopped in between, and is told so
        try:
            found = await self._api.get(LEASE, self._name, self._namespace)
        except NotFound:
            return await self._create()
        if self._seen is None or found.metadata.resource_version != self._seen.metadata.resource_version:
            self._seen, self._changed_at_s = found, time.monotonic()
        holder = found.spec.holder_identity or ""
        self._note_leader(holder)
        if holder != self.identity:  # taken from us by force
            self._lead_until_s = 0.0
            self._tell()
        lasts_s = found.spec.lease_duration_seconds or self.timing.lease_s
        if holder and holder != self.identity and now_s < self._changed_at_s + lasts_s:
            return False
        return await self._write(found)

    async def _create(self) -> bool:
        body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._spec(None)}
        try:
            self._seen = await self._api.create(LEASE, body, self._namespace)
        except AlreadyExists:
            return False
        self._note_leader(self.identity)
        return True

    async def _write(self, seen: Lease) -> bool:
        """Puts our name on the version that we saw; a conflict means that another process was faster."""
        self._seen = await self._patch(seen, self._spec(seen))
        self._note_leader(self.identity)
        return True

    async def _release(self) -> None:
        """Leaves the lease to the next process that looks. Where that fails, it runs out by itself."""
        if self._seen is None:
            return
        spec = {**self._spec(self._seen), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(self.timing.retry_s):
                await self._patch(self._seen, spec)
        except (ApiError, TimeoutError) as error:
            _log.info("lease %s/%s: not handed back: %s", self._namespace, self._name, error)

    async def _patch(self, seen: Lease, spec: dict[str, Any]) -> Lease:
        """Changes the lease if it is still the one that we saw; what else is in it is not ours to touch."""
        body = {"metadata": {"resourceVersion": seen.metadata.resource_version}, "spec": spec}
        return await self._api.patch(LEASE, self._name, body, self._namespace)

    def _spec(self, seen: Lease | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = seen is not None and seen.spec.holder_identity == self.identity
        transitions = (seen.spec.lease_transitions or 0) if seen else 0
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.lease_s,
            "acquireTime": seen.spec.acquire_time if seen and ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if ours or seen is None else transitions + 1,
        }

    async def _sleep_from(self, begun_s: float) -> None:
        """Until the next round; a leader that cannot renew is told of its end when it comes, not later."""
        wait_s = begun_s + backoff_delay_s(1, self.timing.retry_s, self.timing.retry_s) - time.monotonic()
        if self.leading:
            wait_s = min(wait_s, self._lead_until_s - time.monotonic())
        await asyncio.sleep(max(wait_s, 0.0))
        self._tell()

    def _tell(self) -> None:
        if self.leading != self._told:
            self._told = not self._told
            _log.info("%s %s", self.identity, "leads" if self._told else "does not lead any more")
            (self.on_started if self._told else self.on_stopped)()

    def _note_leader(self, holder: str) -> None:
        if holder and holder != self.leader:
            _log.info("lease %s/%s: held by %s", self._namespace, self._name, holder)
        self.leader = holder
