"""An agent's connection to its cluster, and the health of its GPUs as node annotations.

What the kernel log says of a GPU stays in the annotation until the operator has acknowledged it. What NVML
says is written when it has changed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.agent import MANAGER, NodeAnnotator, has_ended, identity_of
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AccessError, ApiError
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.health.annotations import (
    LONGEST_TEXT,
    MOST_NOTES,
    MOST_OWNERS,
    NodeNote,
    read_seen,
    write_figures,
    write_notes,
)
from batuta.bootstrap.kube import check_extra
from batuta.core.health_rules import Source
from batuta.core.health_signals import Figure, Values
from batuta.gpu.health.kernel_log import log_problems, open_kernel_log, parse_line
from batuta.gpu.health.log_queue import KernelLogQueue, QueueBusy, QueuedLine
from batuta.gpu.health.nvml_source import NvmlReader, PciAddresses, nvml_addresses
from batuta.gpu.owners import Owner
from batuta.gpu.pod_owners import KubeletUnavailable, PodOwners, query_kubelet
from batuta.gpu.profiler.export import node_annotations
from batuta.gpu.profiler.usage import NodeUsage
from batuta.spec.problem import InputError, Problem

ADDRESSES_FILE: Final = "gpu-addresses.json"
LOG_QUEUE_FILE: Final = "health-ledger.json"
KERNEL_LOG_INTERVAL_S: Final = 1.0
NVML_INTERVAL_S: Final = 10.0  # figures change slowly, and what cannot wait the driver writes into the kernel log
_SYNC_WITHIN_S: Final = 5.0
_STEADY_C: Final = 3  # a temperature that differs by less from what was told is not told again: each time is a write
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # before the operator is asked again whether it has heard; it doubles
_log = logging.getLogger("batuta.agent")

Publish: TypeAlias = Callable[[str], Awaitable[int]]
"""Makes a text the node's annotation; the number of the last note that is dealt with. Raises ApiError."""
FindOwners: TypeAlias = Callable[[int | None, int | None], tuple[Owner, ...]]
"""Which owners were hit, by the pid of a process, or else by the GPU."""


async def open_node_client(
    stack: AsyncExitStack,
    kubeconfig: Path | None,
    context: str | None,
    node: str,
    owners: PodOwners,
    kubelet_socket: Path,
) -> NodeClient:
    """Reaches the cluster and learns which pods the node has, or says why not."""
    check_extra()
    try:
        access = await find_access(kubeconfig, context)
    except AccessError as error:
        raise InputError.of(str(error)) from None
    api = await stack.enter_async_context(Api(access, manager=MANAGER))
    client = NodeClient(owners, NodeAnnotator(api, node), _informer(api, node, owners), kubelet_socket)
    _run_until_left(stack, client.pods.run())
    try:
        await asyncio.wait_for(client.pods.synced.wait(), _SYNC_WITHIN_S)
    except TimeoutError:
        _log.warning("the API server has not told the pods of %s yet: %s", node, client.pods.failure)
    return client


def _informer(api: Api, node: str, owners: PodOwners) -> Informer[objects.Pod]:
    def told(_: object) -> None:
        found = [identity_of(pod) for pod in informer.objects.values() if not has_ended(pod)]
        owners.update_pods((one.uids, Owner(one.job, one.name, one.namespace)) for one in found)

    informer = Informer(api, POD, told, fields=f"spec.nodeName={node}")
    return informer


def _run_until_left(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Runs a task that is ended, and waited for, when the stack is left."""
    task = asyncio.create_task(work)

    async def cancelled() -> None:
        task.cancel()
        await asyncio.wait([task])

    stack.push_async_callback(cancelled)


@dataclass(slots=True)
class NodeClient:
    """What an agent and its cluster tell each other."""

    owners: PodOwners
    annotator: NodeAnnotator
    pods: Informer[objects.Pod]
    kubelet_socket: Path
    _silent: bool = False

    async def report(self, usage: NodeUsage) -> None:
        """Writes on the node what its GPUs are and do, and for which pods; with the next report if that fails."""
        await self._ask_kubelet()
        uids = {key: pod.metadata.uid for key, pod in self.pods.objects.items()}
        try:
            await self.annotator.write(node_annotations(usage, uids))
        except ApiError as error:
            _log.warning("cannot annotate the node: %s", error)

    async def _ask_kubelet(self) -> None:
        """The second source: for GPUs whose processes cannot be seen."""
        if importlib.util.find_spec("grpc") is None or not self.kubelet_socket.exists():
            return
        try:
            self.owners.update_assigned(await asyncio.to_thread(query_kubelet, self.kubelet_socket))
            self._silent = False
        except KubeletUnavailable as error:
            if not self._silent:
                _log.warning("%s", error)
            self._silent = True


def health_problems(log: Path, state: Path) -> list[Problem]:
    """What is wrong with a kernel log that an agent is to read, and with where it remembers how far."""
    found = log_problems("--kernel-log", log, "as root, or for /dev/kmsg with CAP_SYSLOG")
    folder = next(one for one in (state, *state.parents) if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        found.append(Problem(f"--state: {state} cannot be written", fix="name a folder that lasts"))
    return found


def report_health(
    stack: AsyncExitStack, log: Path, state: Path, client: NodeClient, usage: Callable[[], NodeUsage]
) -> None:
    """Begins to read a kernel log and figures of GPUs, and to tell the operator, until the stack is left."""
    try:
        queue = stack.enter_context(KernelLogQueue(state / LOG_QUEUE_FILE, open_kernel_log(log), time.time))
    except (QueueBusy, OSError) as error:
        raise InputError.of(f"--state: {error}", fix="one agent per node; name a folder that lasts") from None

    def whose(pid: int | None, gpu: int | None) -> tuple[Owner, ...]:
        owner = client.owners.of(pid) if pid is not None else None
        if owner is not None:
            return (owner,)
        return tuple(one for used in usage().gpus if used.index == gpu for one in used.owners)

    addresses = PciAddresses(state / ADDRESSES_FILE, partial(nvml_addresses, usage))
    publish = partial(_annotate, client.annotator)
    notes = HealthNotesPublisher(KernelNotes(queue, addresses, whose), partial(publish, names.HEALTH_NOTES))
    figures = HealthFiguresPublisher(NvmlReader(usage), partial(publish, names.HEALTH_FIGURES))
    _run_until_left(stack, _repeat(notes.turn, KERNEL_LOG_INTERVAL_S, "the kernel log"))
    _run_until_left(stack, _repeat(figures.turn, NVML_INTERVAL_S, "the health of GPUs"))


async def _annotate(annotator: NodeAnnotator, name: str, text: str) -> int:
    """Writes an annotation of the node; the answer has what the operator wrote beside it."""
    changed = await annotator.write({name: text})
    return read_seen(changed.metadata.annotations.get(names.HEALTH_SEEN, ""))


async def _repeat(turn: Callable[[], Awaitable[None]], every_s: float, what: str) -> None:
    """Until it is cancelled. What fails is tried again: an agent outlives its log and its API server."""
    while True:
        try:
            await turn()
        except (ApiError, OSError) as error:
            _log.warning("cannot tell of %s: %s", what, error)
        await asyncio.sleep(every_s)


class HealthFiguresPublisher:
    """Keeps the node's annotation as the GPUs are. A level: nothing is lost when a text is skipped."""

    def __init__(self, read: Callable[[], Mapping[int, Values]], publish: Publish) -> None:
        """`read` returns the figures of all GPUs by their numbers; it waits for the driver."""
        self._read, self._publish = read, publish
        self._published = ""
        self._temperatures: dict[int, int] = {}

    async def turn(self) -> None:
        """Looks once, and tells what is new."""
        found = await asyncio.to_thread(self._read)
        text = write_figures({gpu: self._steadied(gpu, values) for gpu, values in found.items()})
        if found and text != self._published:
            await self._publish(text)
            self._published = text

    def _steadied(self, gpu: int, values: Values) -> Values:
        now_c = values.get(Figure.TEMPERATURE)
        if now_c is None:
            return values
        told_c = self._temperatures.get(gpu)
        if told_c is None or abs(now_c - told_c) >= _STEADY_C:
            told_c = self._temperatures[gpu] = now_c
        return {**values, Figure.TEMPERATURE: told_c}


class KernelNotes:
    """Kernel log lines that the operator has not acknowledged. The queue keeps them over restarts."""

    def __init__(self, queue: KernelLogQueue, addresses: PciAddresses, whose: FindOwners) -> None:
        self._queue, self._addresses, self._whose = queue, addresses, whose
        self._told: dict[int, NodeNote] = {}  # by number: looked up while the process that was hit may still be there

    def look(self) -> tuple[NodeNote, ...]:
        """Reads the log on; the oldest notes that are not dealt with. Not for the event loop: it waits."""
        self._addresses.look()
        self._queue.collect()
        for sentence in self._queue.missed:
            _log.warning("kernel log: %s", sentence)
        waiting = self._queue.waiting[:MOST_NOTES]
        told = {one.number: self._told.get(one.number) or self._note(one) for one in waiting}
        self._told = {number: note for number, note in told.items() if note is not None}
        return tuple(self._told.values())

    def done(self, number: int) -> None:
        """Notes up to this number are dealt with."""
        self._queue.done(number)

    def _note(self, note: QueuedLine) -> NodeNote | None:
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


class HealthNotesPublisher:
    """Keeps the node's annotation as the queue is. One turn after another, from one task."""

    def __init__(self, notes: KernelNotes, publish: Publish, clock: Callable[[], float] = time.monotonic) -> None:
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
