"""Test on a GPU, real or virtual, whether limits hold: the table of `batuta share selftest`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.devices import Device
from batuta.gpu.native_libraries import share_library, share_probe
from batuta.gpu.share.cards import CardFolder
from batuta.gpu.share.limits import LIMITS_PATH, DeviceLimit, ShareLimits, share_environment, write_limits
from batuta.spec.problem import InputError

MAX_ERROR_POINTS = 3.0
_MEMORY_MIB = 512
_LOAD_S = 4.0
_WITHIN_S = 120.0
_UNIFORM, _MIXED = "250", "20,100,400,2000"
_FINE = ("holds", "absent")


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one test."""

    subject: str
    verdict: str
    holds: bool


@dataclass(frozen=True, slots=True)
class _TestGpu:
    """The GPU under test, and a folder for the files."""

    device: Device
    folder: Path
    variables: Mapping[str, str]

    def container(self, name: str, limit: DeviceLimit) -> tuple[dict[str, str], ShareLimits]:
        """Return the environment and limits of a container made for the test."""
        home = self.folder / name
        cards = CardFolder(self.folder / "cards")
        limits = ShareLimits(name, home / "region", (limit,), cards.path)
        write_limits(home / "limits", limits)
        cards.grant(limits)
        chosen = {"CUDA_VISIBLE_DEVICES": self.device.uuid}
        added = share_environment(home / "limits", share_library(), self.variables)
        return {**self.variables, **chosen, **added}, limits

    def start(self, env: Mapping[str, str], *arguments: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [share_probe(), *map(str, arguments)], env=dict(env), stdout=pipe, stderr=pipe, text=True
        )


def run_selftest(device: Device, variables: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Test everything on this GPU. It takes half a minute; no other program should use the GPU meanwhile."""
    if LIMITS_PATH.exists():
        raise InputError.of(
            f"this machine has limits of its own in {LIMITS_PATH}, and no others count",
            fix="try it where there are none",
        )
    with tempfile.TemporaryDirectory(prefix="batuta-share-") as folder:
        gpu = _TestGpu(device, Path(folder), os.environ if variables is None else variables)
        memory_mib = min(_MEMORY_MIB, device.memory_mib // 4)
        env, limits = gpu.container("memory", DeviceLimit(device.uuid, memory_mib))
        yield from _table(gpu, env, "entries")
        yield from _table(gpu, env, "launches", limits.region)
        yield from _shares(gpu)


def _table(gpu: _TestGpu, env: Mapping[str, str], *arguments: object) -> Iterator[Check]:
    """Yield one check for each entry point, over all ways to it."""
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for line in _finish(gpu.start(env, *arguments), allowed=(0, 1)):
        entry, way, verdict, _ = line.split("\t")
        verdicts.setdefault(entry, []).append((way, verdict))
    for entry, found in verdicts.items():
        wrong = [f"{way}: {verdict}" for way, verdict in found if verdict not in _FINE]
        present = sum(verdict == "holds" for _, verdict in found)
        text = "; ".join(wrong) or (f"holds, by {present} ways" if present else "absent from this driver")
        yield Check(entry, text, not wrong)


def _shares(gpu: _TestGpu) -> Iterator[Check]:
    """Test shares of device time, alone and with a neighbour."""
    for percent, lengths, name in ((30, _UNIFORM, "uniform"), (50, _MIXED, "mixed"), (70, _UNIFORM, "uniform")):
        limit = DeviceLimit(gpu.device.uuid, compute_percent=percent)
        yield from _measured(gpu, [(limit, lengths, percent)], f"{percent} %, {name} kernels")
    pair = [(DeviceLimit(gpu.device.uuid, compute_percent=percent), _UNIFORM, percent) for percent in (30, 50)]
    yield from _measured(gpu, pair, "30 % beside 50 %")
    # A card that is idle is the container's; how exactly is no matter of limits.
    alone = DeviceLimit(gpu.device.uuid, soft_compute_percent=30)
    yield from _measured(gpu, [(alone, _UNIFORM, 100)], "soft 30 %, alone", most_points=10.0)


def _measured(
    gpu: _TestGpu, tenants: Sequence[tuple[DeviceLimit, str, int]], subject: str, most_points: float = MAX_ERROR_POINTS
) -> Iterator[Check]:
    running = []
    for number, (limit, lengths, wanted) in enumerate(tenants):
        env, _ = gpu.container(f"{subject.replace(' ', '-')}-{number}", limit)
        running.append((wanted, gpu.start(env, "load", _LOAD_S, lengths, "queued")))
    for wanted, process in running:
        got = 100 * float(_finish(process)[-1].rpartition(" ")[2])
        off = abs(got - wanted) > most_points
        yield Check(subject, f"{got:.1f} % of device time, {wanted} % given", not off)


def _finish(process: subprocess.Popen[str], allowed: Sequence[int] = (0,)) -> list[str]:
    try:
        output, errors = process.communicate(timeout=_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise InputError.of(f"the probe has not finished in {_WITHIN_S:.0f} s") from error
    if process.returncode not in allowed:
        raise InputError.of(f"the probe failed: {errors.strip() or process.returncode}")
    return output.splitlines()
