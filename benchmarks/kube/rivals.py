"""The schedulers that are compared: each a process of its own, on a cluster that is there already."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from batuta.backends.kube import names
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options, scheduler_flags
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.ports import free_ports
from tests.support.kube.processes import RunningProgram

GANG_GATES: Mapping[str, bool] = {"GenericWorkload": True, "GangScheduling": True}
_NO_THROTTLE = ("--kube-api-qps=5000", "--kube-api-burst=5000")
"""By default kube-scheduler sends no more than 50 requests a second, which would be all that one measures."""
OWN = Path(sys.executable).with_name("batuta")


class Rival(Protocol):
    """A scheduler that pods may name."""

    name: str
    scheduler_name: str

    def running(self, cluster: ControlPlane, folder: Path) -> AbstractContextManager[RunningProgram]:
        """Starts it; it ends with the block."""
        ...


class Batuta:
    """`batuta operator` with all plugins, its default policy and a journal in an empty folder."""

    name = "batuta"
    scheduler_name = names.SCHEDULER

    def __init__(self, program: Path = OWN) -> None:
        self._program = program

    @contextmanager
    def running(self, cluster: ControlPlane, folder: Path) -> Iterator[RunningProgram]:
        operator = OperatorProcess(cluster, folder, program=self._program)
        try:
            operator.start(wait=False)
            assert operator.program is not None
            yield operator.program
        finally:
            operator.__exit__()


class KubeScheduler:
    """kube-scheduler of the same build as the API server, with its default plugins."""

    name = "kube-scheduler"
    scheduler_name = "default-scheduler"

    def __init__(self, gates: Mapping[str, bool] | None = None) -> None:
        self._options = Options(feature_gates=gates or {}, scheduler_flags=_NO_THROTTLE)

    @contextmanager
    def running(self, cluster: ControlPlane, folder: Path) -> Iterator[RunningProgram]:
        (port,) = free_ports(1)
        words = scheduler_flags(self._options, cluster.access, port)
        program = cluster.run(self.name, *words)
        try:
            yield program
        finally:
            cluster.programs.stop(self.name, gracefully=True)
