"""An agent's part in health: what the kernel log says of its GPUs, told until the operator has heard it.

What NVML says of them is told beside it (agent_figures.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.health.notes import (
    LONGEST_TEXT,
    MOST_NOTES,
    MOST_OWNERS,
    NodeNote,
    read_seen,
    write_notes,
)
from batuta.bootstrap.agent_addresses import FILE, Addresses, nvml_addresses
from batuta.bootstrap.agent_cluster import ClusterDesk, cancelled
from batuta.bootstrap.agent_figures import FigureTeller, NvmlReader, figures_publisher
from batuta.core.health_rules import Source
from batuta.gpu.attribution.owner import Owner
from batuta.gpu.health.kernel_line import parse_line
from batuta.gpu.health.kernel_log import KernelLog
from batuta.gpu.health.kmsg import KmsgLog
from batuta.gpu.health.ledger import Ledger, LedgerBusy, Note
from batuta.gpu.health.log_file import LogFile
from batuta.gpu.profiler.usage import NodeUsage
from batuta.spec.problem import InputError, Problem

LEDGER: Final = "health-ledger.json"
LOOK_EVERY_S: Final = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Before the operator is asked again whether it has heard; it doubles."""
_log = logging.getLogger("batuta.agent")

Publish: TypeAlias = Callable[[str], Awaitable[int]]
"""Makes a text the node's annotation; the number of the last note that is dealt with. Raises ApiError."""
Whose: TypeAlias = Callable[[int | None, int | None], tuple[Owner, ...]]
"""Who was hit, by the pid of a process, or else by the GPU."""


def log_problems(log: Path | None, state: Path) -> list[Problem]:
    """What is wrong with a kernel log that an agent is to read, and with where it remembers how far."""
    if log is None:
        return []
    found: list[Problem] = []
    if log.is_dir() or not (log.exists() or log.parent.is_dir()):
        found.append(Problem(f"--kernel-log: {log} is no file", fix="/dev/kmsg, or where the log is written"))
    elif log.exists() and not os.access(log, os.R_OK):
        found.append(
            Problem(f"--kernel-log: {log} may not be read", fix="as root, or for /dev/kmsg with CAP_SYSLOG")
        )
    folder = next(one for one in (state, *state.parents) if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        found.append(Problem(f"--state: {state} cannot be written", fix="name a folder that lasts"))
    return found


def open_kernel_log(path: Path) -> KernelLog:
    """The kernel's own device, or a file that a daemon writes."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return KmsgLog(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return LogFile(path)


def tell_health(
    stack: AsyncExitStack,
    log: Path,
    state: Path,
    desk: ClusterDesk,
    usage: Callable[[], NodeUsage],
) -> None:
    """Begins to read a kernel log and figures of GPUs, and to tell the operator, until the stack is left."""
    try:
        ledger = stack.enter_context(Ledger(state / LEDGER, open_kernel_log(log), time.time))
    except (LedgerBusy, OSError) as error:
        raise InputError.of(f"--state: {error}", fix="one agent per node; name a folder that lasts") from None

    def whose(pid: int | None, gpu: int | None) -> tuple[Owner, ...]:
        owner = desk.owners.of(pid) if pid is not None else None
        if owner is not None:
            return (owner,)
        return tuple(one for used in usage().gpus if used.index == gpu for one in used.owners)

    addresses = Addresses(state / FILE, partial(nvml_addresses, usage))
    notes = KernelNotes(ledger, addresses, whose)
    tellers = (
        NoteTeller(notes, publisher(desk.api, desk.node)),
        FigureTeller(NvmlReader(usage), figures_publisher(desk.api, desk.node)),
    )
    for teller in tellers:
        stack.push_async_callback(cancelled, asyncio.create_task(teller.run()))


class KernelNotes:
    """What the log told and nobody has acknowledged. The ledger knows it over restarts."""

    def __init__(self, ledger: Ledger, addresses: Addresses, whose: Whose) -> None:
        self._ledger, self._addresses, self._whose = ledger, addresses, whose
        self._told: dict[int, NodeNote] = {}
        """By number: looked up while the process that was hit may still be there."""

    def look(self) -> tuple[NodeNote, ...]:
        """Reads the log on; the oldest notes that are not dealt with. Not for the event loop: it waits."""
        self._addresses.look()
        self._ledger.collect()
        for sentence in self._ledger.missed:
            _log.warning("kernel log: %s", sentence)
        waiting = self._ledger.waiting[:MOST_NOTES]
        told = {one.number: self._told.get(one.number) or self._note(one) for one in waiting}
        self._told = {number: note for number, note in told.items() if note is not None}
        return tuple(self._told.values())

    def done(self, number: int) -> None:
        """Notes up to this number are dealt with."""
        self._ledger.done(number)

    def _note(self, note: Note) -> NodeNote | None:
        error = parse_line(note.line)
        if error is None:
            return None
        # A switch is no GPU: what it tells is about the node.
        gpu = self._addresses.index(error.pci) if error.source is Source.XID else None
        owners = self._whose(error.pid, gpu)
        return NodeNote(
            n=note.number,
            time=round(note.time_s, 3),
            source=error.source.value,
            code=error.code,
            gpu=gpu,
            text=error.text[:LONGEST_TEXT],
            owners=tuple(f"{one.namespace}/{one.job}/{one.pod}" for one in owners[:MOST_OWNERS]),
        )


class NoteTeller:
    """Keeps the node's annotation as the ledger is. One turn after another, from one task."""

    def __init__(
        self, notes: KernelNotes, publish: Publish, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._notes, self._publish, self._clock = notes, publish, clock
        self._published: str | None = None
        self._ask_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    async def turn(self) -> None:
        """Tells what is new, and asks now and then whether it was heard."""
        text = write_notes(found) if (found := await asyncio.to_thread(self._notes.look)) else ""
        is_news = text != self._published
        if is_news:
            self._pause_s = _FIRST_PAUSE_S
        elif not text or self._clock() < self._ask_s:
            return
        seen = await self._publish(text)
        self._published = text
        self._ask_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if seen:
            await asyncio.to_thread(self._notes.done, seen)

    async def run(self) -> None:
        """Until it is cancelled. What fails is tried again: an agent outlives its log and its API server."""
        while True:
            try:
                await self.turn()
            except (ApiError, OSError) as error:
                _log.warning("cannot tell of the kernel log: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)


def publisher(api: Api, node: str) -> Publish:
    """Writes the annotation of a node; its answer has what the operator wrote beside it."""

    async def publish(text: str) -> int:
        body = {"metadata": {"annotations": {names.HEALTH_NOTES: text or None}}}
        changed = await api.patch(NODE, node, body)
        return read_seen(changed.metadata.annotations.get(names.HEALTH_SEEN, ""))

    return publish
