"""The queues between the engine's thread and the event loop: changes and results one way, writes the other.

Writes go to the API server one per object at a time, and are retried with back-off. Those that many controllers
ask for are at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api, Propagation
from batuta.backends.kube.client.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound, Unavailable
from batuta.backends.kube.client.informer import Change
from batuta.backends.kube.client.kinds import EVENT, Kind
from batuta.backends.kube.objects import Meta
from batuta.backends.kube.progress.log_lines import LogReport
from batuta.engine.fence import sentence
from batuta.engine.jobs.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Changed:
    """Objects of one kind came, changed or went."""

    kind: Kind[Any]
    changes: Sequence[Change[Any]]  # empty once: the cluster has this kind, and all that there was has been told
    version: str = ""  # with it: the version in which the cluster has it


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object of which not even the fields could be decoded."""

    kind: Kind[Any]
    metadata: Meta  # as far as it could be
    why: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a write; `error` is None when it was done."""

    key: str
    error: ApiError | None


Message: TypeAlias = Changed | Unreadable | Written | LogReport | None  # None: wake up, there is something else to do

_log = logging.getLogger(__name__)
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 200
GATHER_S = 0.005
"""News rarely comes alone: hundreds of pods get their nodes each second. Taken together it costs far less."""
REST_S = 0.2  # news that can wait is taken no sooner than this after the last: thousands of pods begin one by one


class Inbox:
    """Messages in the order in which they were put in. Any thread may put, one takes."""

    def __init__(self, gather_s: float = GATHER_S, rest_s: float = REST_S) -> None:
        self._gather_s = gather_s
        self._rest_s = rest_s
        self._messages: list[Message] = []
        self._is_urgent = self._is_patient = False  # whether there are messages that cannot wait, and such that can
        self._rested_s = 0.0  # from then on, messages that can wait are taken as well
        self._changed = threading.Condition(threading.Lock())

    def put(self, message: Message, *, urgent: bool = True) -> None:
        """Adds a message; one that is not urgent may lie for a moment, if others like it were just taken."""
        with self._changed:
            self._messages.append(message)
            is_first = not (self._is_urgent if urgent else self._is_patient)
            self._is_urgent |= urgent
            self._is_patient |= not urgent
            if is_first:
                self._changed.notify()

    def take(self, timeout_s: float) -> list[Message]:
        """Everything that is there. If nothing is, waits for the first and a moment for what follows it."""
        if self._waits(time.monotonic() + timeout_s):
            time.sleep(self._gather_s)
        with self._changed:
            taken, self._messages = self._messages, []
            if self._is_patient:
                self._rested_s = time.monotonic() + self._rest_s
            self._is_urgent = self._is_patient = False
        return taken

    def _waits(self, until_s: float) -> bool:
        """Waits until something is to be taken; whether it was not there yet and came."""
        has_waited = False
        with self._changed:
            while not self._is_urgent:
                left_s = min(until_s, self._rested_s if self._is_patient else until_s) - time.monotonic()
                if left_s <= 0:
                    break
                has_waited = True
                self._changed.wait(left_s)
            return has_waited and bool(self._messages)


WriteFn: TypeAlias = Callable[[Api], Awaitable[Any]]
AskFn: TypeAlias = Callable[[str, WriteFn, float], bool]
"""Asks for a write, by its key, at a time; false where it may not be asked for yet."""
RETRY: Final = Backoff(0.25, 30.0)


class WriteQueue:
    """The engine's side. A caller asks again until its write is done."""

    def __init__(self, post: Callable[[list[tuple[str, WriteFn]]], None], seed: int = 0) -> None:
        self._post = post
        self._under_way: set[str] = set()
        self._trouble: dict[str, tuple[int, float]] = {}
        """By key: how often a write has failed in a row, and when it may be tried again."""
        self._waiting: dict[str, float] = {}  # by key: when it may be tried again, until it was reported
        self._asked: list[tuple[str, WriteFn]] = []
        self._random = random.Random(seed)
        self.failed = 0

    def ask(self, key: str, do: WriteFn, now_s: float) -> bool:
        """Begins with a write, unless one of the same key is under way or has just failed."""
        _, due_s = self._trouble.get(key, (0, -math.inf))
        if key in self._under_way or now_s < due_s:
            return False
        self._under_way.add(key)
        self._asked.append((key, do))
        return True

    def is_busy(self, prefix: str) -> bool:
        """Whether a write whose key begins so is under way, or failed and is to be tried again."""
        return any(key.startswith(prefix) for key in (*self._under_way, *self._waiting))

    def send(self) -> None:
        """Hands over what was asked for since the last time, all at once."""
        if self._asked:
            asked, self._asked = self._asked, []
            self._post(asked)

    def heard(self, written: Written, now_s: float) -> None:
        """Takes in an answer. What failed may be tried again after a pause that grows."""
        self._under_way.discard(written.key)
        if written.error is None:
            self._trouble.pop(written.key, None)
            return
        self.failed += 1
        times = self._trouble.get(written.key, (0, 0.0))[0] + 1
        due_s = now_s + RETRY.pause_s(times) * self._random.uniform(0.8, 1.2)
        self._trouble[written.key], self._waiting[written.key] = (times, due_s), due_s

    def forget(self, key: str) -> None:
        """The object is gone, and so is the trouble with it."""
        self._trouble.pop(key, None)
        self._waiting.pop(key, None)

    def forget_all(self, prefix: str) -> None:
        """The same for all whose keys begin so. Few writes are in trouble at a time."""
        for key in [key for key in self._trouble if key.startswith(prefix)]:
            self.forget(key)

    def next_s(self) -> float:
        return min(self._waiting.values(), default=math.inf)

    def due(self, now_s: float) -> list[str]:
        """Writes that failed and may be tried again now, each once: the caller asks again."""
        due = [key for key, due_s in self._waiting.items() if due_s <= now_s]
        for key in due:
            del self._waiting[key]
        return due


class WriteWorkers:
    """The other side: some coroutines that take writes one by one, so that so many are in flight at most."""

    def __init__(self, api: Api, inbox: Inbox, hands: int = 32) -> None:
        self._api = api
        self._inbox = inbox
        self._hands = hands
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Queue[tuple[str, WriteFn]] = asyncio.Queue()

    def post(self, asked: list[tuple[str, WriteFn]]) -> None:
        """Takes writes over from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._take, asked)

    def _take(self, asked: list[tuple[str, WriteFn]]) -> None:
        for one in asked:
            self._waiting.put_nowait(one)

    async def run(self) -> None:
        """Works until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._hands):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key, do = await self._waiting.get()
            self._inbox.put(Written(key, await carry_out(do, self._api)))


async def carry_out(do: WriteFn, api: Api) -> ApiError | None:
    """Does a write; what went wrong. A write that cannot even be put into words is one that failed, and no more."""
    try:
        await do(api)
    except ApiError as error:
        return error
    except (TimeoutError, OSError) as error:
        return Unavailable(str(error) or repr(error))
    except Exception as error:  # a number that JSON cannot have, for example: users write the templates of pods
        _log.error("a write cannot be made: %s", sentence(error), exc_info=error)
        return Invalid(f"it cannot be written: {sentence(error)}")
    return None


async def create_unless_there(kind: Kind[Any], body: Mapping[str, Any], api: Api) -> None:
    """Creates an object. One of its name may be there already, from an earlier operator: the next look sees it."""
    with suppress(AlreadyExists):
        await api.create(kind, body, body["metadata"]["namespace"])


async def patch_object(kind: Kind[Any], meta: Meta, body: Mapping[str, Any], api: Api) -> None:
    with suppress(NotFound):
        await api.patch(kind, meta.name, body, meta.namespace)


async def patch_status(kind: Kind[Any], meta: Meta, status: Mapping[str, Any], api: Api) -> None:
    with suppress(NotFound):
        await api.patch_status(kind, meta.name, status, meta.namespace)


async def delete_object(kind: Kind[Any], meta: Meta, api: Api, *, propagation: Propagation | None = None) -> None:
    """Deletes one object, unless another of the same name is there by now."""
    with suppress(NotFound):
        await api.delete(kind, meta.name, meta.namespace, uid=meta.uid, propagation=propagation)


def reference(kind: Kind[Any], meta: Meta) -> dict[str, str]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
    }


def build_event(
    about: Mapping[str, str],
    reason: str,
    note: str,
    now_s: float,
    kind: str,
    *,
    said: str,
    action: str = "",
    controller: str = names.MANAGED_BY,
) -> dict[str, Any]:
    """The Event about an object. `said` in the same minute has the same name, so that it exists once.

    Objects without a namespace have their events in `default`, as the API server requires.
    """
    when = datetime.fromtimestamp(now_s, UTC)
    digest = hashlib.sha256(f"{about['uid']} {said} {int(now_s // 60)}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{about['name'][:_LONGEST_NAME]}.{digest}",
            "namespace": about.get("namespace") or "default",
        },
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": controller,
        "reportingInstance": names.SCHEDULER,
        "action": action or reason,
        "reason": reason,
        "type": kind,
        "note": note[:_LONGEST_NOTE],
        "regarding": dict(about),
    }


async def create_event(event: dict[str, Any], api: Api) -> None:
    # It may exist already, and its namespace may be going, or not be the operator's.
    with suppress(AlreadyExists, NotFound, Forbidden):
        await api.create(EVENT, event, event["metadata"]["namespace"])
