"""Replicas as processes: start, idle cost, log throughput, how soon an end is told, cost of looking."""

from __future__ import annotations

import os
import queue
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from batuta.backends.local.logs import ReplicaLog
from batuta.backends.local.processes import RunningReplica, kill, launch, observe
from batuta.backends.local.progress import ProgressTail
from batuta.backends.local.runner_protocol import ReplicaPhase, ReplicaSpec
from batuta.backends.local.watch import RunnerEvent, Watch

ENV = {"PATH": os.environ.get("PATH", os.defpath)}
FLOOD = """
import os, time
block = (b"x" * 127 + b"\\n") * 8192
end = time.monotonic() + 2
while time.monotonic() < end:
    os.write(1, block)
"""


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="batuta-bench-"))
    try:
        _bare_interpreter()
        _starts(home / "starts")
        _idle(home / "idle")
        _ends(home / "ends")
        _flood(home / "flood")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(home: Path, name: str, run: list[str]) -> RunningReplica:
    run_dir = home / name
    return launch(run_dir, ReplicaSpec(name, run, cwd=Path("/"), log=run_dir / "log", env=ENV))


def _bare_interpreter() -> None:
    """What no runner can undercut."""
    times = []
    before = _children_cpu_s()
    for _ in range(30):
        begun = time.perf_counter()
        pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", "pass"], {})
        os.waitpid(pid, 0)
        times.append(time.perf_counter() - begun)
    _row("bare interpreter, start to end", times, _children_cpu_s() - before)


def _starts(home: Path) -> None:
    to_running, to_end, calls, own_cpu_s = [], [], [], 0.0
    before = _children_cpu_s()
    for i in range(30):
        begun_s, begun, cpu_begun = time.time(), time.perf_counter(), time.process_time()
        replica = _start(home, f"start{i}", ["/bin/true"])
        own_cpu_s += time.process_time() - cpu_begun
        calls.append(time.perf_counter() - begun)
        os.waitpid(replica.pid, 0)
        state = observe(replica.run_dir)
        assert state.run_begun_s is not None
        assert state.ended_s is not None
        to_running.append(state.run_begun_s - begun_s)
        to_end.append(state.ended_s - begun_s)
    _row("launch(), the call", calls, own_cpu_s)
    _row("launch to running", to_running)
    _row("launch to exited (/bin/true)", to_end, _children_cpu_s() - before)


def _idle(home: Path, count: int = 40) -> None:
    replicas = [_start(home, f"idle{i}", ["sleep", "1000"]) for i in range(count)]
    for replica in replicas:
        while observe(replica.run_dir).phase is not ReplicaPhase.RUNNING:
            time.sleep(0.01)
    memory = [_memory_kib(replica.pid) for replica in replicas]
    before = sum(_cpu_ticks(replica.pid) for replica in replicas)
    time.sleep(5)
    ticks = sum(_cpu_ticks(replica.pid) for replica in replicas) - before
    print(f"  {'idle runner: RSS, of that its own (USS)':44} {_mib(memory, 0)}, {_mib(memory, 1)}")
    print(f"  {f'{count} idle runners: CPU ticks in 5 s':44} {ticks}")
    with closing(Watch(lambda _: None)) as watch:
        for replica in replicas:
            watch.add(replica)
        begun = time.process_time()
        time.sleep(2)
        print(f"  {'watching them: CPU in 2 s':44} {(time.process_time() - begun) * 1e3:.2f} ms")
    _per_call("observe() of one", lambda: observe(replicas[0].run_dir))
    progress = home / "progress"
    progress.write_text("{}\n")
    tail = ProgressTail(progress)
    tail.poll()
    _per_call("poll of an unchanged progress file", tail.poll)
    for replica in replicas:
        kill(replica)
    for replica in replicas:
        os.waitpid(replica.pid, 0)


def _ends(home: Path) -> None:
    news: queue.SimpleQueue[tuple[RunnerEvent, float]] = queue.SimpleQueue()
    delays = []
    with closing(Watch(lambda one: news.put((one, time.time())))) as watch:
        for i in range(20):
            replica = _start(home, f"end{i}", ["sleep", "0.05"])
            watch.add(replica)
            _, told_s = news.get(timeout=60)
            ended_s = observe(replica.run_dir).ended_s
            assert ended_s is not None
            delays.append(told_s - ended_s)
    _row("exited to told by the watch", delays)


def _flood(home: Path) -> None:
    rates, cpu = [], 0.0
    for i in range(3):
        replica = _start(home, f"flood{i}", [sys.executable, "-I", "-S", "-c", FLOOD])
        usage = os.wait4(replica.pid, 0)[2]
        rates.append(ReplicaLog(replica.run_dir / "log").span().end / 2 / 1e6)
        cpu = usage.ru_utime + usage.ru_stime
    middle = statistics.median(rates)
    print(f"  {'log throughput (cap 64 MiB)':44} median {middle:.0f} MB/s, best {max(rates):.0f}")
    print(f"  {'CPU of job and runner in the last 2 s':44} {cpu:.2f} s")


def _row(name: str, times_s: list[float], cpu_s: float | None = None) -> None:
    ordered = sorted(times_s)
    text = f"median {statistics.median(ordered) * 1e3:6.1f} ms, best {ordered[0] * 1e3:6.1f}"
    if cpu_s is not None:
        text += f", CPU {cpu_s / len(times_s) * 1e3:.1f} ms each"
    print(f"  {name:44} {text}")


def _per_call(name: str, call: Callable[[], object]) -> None:
    begun = time.process_time()
    for _ in range(2000):
        call()
    print(f"  {name:44} {(time.process_time() - begun) / 2000 * 1e6:.1f} µs of CPU")


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _memory_kib(pid: int) -> tuple[int, int]:
    found = dict.fromkeys(("Rss", "Private_Clean", "Private_Dirty"), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name = line.partition(":")[0]
        if name in found:
            found[name] = int(line.split()[1])
    return found["Rss"], found["Private_Clean"] + found["Private_Dirty"]


def _mib(memory: list[tuple[int, int]], index: int) -> str:
    return f"{statistics.median(one[index] for one in memory) / 1024:.1f} MiB"


if __name__ == "__main__":
    main()
