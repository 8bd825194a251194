"""GPUs and processes as a test wants them, sample by sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.gpu.owners import Owner, Owners, ProcessWork
from batuta.gpu.profiler.profiler import Profiler, Timing
from batuta.gpu.profiler.sources import GpuSample, NodeSample, ProcessSample

A, B = Owner("a", "a-0", "team"), Owner("b", "b-0", "team")


def gpu(index: int = 0, busy: float | None = 0.0, *processes: ProcessSample, **more: object) -> GpuSample:
    return GpuSample(
        index,
        f"GPU-{index}",
        "A100",
        40_960,
        1000.0,
        busy,
        processes=processes,
        **more,  # type: ignore[arg-type]
    )


def process(pid: int, busy: float | None = None, memory_mib: float = 500.0) -> ProcessSample:
    return ProcessSample(pid, memory_mib, busy)


@dataclass
class Node(Owners):
    """A node whose owners, samples and processes are what the test says."""

    owned: dict[int, Owner] = field(default_factory=dict)
    given: dict[str, Owner] = field(default_factory=dict)
    work: dict[int, ProcessWork] = field(default_factory=dict)
    gpus: tuple[GpuSample, ...] = ()
    time_s: float = 1000.0

    def of(self, pid: int) -> Owner | None:
        return self.owned.get(pid)

    def by_gpu(self) -> Mapping[str, Owner]:
        return self.given

    def read_work(self, pid: int) -> ProcessWork | None:
        return self.work.get(pid, ProcessWork(pid, 1, 0.0))

    def profiler(self, timing: Timing | None = None) -> Profiler:
        return Profiler(
            lambda: NodeSample(self.time_s, self.gpus),
            self,
            node="n",
            timing=timing,
            read_work=self.read_work,
        )

    def run(self, profiler: Profiler, samples: int, *gpus: GpuSample) -> None:
        """So many samples, a second apart, that show these GPUs."""
        self.gpus = gpus
        for _ in range(samples):
            self.time_s += 1.0
            profiler.sample()
