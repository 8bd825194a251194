"""Trying out on a GPU, real or virtual, whether limits hold: the table of `batuta share selftest`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.devices import Device
from batuta.gpu.share.build import share_library, share_probe
from batuta.gpu.share.limits import LIMITS_PATH, DeviceLimit, ShareLimits, write_limits
from batuta.gpu.share.preload import share_environment
from batuta.spec.problem import InputError

MOST_ERROR_POINTS = 3.0
_MEMORY_MIB = 512
_LOAD_S = 4.0
_WITHIN_S = 120.0
_UNIFORM, _MIXED = "250", "20,100,400,2000"
_FINE = ("holds", "absent")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    subject: str
    verdict: str
    """In words: what came of it."""
    holds: bool


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where it is tried: a GPU, and a folder for the files."""

    device: Device
    folder: Path
    variables: Mapping[str, str]

    def container(self, name: str, limit: DeviceLimit) -> tuple[dict[str, str], ShareLimits]:
        """The environment of a container that is made for the occasion."""
        home = self.folder / name
        (self.folder / "cards").mkdir(exist_ok=True)
        limits = ShareLimits(name, home / "region", (limit,), self.folder / "cards")
        write_limits(home / "limits", limits)
        chosen = {"CUDA_VISIBLE_DEVICES": self.device.uuid}
        added = share_environment(home / "limits", share_library(), self.variables)
        return {**self.variables, **chosen, **added}, limits

    def start(self, env: Mapping[str, str], *words: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [share_probe(), *map(str, words)], env=dict(env), stdout=pipe, stderr=pipe, text=True
        )


def run_selftest(device: Device, variables: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Tries everything on this GPU. Takes half a minute; nobody else should use the GPU meanwhile."""
    if LIMITS_PATH.exists():
        raise InputError.of(
            f"this machine has limits of its own in {LIMITS_PATH}, and no others count",
            fix="try it where there are none",
        )
    with tempfile.TemporaryDirectory(prefix="batuta-share-") as folder:
        bench = _Bench(device, Path(folder), os.environ if variables is None else variables)
        memory_mib = min(_MEMORY_MIB, device.memory_mib // 4)
        env, limits = bench.container("memory", DeviceLimit(device.uuid, memory_mib))
        yield from _table(bench, env, "entries")
        yield from _table(bench, env, "launches", limits.region)
        yield from _shares(bench)


def _table(bench: _Bench, env: Mapping[str, str], *words: object) -> Iterator[Check]:
    """One check for each entry point, over all ways to it."""
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for line in _finish(bench.start(env, *words), allowed=(0, 1)):
        entry, way, verdict, _ = line.split("\t")
        verdicts.setdefault(entry, []).append((way, verdict))
    for entry, found in verdicts.items():
        wrong = [f"{way}: {verdict}" for way, verdict in found if verdict not in _FINE]
        present = sum(verdict == "holds" for _, verdict in found)
        said = "; ".join(wrong) or (f"holds, by {present} ways" if present else "absent from this driver")
        yield Check(entry, said, not wrong)


def _shares(bench: _Bench) -> Iterator[Check]:
    """Shares of device time, alone and with a neighbour."""
    for percent, lengths, name in (
        (30, _UNIFORM, "uniform"),
        (50, _MIXED, "mixed"),
        (70, _UNIFORM, "uniform"),
    ):
        limit = DeviceLimit(bench.device.uuid, compute_percent=percent)
        yield from _measured(bench, [(limit, lengths, percent)], f"{percent} %, {name} kernels")
    pair = [
        (DeviceLimit(bench.device.uuid, compute_percent=percent), _UNIFORM, percent) for percent in (30, 50)
    ]
    yield from _measured(bench, pair, "30 % beside 50 %")
    # A card that is idle is the container's; how exactly is no matter of limits.
    alone = DeviceLimit(bench.device.uuid, soft_compute_percent=30)
    yield from _measured(bench, [(alone, _UNIFORM, 100)], "soft 30 %, alone", most_points=10.0)


def _measured(
    bench: _Bench,
    tenants: Sequence[tuple[DeviceLimit, str, int]],
    subject: str,
    most_points: float = MOST_ERROR_POINTS,
) -> Iterator[Check]:
    running = []
    for number, (limit, lengths, wanted) in enumerate(tenants):
        env, _ = bench.container(f"{subject.replace(' ', '-')}-{number}", limit)
        running.append((wanted, bench.start(env, "load", _LOAD_S, lengths, "queued")))
    for wanted, process in running:
        got = 100 * float(_finish(process)[-1].rpartition(" ")[2])
        off = abs(got - wanted) > most_points
        yield Check(subject, f"{got:.1f} % of device time, {wanted} % given", not off)


def _finish(process: subprocess.Popen[str], allowed: Sequence[int] = (0,)) -> list[str]:
    try:
        said, complaints = process.communicate(timeout=_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise InputError.of(f"the probe has not finished in {_WITHIN_S:.0f} s") from error
    if process.returncode not in allowed:
        raise InputError.of(f"the probe failed: {complaints.strip() or process.returncode}")
    return said.splitlines()
