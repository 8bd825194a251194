"""`batuta device-plugin`: the node's cards, the kubelet, and the API server, put together."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batuta.bootstrap.kube import check_extra
from batuta.spec.problem import InputError, Problem

if TYPE_CHECKING:
    from batuta.backends.kube.client.api import Api
    from batuta.gpu.device_plugin.outfit import Basics, Outfit
    from batuta.gpu.device_plugin.stock import Card, Stock
    from batuta.gpu.mps.capability import Mode

_log = logging.getLogger("batuta.device_plugin")
_MOST_PERCENT: Final = 1000
_TRY_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class DevicePluginOptions:
    """What `batuta device-plugin` was told."""

    node: str
    mode: str = "auto"
    kubeconfig: Path | None = None
    context: str | None = None
    kubelet_folder: Path = Path("/var/lib/kubelet/device-plugins")
    state: Path = Path("/var/lib/batuta/share")
    library: Path | None = None
    """The compiled share library; None: it is compiled here."""
    vgpu: Path | None = None
    """Virtual GPUs that containers shall find."""
    pass_device_files: bool = False
    memory_percent: int = 100
    compute_percent: int = 100

    def problems(self) -> list[Problem]:
        """All that is wrong with it."""
        found = [
            Problem(f"--{name}: from 100 to {_MOST_PERCENT} percent, not {value}")
            for name, value in (("memory", self.memory_percent), ("compute", self.compute_percent))
            if not 100 <= value <= _MOST_PERCENT
        ]
        if not self.node:
            found.append(Problem("which node is this?", fix="name it: --node, or $NODE_NAME in a DaemonSet"))
        if not self.kubelet_folder.is_dir():
            found.append(
                Problem(
                    f"{self.kubelet_folder} is no folder", fix="--kubelet-dir names the kubelet's plugins"
                )
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
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    from batuta.backends.kube.client.errors import AccessError
    from batuta.gpu.device_plugin.health import NoGpus

    try:
        return asyncio.run(_run(options))
    except NoGpus as error:
        raise InputError.of(
            str(error), fix="a node without GPUs needs no plugin; virtual ones: batuta vgpu run FILE -- …"
        ) from None
    except AccessError as error:
        raise InputError.of(str(error)) from None


async def _run(options: DevicePluginOptions) -> int:
    from batuta.backends.kube.client.api import Api
    from batuta.backends.kube.client.find import find_access
    from batuta.bootstrap.device_plugin_orders import heed_operator
    from batuta.bootstrap.device_plugin_pods import NodePods
    from batuta.gpu.device_plugin.clerk import Clerk
    from batuta.gpu.device_plugin.health import NvmlCards, watch_health
    from batuta.gpu.device_plugin.plugin import DevicePlugin
    from batuta.gpu.device_plugin.stock import Generosity, Stock

    access = await find_access(options.kubeconfig, options.context)
    async with AsyncExitStack() as stack:
        cards = stack.enter_context(NvmlCards())
        stock = Stock(cards.look(), Generosity(options.memory_percent, options.compute_percent))
        outfit = _outfit(options, stock.cards)
        api = await stack.enter_async_context(Api(access, manager="batuta-device-plugin"))
        clerk = Clerk(options.kubelet_folder, stock, NodePods(api, options.node), outfit)
        plugin = DevicePlugin(stock, clerk, options.kubelet_folder)
        ended = _end_by_signal()
        # First, so that nobody has to guess from the kubelet's sums how many cards they are of. But a kubelet
        # does not have to wait for an API server that is not there.
        with suppress(TimeoutError):
            await asyncio.wait_for(_tell(api, options.node, stock), _TRY_AGAIN_S)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(plugin.run()),
                tasks.create_task(watch_health(cards, stock)),
                tasks.create_task(heed_operator(api, options.node, cards.withhold)),
                tasks.create_task(_keep_told(api, options.node, stock)),
            ]
            await ended.wait()
            for task in running:
                task.cancel()
    return 0


def _end_by_signal() -> asyncio.Event:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _keep_told(api: Api, node: str, stock: Stock) -> None:
    """Writes on the node how its cards are, at the start and after each change."""
    async for _ in stock.watch():
        while not await _tell(api, node, stock):
            await asyncio.sleep(_TRY_AGAIN_S)


async def _tell(api: Api, node: str, stock: Stock) -> bool:
    from batuta.backends.kube.client.errors import ApiError
    from batuta.bootstrap.device_plugin_pods import tell_cards

    try:
        await tell_cards(api, node, stock.cards, stock.generosity)
    except ApiError as error:
        _log.warning("cannot write on node %s how its GPUs are: %s", node, error)
        return False
    return True


def _outfit(options: DevicePluginOptions, cards: Sequence[Card]) -> Outfit:
    """How shares are held on this node."""
    from batuta.gpu.device_plugin.mps_outfit import MpsOutfit
    from batuta.gpu.device_plugin.outfit import PreloadOutfit
    from batuta.gpu.mps.capability import Mode, detect
    from batuta.gpu.mps.daemon import MpsDaemon
    from batuta.gpu.share.build import share_library

    can = detect()
    mode = can.choose(Mode(options.mode))
    _log.info("%d GPUs, shares are held by %s", len(cards), _words(mode))
    basics = _basics(options)
    if mode is Mode.PRELOAD:
        return PreloadOutfit(options.state, options.library or share_library(), basics)
    daemons = {
        card.uuid: MpsDaemon(card.uuid, card.memory_mib, options.state / "mps" / card.uuid, can.mps_protocol)
        for card in cards
    }
    return MpsOutfit(daemons, basics, can.regions if mode is Mode.DMEM else None)


def _words(mode: Mode) -> str:
    return {
        "dmem": "the kernel (memory) and MPS (compute)",
        "mps": "MPS",
        "preload": "Batuta's library in each container",
    }[mode]


def _basics(options: DevicePluginOptions) -> Basics:
    """What containers get besides their limits: device files, or the libraries of virtual GPUs."""
    from batuta.gpu.device_plugin.messages import Mount
    from batuta.gpu.device_plugin.outfit import Basics
    from batuta.gpu.vgpu.build import build
    from batuta.gpu.vgpu.environment import VARIABLE

    dev = Path("/dev") if options.pass_device_files else None
    if options.vgpu is None:
        return Basics(dev)
    file = str(options.vgpu.resolve())
    libraries = (
        Mount(f"{folder}/{library.name}", str(library), True)
        for folder in _LOADER_FOLDERS
        for library in sorted(build().glob("*.so.1"))
    )
    return Basics(dev, {VARIABLE: file}, (*libraries, Mount(file, file)))


_LOADER_FOLDERS: Final = ("/usr/lib", "/usr/lib64")
"""Where the loader of a container looks without being told: Debian's and Red Hat's."""
