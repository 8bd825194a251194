"""`batuta device-plugin`: offers shares of the node's GPUs to the kubelet."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.gpu_table import unhealthy_gpus
from batuta.backends.kube.binder.requests import amount, whole
from batuta.backends.kube.bounded_text import read_gpus, read_time, read_whole
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.bootstrap.kube import check_extra
from batuta.bootstrap.serving import call_at_signals, log_plainly
from batuta.gpu.device_plugin.allocation import ContainerRequest, PodsUnavailable, SharePod
from batuta.gpu.device_plugin.inventory import Overcommit, Resource
from batuta.spec.problem import InputError, Problem

if TYPE_CHECKING:
    from batuta.gpu.device_plugin.inventory import DeviceInventory

_log = logging.getLogger("batuta.device_plugin")
_MOST_PERCENT: Final = 1000
_TRY_AGAIN_S: Final = 5.0
_SIDECAR: Final = "Always"


@dataclass(frozen=True, slots=True)
class DevicePluginOptions:
    """What `batuta device-plugin` was told."""

    node: str
    mode: str = "auto"
    kubeconfig: Path | None = None
    context: str | None = None
    kubelet_folder: Path = Path("/var/lib/kubelet/device-plugins")
    state: Path = Path("/var/lib/batuta/share")
    library: Path | None = None  # the compiled share library; None: it is compiled here
    vgpu: Path | None = None  # virtual GPUs that containers shall find
    pass_device_files: bool = False
    memory_percent: int = 100
    compute_percent: int = 100

    def problems(self) -> list[Problem]:
        found = [
            Problem(f"--{name}: from 100 to {_MOST_PERCENT} percent, not {value}")
            for name, value in (("memory", self.memory_percent), ("compute", self.compute_percent))
            if not 100 <= value <= _MOST_PERCENT
        ]
        if not self.node:
            found.append(Problem("which node is this?", fix="name it: --node, or $NODE_NAME in a DaemonSet"))
        if not self.kubelet_folder.is_dir():
            found.append(
                Problem(f"{self.kubelet_folder} is no folder", fix="--kubelet-dir names the kubelet's plugins")
            )
        for option, path in (("--library", self.library), ("--vgpu", self.vgpu)):
            if path is not None and not path.is_file():
                found.append(Problem(f"{option}: {path} is no file"))
        return found


def serve_devices(options: DevicePluginOptions) -> int:
    """Runs a device plugin until it is told to end; returns the exit code."""
    check_extra()
    if importlib.util.find_spec("grpc") is None:
        raise InputError.of("the device plugin needs grpcio", fix="pip install 'batuta[kube,node]'")
    if problems := options.problems():
        raise InputError(problems)
    log_plainly()
    from batuta.backends.kube.client.errors import AccessError
    from batuta.gpu.device_plugin.inventory import NoGpus

    try:
        return asyncio.run(_run(options))
    except NoGpus as error:
        raise InputError.of(
            str(error), fix="a node without GPUs needs no plugin; virtual ones: batuta vgpu run FILE -- …"
        ) from None
    except AccessError as error:
        raise InputError.of(str(error)) from None


async def _run(options: DevicePluginOptions) -> int:
    from batuta.backends.kube.client.access import find_access
    from batuta.gpu.device_plugin.enforcement import container_spec, make_enforcer
    from batuta.gpu.device_plugin.inventory import DeviceInventory, NvmlCards, watch_health
    from batuta.gpu.device_plugin.server import Allocator, DevicePlugin
    from batuta.gpu.share.mps import EnforcementMode

    access = await find_access(options.kubeconfig, options.context)
    async with AsyncExitStack() as stack:
        cards = stack.enter_context(NvmlCards())
        stock = DeviceInventory(cards.look(), Overcommit(options.memory_percent, options.compute_percent))
        spec = container_spec(options.vgpu, pass_device_files=options.pass_device_files)
        enforcer = make_enforcer(EnforcementMode(options.mode), options.state, options.library, spec, stock.cards)
        api = await stack.enter_async_context(Api(access, manager="batuta-device-plugin"))
        allocator = Allocator(options.kubelet_folder, stock, partial(list_pods, api, options.node), enforcer)
        plugin = DevicePlugin(stock, allocator, options.kubelet_folder)
        ended = asyncio.Event()
        call_at_signals(ended.set)
        # First, so that the operator need not guess the cards from the kubelet's sums. But a kubelet
        # does not have to wait for an API server that is not there.
        with suppress(TimeoutError):
            await asyncio.wait_for(_tell(api, options.node, stock), _TRY_AGAIN_S)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(plugin.run()),
                tasks.create_task(watch_health(cards, stock)),
                tasks.create_task(follow_operator(api, options.node, cards.withhold)),
                tasks.create_task(_keep_told(api, options.node, stock)),
            ]
            await ended.wait()
            for task in running:
                task.cancel()
    return 0


async def _keep_told(api: Api, node: str, stock: DeviceInventory) -> None:
    """Writes on the node how its cards are, at the start and after each change."""
    async for _ in stock.watch():
        while not await _tell(api, node, stock):
            await asyncio.sleep(_TRY_AGAIN_S)


async def _tell(api: Api, node: str, stock: DeviceInventory) -> bool:
    """Writes on the node what each card has to give, and which are ill; returns whether it was written."""
    told = [
        {
            "index": card.index,
            "uuid": card.uuid,
            "memory": stock.overcommit.units(card, Resource.MEMORY),
            "compute": stock.overcommit.units(card, Resource.COMPUTE),
            "illness": card.illness,
        }
        for card in stock.cards
    ]
    try:
        text = msgspec.json.encode(told).decode()
        await api.patch(NODE, node, {"metadata": {"annotations": {names.CARDS: text}}})
    except ApiError as error:
        _log.warning("cannot write on node %s how its GPUs are: %s", node, error)
        return False
    return True


async def follow_operator(api: Api, node: str, withhold: Callable[[Mapping[int, str]], None]) -> None:
    """Tells which GPUs of the node are out of service, whenever that changes, until it is cancelled."""
    known: dict[int, str] = {}

    def told(_: Any) -> None:
        nonlocal known
        annotations = [node.metadata.annotations for node in informer.objects.values()]
        found = {gpu: why for own in annotations for gpu, why in unhealthy_gpus(own).items()}
        if found != known:
            known = found
            withhold(found)

    informer: Informer[objects.Node] = Informer(api, NODE, told, fields=f"metadata.name={node}")
    await informer.run()


async def list_pods(api: Api, node: str) -> Sequence[SharePod]:
    """Asks the API server each time: an answer from memory may be older than what the kubelet knows."""
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    try:
        found = await api.list(POD, fields=fields)
    except ApiError as error:
        raise PodsUnavailable(f"the API server does not tell which pods there are: {error}") from error
    return [share_pod(pod) for pod in found.items]


def share_pod(pod: objects.Pod) -> SharePod:
    """What the device plugin knows of a pod; without containers where it wants no share."""
    meta = pod.metadata
    cards = read_gpus(meta.annotations)
    bound = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
    inits = [(one, one.restart_policy != _SIDECAR) for one in pod.spec.init_containers]
    shares = [
        ContainerRequest(one.name, _units(one, Resource.MEMORY), _units(one, Resource.COMPUTE), is_init=is_init)
        for one, is_init in [*inits, *((one, False) for one in pod.spec.containers)]
    ]
    return SharePod(
        meta.namespace,
        meta.name,
        meta.uid,
        card=cards[0] if cards else None,
        containers=tuple(one for one in shares if one.memory_units or one.compute_percent),
        bound_s=(read_time(bound.last_transition_time) if bound else None) or 0.0,
        version=read_whole(meta.resource_version, most=2**63 - 1) or 0,
        is_waiting=pod.status.phase in ("", "Pending"),
        is_soft=meta.annotations.get(names.SHARE_LIMITS, "") == "soft",
    )


def _units(container: objects.Container, resource: Resource) -> int:
    return whole(amount(container.resources.limits.get(resource, "0")))
