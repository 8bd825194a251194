"""Containers on one virtual GPU, for the benchmarks of sharing: processes with limits, and what they get."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.native_libraries import share_library, share_probe, vgpu_environment
from batuta.gpu.share.cards import CardFolder
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, share_environment, write_limits
from batuta.gpu.vgpu.device_file import Machine, create_device_file, find_model
from batuta.gpu.vgpu.snapshot import read_gpus
from benchmarks.measure import DataMissing

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a container runs: kernels of these lengths, one after the other, without waiting for them."""

    lengths_us: str
    hard: int | None = None
    soft: int | None = None
    weight: int = 100
    how: str = "queued"


@dataclass(frozen=True, slots=True)
class Node:
    """A folder with one virtual GPU in it."""

    folder: Path

    @property
    def device_file(self) -> Path:
        return self.folder / "node.vgpu"

    @property
    def uuid(self) -> str:
        return read_gpus(self.device_file)[0].uuid

    def bare(self) -> dict[str, str]:
        """The environment without limits."""
        return vgpu_environment(self.device_file)

    def limited(self, container: str, limit: DeviceLimit, *, cards: bool = True) -> dict[str, str]:
        """The environment of a container."""
        home = self.folder / container
        folder = CardFolder(self.folder / "cards")
        limits = ShareLimits(container, home / "region", (limit,), folder.path if cards else None)
        write_limits(home / "limits", limits)
        if cards:
            folder.grant(limits)
        return self.bare() | share_environment(home / "limits", share_library())

    def run(self, env: dict[str, str], *words: object) -> str:
        """What the probe prints."""
        done = subprocess.run(
            [str(share_probe()), *map(str, words)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            raise RuntimeError(f"the probe failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def tenant(self, container: str, load: Load, length_s: float = PATIENCE_S) -> Iterator[int]:
        """A container that runs; its pid."""
        limit = DeviceLimit(self.uuid, None, load.hard, load.soft, load.weight)
        process = subprocess.Popen(
            [str(share_probe()), "load", str(length_s), load.lengths_us, load.how],
            env=self.limited(container, limit),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
            process.communicate()

    def busy_s(self) -> dict[int, float]:
        """Device time of each process so far, as the GPU has it."""
        return {one.pid: one.busy_ns / 1e9 for one in read_gpus(self.device_file)[0].processes}

    def shares(self, loads: Sequence[Load], warm_s: float, length_s: float) -> list[float]:
        """What each of several containers gets, in percent, when all run at once."""
        with ExitStack() as running:
            pids = [running.enter_context(self.tenant(f"tenant-{number}", load)) for number, load in enumerate(loads)]
            time.sleep(warm_s)
            return self.observed(pids, length_s)

    def observed(self, pids: Sequence[int], length_s: float) -> list[float]:
        """What each process gets from now on for so long, in percent."""
        begun_s, before = time.monotonic(), self.busy_s()
        time.sleep(length_s)
        passed_s, after = time.monotonic() - begun_s, self.busy_s()
        return [100 * (after[pid] - before[pid]) / passed_s for pid in pids]


@contextmanager
def node() -> Iterator[Node]:
    """A new one, gone afterwards."""
    if not hasattr(os, "memfd_create"):
        raise DataMissing("virtual GPUs need Linux")
    with tempfile.TemporaryDirectory(prefix="batuta-share-") as folder:
        made = Node(Path(folder))
        create_device_file(made.device_file, Machine(find_model("T4"), gpus=1))
        yield made
