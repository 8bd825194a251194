"""What local mode sees of a trial run: memory and load of its GPUs, and the end of its output."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from statistics import fmean

from batuta.backends.local.backend import LocalBackend
from batuta.bootstrap.local_nodes import LocalNodes
from batuta.bootstrap.virtual_gpus import VirtualGpus
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import JobId
from batuta.engine.trials.reading import Look
from batuta.gpu.profiler.sample import Source
from batuta.spec.problem import InputError

_log = logging.getLogger(__name__)
_TAIL_BYTES = 32 * 1024
_MOST_RANKS = 16
_Figures = tuple[float | None, float | None]
"""Memory in use, in MiB, and how busy: of one GPU."""


class LocalSight:
    """Looks at virtual GPUs by their files and at real ones by NVML, which is opened when it is needed."""

    def __init__(self, backend: LocalBackend, local: LocalNodes, virtual: VirtualGpus | None) -> None:
        self._backend = backend
        self._local = local
        self._virtual = virtual
        self._nvml: Source | None = None
        self._has_nvml = virtual is None

    def look(self, placement: Placement) -> Look:
        """The fullest memory and the mean load of these GPUs; nothing where they cannot be seen."""
        figures = [one for span in placement.spans for one in self._of_node(span.node, span.gpus)]
        memory = [mib for mib, _ in figures if mib is not None]
        busy = [share for _, share in figures if share is not None]
        return Look(round(max(memory)) if memory else None, fmean(busy) if busy else None)

    def output(self, run: JobId) -> str:
        """The end of each rank's log."""
        return "\n".join(self._tails(run))

    def _tails(self, run: JobId) -> Iterable[str]:
        for rank in self._backend.ranks(run)[:_MOST_RANKS]:
            try:
                with self._backend.log_path(run, rank).open("rb") as log:
                    log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                    yield log.read(_TAIL_BYTES).decode("utf-8", "replace")
            except OSError as error:
                _log.warning("what trial run %s printed cannot be read: %s", run, error)

    def _of_node(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        if self._virtual is None:
            return self._of_real(node, gpus)
        try:
            found = {gpu.index: gpu for gpu in self._virtual.read(node)}
        except InputError:
            return []  # somebody has removed the file
        return [(found[gpu].used_bytes / (1 << 20), found[gpu].utilization) for gpu in gpus if gpu in found]

    def _of_real(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        devices = self._local.devices.get(node, ())
        names = {str(devices[gpu]) for gpu in gpus if gpu < len(devices)}
        if self._nvml is None and self._has_nvml:
            self._nvml = _open_nvml()
            self._has_nvml = self._nvml is not None
        sample = self._nvml() if self._nvml is not None else None
        return [
            (gpu.memory_used_mib, gpu.utilisation)
            for gpu in (sample.gpus if sample is not None else ())
            if gpu.uuid in names
        ]


def _open_nvml() -> Source | None:
    from batuta.gpu.profiler.nvml import NoNvml, NvmlSource  # where there are virtual GPUs it is not needed

    try:
        return NvmlSource().__enter__()
    except NoNvml:
        return None
