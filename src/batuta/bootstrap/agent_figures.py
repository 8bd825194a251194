"""An agent's second part in health: what NVML says of its GPUs, told when it has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.health.told_figures import write_figures
from batuta.core.health_figures import Figure, Values
from batuta.gpu.health.nvml_figures import NoNvml, NvmlFigures
from batuta.gpu.profiler.usage import NodeUsage

LOOK_EVERY_S: Final = 10.0
"""Figures change slowly, and what cannot wait the driver writes into the kernel log."""
_STEADY_C: Final = 3
"""A temperature that differs by less from what was told is not told again: each time is a write."""
_log = logging.getLogger("batuta.agent")

ReadFigures: TypeAlias = Callable[[], Mapping[int, Values]]
"""The figures of all GPUs by their numbers; it waits for the driver."""


class NvmlReader:
    """Asks NVML about the GPUs of the first look: one that it does not know any more counts as lost."""

    def __init__(self, usage: Callable[[], NodeUsage]) -> None:
        self._usage = usage
        self._figures: NvmlFigures | None = None
        self._numbers: tuple[int, ...] = ()

    def __call__(self) -> Mapping[int, Values]:
        gpus = self._usage().gpus
        if self._figures is None and gpus:
            try:
                self._figures = NvmlFigures({"": [gpu.uuid for gpu in gpus]})
            except NoNvml as error:
                _log.warning("NVML does not tell how GPUs are: %s", error)
                return {}
            self._numbers = tuple(gpu.index for gpu in gpus)
        if self._figures is None:
            return {}
        return {self._numbers[place]: values for (_, place), values in self._figures.read().items()}


class FigureTeller:
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
                _log.warning("cannot tell of the health of GPUs: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)


def figures_publisher(api: Api, node: str) -> Callable[[str], Awaitable[None]]:
    """Writes the annotation of a node."""

    async def publish(text: str) -> None:
        await api.patch(NODE, node, {"metadata": {"annotations": {names.HEALTH_FIGURES: text}}})

    return publish
