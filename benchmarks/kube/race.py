"""One run of one scheduler: pods that wait are there, it starts, the API server shows when each is bound."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.informer import Change, ChangeType, Informer
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.objects import Pod
from benchmarks.kube import load
from benchmarks.kube.rivals import Rival
from tests.support.kube.control_plane import ControlPlane

GPUS_PER_NODE = 8
LONGEST_S = 900.0


@dataclass(frozen=True, slots=True)
class Race:
    """What one run took. The process starts when the pods are there; its start-up is in all but `rate`."""

    pods: int
    first_s: float
    """From the start of the process to the first binding."""
    last_s: float
    """From the start of the process to the last binding."""
    cpu_s: float
    """Of the process, from its start to the last binding."""
    plane_cpu_s: float
    """Of API server, etcd and KWOK together, in the same time."""
    rss_mib: float
    idle_percent: float
    """CPU of the process once all is done, in per cent of a core; 0 where nobody waited for that."""

    @property
    def rate(self) -> float:
        """Pods bound a second, between the first binding and the last."""
        return self.pods / max(self.last_s - self.first_s, 1e-3)

    @property
    def cpu_ms_per_pod(self) -> float:
        return 1000 * self.cpu_s / self.pods


def race(cluster: ControlPlane, rival: Rival, count: int, gang: int = 0, settle_s: float = 0.0) -> Race:
    """Has a scheduler bind so many pods. Its memory is read `settle_s` later, and then what it does idle."""
    with (
        tempfile.TemporaryDirectory(prefix="batuta-race-") as folder,
        load.pods(cluster, rival.scheduler_name, count, gang) as namespace,
    ):
        found = asyncio.run(_run(cluster, rival, namespace, count, Path(folder), settle_s))
        load.check(cluster, namespace, GPUS_PER_NODE)
        return found


async def _run(cluster: ControlPlane, rival: Rival, namespace: str, count: int, folder: Path, settle_s: float) -> Race:
    async with Api(await find_access(cluster.kubeconfig_path)) as api, asyncio.timeout(LONGEST_S):
        arrivals = Arrivals(count)
        informer = Informer(api, POD, arrivals.note, namespace=namespace, fields="spec.nodeName!=")
        watching = asyncio.create_task(informer.run())
        await informer.synced.wait()
        plane_cpu_s, begun_s = -_plane_cpu_s(cluster), time.monotonic()
        with rival.running(cluster, folder) as program:
            await arrivals.all_there.wait()
            cpu_s = program.cpu_s()
            plane_cpu_s += _plane_cpu_s(cluster)
            await asyncio.sleep(settle_s)
            rss_mib, idle_cpu_s = program.rss_mib(), -program.cpu_s()
            await asyncio.sleep(settle_s)
            idle_cpu_s += program.cpu_s()
        watching.cancel()
    first_s, last_s = arrivals.first_s - begun_s, arrivals.last_s - begun_s
    idle_percent = 100 * idle_cpu_s / settle_s if settle_s else 0.0
    return Race(count, first_s, last_s, cpu_s, plane_cpu_s, rss_mib, idle_percent)


def _plane_cpu_s(cluster: ControlPlane) -> float:
    return sum(cluster.programs[name].cpu_s() for name in ("kube-apiserver", "etcd", "kwok"))


class Arrivals:
    """Counts pods that get a node: they come into the view of a watch of such pods."""

    def __init__(self, count: int) -> None:
        self.all_there = asyncio.Event()
        self.first_s = self.last_s = 0.0
        self._left = count

    def note(self, changes: Sequence[Change[Pod]]) -> None:
        new = sum(change.did is ChangeType.ADDED for change in changes)
        if not new:
            return
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self._left -= new
        if self._left <= 0:
            self.all_there.set()
