"""Batuta and kube-scheduler side by side on one API server with fake nodes: python -m benchmarks.kube.

Both are processes of their own and take turns; who begins changes from run to run. Pods are created before a
scheduler starts. All times are those of the API server: a watch says when a pod has got its node.
kube-scheduler's client is not throttled (5,000 requests a second), all else about it is the default.
With --beside, the `batuta` of another version takes its turn, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kube import latency
from benchmarks.kube.race import GPUS_PER_NODE, Race, race
from benchmarks.kube.rivals import GANG_GATES, Batuta, KubeScheduler
from benchmarks.measure import ratio_of, show, times
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import prepare

PARTS = ("singles", "gangs", "memory", "latency")
RATE_BAR, CPU_BAR, GANG_BAR, OWN_BAR, MEMORY_BAR = 2.0, 0.5, 0.5, 1.2, 1.0
GANG = 8
OTHER = "other version"
SETTLE_S = 10.0
COLUMNS = ("", "pods/s", "first s", "all bound s", "CPU ms/pod", "control plane CPU ms/pod", "MiB")
Entry = Callable[[ControlPlane], Race]


def main() -> None:
    options = _arguments()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {options.runs} runs in turns")
    for part in options.only or PARTS:
        match part:
            case "singles":
                singles(options.pods, options.nodes, options.runs, options.beside)
            case "gangs":
                gangs(options.pods * 4 // 5, options.nodes, options.runs, options.beside)
            case "memory":
                memory(2 * options.pods, 2 * options.nodes)
            case "latency":
                with _cluster(100) as cluster:
                    latency.measure(cluster, 4 * options.runs)


def singles(pods: int, nodes: int, runs: int, beside: Path | None) -> None:
    """Pods alone: pods a second and CPU per pod."""
    entries: dict[str, Entry] = {
        "batuta": lambda cluster: race(cluster, Batuta(), pods),
        "kube-scheduler": lambda cluster: race(cluster, KubeScheduler(), pods),
    }
    if beside is not None:
        entries[OTHER] = lambda cluster: race(cluster, Batuta(beside), pods)
    with _cluster(nodes) as cluster:
        found = _in_turns(cluster, entries, runs)
    ours, theirs = found["batuta"], found["kube-scheduler"]
    rate = ratio_of([one.rate for one in ours], [one.rate for one in theirs])
    whole = ratio_of([one.last_s for one in theirs], [one.last_s for one in ours])
    cpu = ratio_of([one.cpu_s for one in ours], [one.cpu_s for one in theirs])
    _show(
        f"{pods} pods on {nodes} nodes",
        found,
        f"pods/s: {times(rate, RATE_BAR, at_least=True)} kube-scheduler's (bar: ≥ {RATE_BAR} ×); "
        f"with the start of the process {times(whole)}",
        f"CPU per pod: {times(cpu, CPU_BAR)} kube-scheduler's (bar: ≤ {CPU_BAR} ×)",
        *_against_other(found, "batuta"),
    )


def gangs(pods: int, nodes: int, runs: int, beside: Path | None) -> None:
    """Gangs of eight: time until all are bound, against native gangs and against our own pods without."""
    entries: dict[str, Entry] = {
        "batuta, gangs": lambda cluster: race(cluster, Batuta(), pods, GANG),
        "kube-scheduler, gangs": lambda cluster: race(cluster, KubeScheduler(GANG_GATES), pods, GANG),
        "batuta, no gangs": lambda cluster: race(cluster, Batuta(), pods),
    }
    if beside is not None:
        entries[OTHER] = lambda cluster: race(cluster, Batuta(beside), pods, GANG)
    with _cluster(nodes, with_gangs=True) as cluster:
        found = _in_turns(cluster, entries, runs)
    took = {name: [one.last_s for one in races] for name, races in found.items()}
    theirs = ratio_of(took["batuta, gangs"], took["kube-scheduler, gangs"])
    own = ratio_of(took["batuta, gangs"], took["batuta, no gangs"])
    _show(
        f"{pods // GANG} gangs of {GANG} pods on {nodes} nodes",
        found,
        f"until all are bound: {times(theirs, GANG_BAR)} kube-scheduler's (bar: ≤ {GANG_BAR} ×)",
        f"… and {times(own, OWN_BAR)} our own without gangs (bar: ≤ {OWN_BAR} ×)",
        *_against_other(found, "batuta, gangs"),
    )


def _against_other(found: Mapping[str, Sequence[Race]], own: str) -> Iterator[str]:
    """How this version compares with the other one, where there is one."""
    if OTHER not in found:
        return
    ours, theirs = found[own], found[OTHER]
    rate = ratio_of([one.rate for one in ours], [one.rate for one in theirs])
    took = ratio_of([one.last_s for one in ours], [one.last_s for one in theirs])
    cpu = ratio_of([one.cpu_s for one in ours], [one.cpu_s for one in theirs])
    yield f"against the other version: {times(rate)} its pods/s, {times(took)} its time, {times(cpu)} its CPU"


def memory(pods: int, nodes: int) -> None:
    """Resident memory when so much is in the cache and all is done, once each."""
    entries: dict[str, Entry] = {
        "batuta": lambda cluster: race(cluster, Batuta(), pods, settle_s=SETTLE_S),
        "kube-scheduler": lambda cluster: race(cluster, KubeScheduler(), pods, settle_s=SETTLE_S),
    }
    with _cluster(nodes) as cluster:
        found = _in_turns(cluster, entries, 1)
    ours, theirs = found["batuta"][0].rss_mib, found["kube-scheduler"][0].rss_mib
    idle = ", ".join(f"{name} {races[0].idle_percent:.1f} %" for name, races in found.items())
    _show(
        f"{pods} pods on {nodes} nodes, {SETTLE_S:.0f} s after the last binding",
        found,
        f"memory: {times(ours / theirs, MEMORY_BAR)} kube-scheduler's (bar: ≤ {MEMORY_BAR} ×)",
        f"of a core, while nothing happens: {idle}",
    )


@contextmanager
def _cluster(nodes: int, with_gangs: bool = False) -> Iterator[ControlPlane]:
    options = Options(
        audit=False,
        feature_gates=GANG_GATES if with_gangs else {},
        runtime_config=["scheduling.k8s.io/v1alpha2=true"] if with_gangs else (),
    )
    with (
        tempfile.TemporaryDirectory(prefix="batuta-bench-") as folder,
        ControlPlane(Path(folder), options) as cluster,
    ):
        prepare(cluster)
        cluster.add_nodes(nodes, NodeShape(gpus=GPUS_PER_NODE))
        yield cluster


def _in_turns(cluster: ControlPlane, entries: Mapping[str, Entry], runs: int) -> dict[str, list[Race]]:
    """The runs of each; another one begins each time."""
    names = [*entries]
    found: dict[str, list[Race]] = {name: [] for name in names}
    for run in range(runs):
        begin = run % len(names)
        for name in (*names[begin:], *names[:begin]):
            one = entries[name](cluster)
            found[name].append(one)
            print(
                f"  run {run + 1}: {name}: {one.rate:.0f} pods/s, all bound after {one.last_s:.1f} s, "
                f"{one.cpu_ms_per_pod:.2f} CPU ms per pod",
                flush=True,
            )
    return found


def _show(title: str, found: Mapping[str, Sequence[Race]], *notes: str) -> None:
    def median(of: Callable[[Race], float], races: Sequence[Race]) -> float:
        return statistics.median(map(of, races))

    rows = [
        (
            name,
            f"{median(lambda one: one.rate, races):.0f}",
            f"{median(lambda one: one.first_s, races):.1f}",
            f"{median(lambda one: one.last_s, races):.1f}",
            f"{median(lambda one: one.cpu_ms_per_pod, races):.2f}",
            f"{median(lambda one: 1000 * one.plane_cpu_s / one.pods, races):.2f}",
            f"{median(lambda one: one.rss_mib, races):.0f}",
        )
        for name, races in found.items()
    ]
    show(title, COLUMNS, rows, notes)


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kube", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="how often each scheduler runs (5)")
    parser.add_argument("--pods", type=int, default=5000, help="pods with one GPU each (5000)")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes with 8 GPUs each (1000)")
    parser.add_argument("--beside", type=Path, help="a `batuta` of another version, in its own environment")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given several times")
    options = parser.parse_args()
    if options.runs < 1 or options.pods < GANG or options.pods > GPUS_PER_NODE * options.nodes:
        parser.error(f"needs at least 1 run, and {GANG} to {GPUS_PER_NODE} pods per node")
    return options


if __name__ == "__main__":
    main()
