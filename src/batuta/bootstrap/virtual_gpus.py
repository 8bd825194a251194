"""The virtual GPUs of local mode: for every node a device file, on which CUDA and NVML programs see its jobs.

Where they cannot be had, jobs run as they do without: GPUs are numbers in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from batuta.core.cluster import Node, NodeName
from batuta.gpu.vgpu.build import build
from batuta.gpu.vgpu.device_file import Machine, create
from batuta.gpu.vgpu.environment import environment
from batuta.gpu.vgpu.layout import DEVICES
from batuta.gpu.vgpu.models import MODELS, Model, find_model
from batuta.gpu.vgpu.snapshot import Gpu, read
from batuta.spec.problem import InputError

FOLDER = "vgpu"
"""Within the state directory."""
_MIB = 1 << 20
_MADE_AHEAD = 32
"""So many nodes have their files before anybody needs them: to make one takes some milliseconds."""
_PLAIN = replace(MODELS["T4"], name="Batuta virtual GPU", memory_bytes=16 << 30)
"""What a virtual GPU is like that is of no real model."""


def device_path(home: Path, node: NodeName) -> Path:
    """Where the GPUs of a virtual node live."""
    return home / FOLDER / f"{node}.vgpu"


def model_of(gpu_type: str) -> Model:
    """What virtual GPUs of a type pretend to be; one that no data sheet is known of has only its name."""
    try:
        return find_model(gpu_type)
    except InputError:
        return _PLAIN if gpu_type == "virtual" else replace(_PLAIN, name=gpu_type)


class VirtualGpus:
    """The device files of virtual nodes. A file is made when it is first needed, or ahead of that."""

    def __init__(self, home: Path, nodes: Sequence[Node]) -> None:
        self._home = home
        self._nodes = {node.name: node for node in nodes}
        self._libraries: Path | None = None
        self._made: dict[NodeName, tuple[str, ...]] = {}
        """By node: the UUIDs of its GPUs."""
        self._making = threading.Lock()

    def build(self) -> None:
        """Compiles the libraries, which takes seconds the first time; InputError where that cannot be."""
        most = max((node.gpus for node in self._nodes.values()), default=0)
        if most > DEVICES:
            raise InputError.of(f"programs can see {DEVICES} GPUs of a virtual node at most, it has {most}")
        self._libraries = build()

    @property
    def has_libraries(self) -> bool:
        """Whether programs can see these GPUs by now."""
        return self._libraries is not None

    def make_ahead(self) -> None:
        """Makes the files of the first nodes."""
        for node in list(self._nodes.values())[:_MADE_AHEAD]:
            with suppress(InputError, OSError):  # whoever needs it will be told
                self._make(node)

    def environment(self, node: NodeName, env: Mapping[str, str]) -> dict[str, str]:
        """`env`, in which programs find the node's virtual GPUs; as it was where there are none."""
        if self._libraries is None:
            return dict(env)
        self._make(self._nodes[node])
        return environment(device_path(self._home, node), env, self._libraries)

    def uuids(self, node: NodeName) -> tuple[str, ...]:
        """The GPUs of a node as NVML names them; nothing where there are none, or not yet."""
        return self._made.get(node, ())

    def read(self, node: NodeName) -> tuple[Gpu, ...]:
        """What the GPUs of a node are doing; nothing where there are none, or not yet."""
        return read(device_path(self._home, node)) if node in self._made else ()

    def _make(self, node: Node) -> None:
        """The file of a node: that of a former server, which jobs that still run have open, if it will do."""
        if node.name in self._made:
            return
        path, model = device_path(self._home, node.name), model_of(node.gpu_type)
        memory_bytes = node.gpu_memory_mib * _MIB
        # Of two who make it at once one would use a file that the other has replaced.
        with self._making:
            if not _is_as_wanted(path, node.gpus, model.name, memory_bytes):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                label = f"{os.path.realpath(self._home)}/{node.name}"
                create(path, Machine(model, node.gpus, memory_bytes, label=label), overwrite=True)
            self._made[node.name] = tuple(gpu.uuid for gpu in read(path))


def _is_as_wanted(path: Path, gpus: int, model: str, memory_bytes: int) -> bool:
    try:
        found = read(path)
    except InputError:
        return False
    return [(gpu.name, gpu.memory_bytes) for gpu in found] == [(model, memory_bytes)] * gpus
