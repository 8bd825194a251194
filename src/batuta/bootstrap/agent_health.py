"""An agent's connection to its cluster, and the health of its GPUs as node annotations.

What the kernel log says of a GPU stays in the annotation until the operator has acknowledged it. What NVML
says is written when it has changed. The PCI addresses of GPUs are kept in a file: a GPU that has fallen off
the bus cannot be asked for its address any more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.agent import MANAGER, NodeAnnotator, has_ended, identity_of
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AccessError, ApiError
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import NODE, POD
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
from batuta.gpu.devices import NvmlUnavailable
from batuta.gpu.health.kernel_log import KernelLog, KmsgLog, LogFile, normalize_pci_address, parse_line
from batuta.gpu.health.log_queue import KernelLogQueue, QueueBusy, QueuedLine
from batuta.gpu.health.nvml_source import NvmlHealthSource
from batuta.gpu.owners import Owner
from batuta.gpu.pod_owners import KnownPod, KubeletUnavailable, PodOwners, query_kubelet
from batuta.gpu.profiler.export import node_annotations, pod_annotations
from batuta.gpu.profiler.usage import NodeUsage
from batuta.spec.problem import InputError, Problem

ADDRESSES_FILE: Final = "gpu-addresses.json"
_LOOKS: Final = 300
_log = logging.getLogger("batuta.agent")


class PciAddresses:
    """Asks NVML now and then, and whenever an address is not known; keeps what it once said in a file."""

    def __init__(self, path: Path, ask: Callable[[], Mapping[str, int]]) -> None:
        """`ask`: the addresses of the GPUs that can tell now, and their numbers."""
        self._path, self._ask = path, ask
        self._known = _read(path)
        self._looks = 0

    def look(self) -> None:
        """To be called all the time: while a GPU is on the bus, its address can be learned."""
        if self._looks % _LOOKS == 0 or not self._known:
            self._learn()
        self._looks += 1

    def index(self, pci: str) -> int | None:
        """The number of the GPU at an address; None where there never was one."""
        address = normalize_pci_address(pci)
        if address not in self._known:
            self._learn()
        return self._known.get(address)

    def _learn(self) -> None:
        told = {normalize_pci_address(address): gpu for address, gpu in self._ask().items()}
        taken = set(told.values())
        # After a boot without one of them, others may have its number.
        kept = {address: gpu for address, gpu in self._known.items() if gpu not in taken}
        found = kept | told
        if found != self._known:
            self._known = found
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(found), encoding="utf-8")
            os.replace(fresh, self._path)


def _read(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return {str(address): int(gpu) for address, gpu in json.loads(path.read_text("utf-8")).items()}
    return {}


def nvml_addresses(usage: Callable[[], NodeUsage]) -> Mapping[str, int]:
    """What NVML says now of the GPUs that were looked at; nothing where it does not answer."""
    gpus = usage().gpus
    try:
        found = NvmlHealthSource({"": [gpu.uuid for gpu in gpus]}).addresses().get("", [])
    except NvmlUnavailable as error:
        _log.warning("NVML does not tell where GPUs are: %s", error)
        return {}
    return {address: gpu.index for address, gpu in zip(found, gpus, strict=True) if address}


_SYNC_WITHIN_S = 5.0


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
    client = NodeClient(owners, NodeAnnotator(api, node), _informer(api, node, owners), kubelet_socket, api, node)
    watching = asyncio.create_task(client.pods.run())
    stack.push_async_callback(cancelled, watching)
    try:
        await asyncio.wait_for(client.pods.synced.wait(), _SYNC_WITHIN_S)
    except TimeoutError:
        _log.warning("the API server has not told the pods of %s yet: %s", node, client.pods.failure)
    return client


def _informer(api: Api, node: str, owners: PodOwners) -> Informer[objects.Pod]:
    def told(_: object) -> None:
        pods = [pod for pod in informer.objects.values() if not has_ended(pod)]
        owners.update_pods(_known(pod) for pod in pods)

    informer = Informer(api, POD, told, fields=f"spec.nodeName={node}")
    return informer


def _known(pod: objects.Pod) -> KnownPod:
    found = identity_of(pod)
    return KnownPod(found.uids, Owner(found.job, found.name, found.namespace))


async def cancelled(task: asyncio.Task[None]) -> None:
    """Ends a task, and waits until it has."""
    task.cancel()
    await asyncio.wait([task])


@dataclass(slots=True)
class NodeClient:
    """What an agent and its cluster tell each other."""

    owners: PodOwners
    scribe: NodeAnnotator
    pods: Informer[objects.Pod]
    kubelet_socket: Path
    api: Api
    node: str
    _silent: bool = False

    async def report(self, usage: NodeUsage) -> None:
        """Writes the annotations of the node and of its pods."""
        await self._ask_kubelet()
        found = {(owner.namespace, owner.pod): texts for owner, texts in pod_annotations(usage).items()}
        await self.scribe.write(node_annotations(usage), found, list(self.pods.objects.values()))

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


NVML_INTERVAL_S: Final = 10.0
"""Figures change slowly, and what cannot wait the driver writes into the kernel log."""
_STEADY_C: Final = 3
"""A temperature that differs by less from what was told is not told again: each time is a write."""

ReadFigures: TypeAlias = Callable[[], Mapping[int, Values]]
"""The figures of all GPUs by their numbers; it waits for the driver."""


class NvmlReader:
    """Asks NVML about the GPUs of the first look: one that it does not know any more counts as lost."""

    def __init__(self, usage: Callable[[], NodeUsage]) -> None:
        self._usage = usage
        self._figures: NvmlHealthSource | None = None
        self._numbers: tuple[int, ...] = ()

    def __call__(self) -> Mapping[int, Values]:
        gpus = self._usage().gpus
        if self._figures is None and gpus:
            try:
                self._figures = NvmlHealthSource({"": [gpu.uuid for gpu in gpus]})
            except NvmlUnavailable as error:
                _log.warning("NVML does not tell how GPUs are: %s", error)
                return {}
            self._numbers = tuple(gpu.index for gpu in gpus)
        if self._figures is None:
            return {}
        return {self._numbers[place]: values for (_, place), values in self._figures.read().items()}


class HealthFiguresPublisher:
    """Keeps the node's annotation as the GPUs are. A level: nothing is lost when a text is skipped."""

    def __init__(self, read: ReadFigures, publish: Callable[[str], Awaitable[None]]) -> None:
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

    async def run(self) -> None:
        """Until it is cancelled; what fails is tried again."""
        while True:
            try:
                await self.turn()
            except (ApiError, OSError) as error:
                _log.warning("cannot report the health of GPUs: %s", error)
            await asyncio.sleep(NVML_INTERVAL_S)


def figures_publisher(api: Api, node: str) -> Callable[[str], Awaitable[None]]:
    """Writes the annotation of a node."""

    async def publish(text: str) -> None:
        await api.patch(NODE, node, {"metadata": {"annotations": {names.HEALTH_FIGURES: text}}})

    return publish


LOG_QUEUE_FILE: Final = "health-ledger.json"
KERNEL_LOG_INTERVAL_S: Final = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Before the operator is asked again whether it has heard; it doubles."""

Publish: TypeAlias = Callable[[str], Awaitable[int]]
"""Makes a text the node's annotation; the number of the last note that is dealt with. Raises ApiError."""
FindOwners: TypeAlias = Callable[[int | None, int | None], tuple[Owner, ...]]
"""Who was hit, by the pid of a process, or else by the GPU."""


def log_problems(log: Path | None, state: Path) -> list[Problem]:
    """What is wrong with a kernel log that an agent is to read, and with where it remembers how far."""
    if log is None:
        return []
    found: list[Problem] = []
    if log.is_dir() or not (log.exists() or log.parent.is_dir()):
        found.append(Problem(f"--kernel-log: {log} is no file", fix="/dev/kmsg, or where the log is written"))
    elif log.exists() and not os.access(log, os.R_OK):
        found.append(Problem(f"--kernel-log: {log} may not be read", fix="as root, or for /dev/kmsg with CAP_SYSLOG"))
    folder = next(one for one in (state, *state.parents) if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        found.append(Problem(f"--state: {state} cannot be written", fix="name a folder that lasts"))
    return found


def open_kernel_log(path: Path) -> KernelLog:
    """The kernel's own device, or a file that a daemon writes."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return KmsgLog(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return LogFile(path)


def report_health(
    stack: AsyncExitStack,
    log: Path,
    state: Path,
    client: NodeClient,
    usage: Callable[[], NodeUsage],
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
    notes = KernelNotes(queue, addresses, whose)
    publishers = (
        HealthNotesPublisher(notes, notes_publisher(client.api, client.node)),
        HealthFiguresPublisher(NvmlReader(usage), figures_publisher(client.api, client.node)),
    )
    for publisher in publishers:
        stack.push_async_callback(cancelled, asyncio.create_task(publisher.run()))


class KernelNotes:
    """Kernel log lines that the operator has not acknowledged. The queue keeps them over restarts."""

    def __init__(self, queue: KernelLogQueue, addresses: PciAddresses, whose: FindOwners) -> None:
        self._queue, self._addresses, self._whose = queue, addresses, whose
        self._told: dict[int, NodeNote] = {}
        """By number: looked up while the process that was hit may still be there."""

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

    async def run(self) -> None:
        """Until it is cancelled. What fails is tried again: an agent outlives its log and its API server."""
        while True:
            try:
                await self.turn()
            except (ApiError, OSError) as error:
                _log.warning("cannot report errors from the kernel log: %s", error)
            await asyncio.sleep(KERNEL_LOG_INTERVAL_S)


def notes_publisher(api: Api, node: str) -> Publish:
    """Writes the annotation of a node; its answer has what the operator wrote beside it."""

    async def publish(text: str) -> int:
        body = {"metadata": {"annotations": {names.HEALTH_NOTES: text or None}}}
        changed = await api.patch(NODE, node, body)
        return read_seen(changed.metadata.annotations.get(names.HEALTH_SEEN, ""))

    return publish
