"""Local mode: how soon a job runs that fits, and how soon `batuta up` is ready.

Submit-to-running is the time from sending the request to the job's first instruction, seen from outside; the
reference is a bare subprocess.Popen of the same command, measured in turns. Bars: median below 200 ms, ready
within 5 s. The last table is the densest load: jobs that do nothing, and the server's CPU time for each.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.client.client import Client
from benchmarks.measure import show, times

RUNNING_BAR_S, READY_BAR_S = 0.2, 5.0
JOBS, STARTS, DENSE_JOBS = 40, 5, 100
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready, and how long that took."""

    pid: int
    home: Path
    took_s: float


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-bench-") as folder:
        _show_starts(Path(folder))
        with _server(Path(folder) / "home") as server, Client(home=server.home) as client:
            _show_latency(client, Path(folder))
            _show_dense(client, server)


@contextmanager
def _server(home: Path) -> Iterator[Started]:
    """`batuta up` as people start it, ended as Ctrl-C does."""
    command = [sys.executable, "-m", "batuta", "up", "--virtual", "--port", "0", "--home", str(home)]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _is_ready(home):
            if child.poll() is not None or time.perf_counter() - begun > _PATIENCE_S:
                raise RuntimeError("the server did not start")
            time.sleep(0.005)
        yield Started(child.pid, home, time.perf_counter() - begun)
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(_PATIENCE_S)


def _is_ready(home: Path) -> bool:
    if not (home / "server.json").exists():
        return False
    with Client(home=home) as client:
        return client.is_ready()


def _show_starts(folder: Path) -> None:
    taken, bare = [], []
    for number in range(STARTS):
        with _server(folder / f"start-{number}") as server:
            taken.append(server.took_s)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import fastapi, numpy, uvicorn"], check=True)
        bare.append(time.perf_counter() - begun)
    rows = [
        ("batuta up --virtual, until ready", *_figures(taken, READY_BAR_S), times(_ratio(taken, bare))),
        ("python -c 'import fastapi, numpy, uvicorn'", *_figures(bare), times(1.0)),
    ]
    columns = ("start", "median (ms)", "slowest", "ratio")
    show(f"Start of a server, {STARTS} times in turns; bar {READY_BAR_S:g} s", columns, rows)


def _show_latency(client: Client, folder: Path) -> None:
    """A job notes the time as its first instruction."""
    stamp = folder / "stamp"
    command = f"date +%s.%N >{stamp}.new && mv {stamp}.new {stamp}"
    bare, to_answer, to_run, to_told = list[float](), list[float](), list[float](), list[float]()
    for _ in range(JOBS):
        begun_s = time.time()
        subprocess.Popen(["bash", "-c", command]).wait()
        bare.append(_read(stamp) - begun_s)
        begun_s = time.time()
        job = client.submit({"run": command, "resources": {"accelerators": 1}})
        to_answer.append(time.time() - begun_s)
        over = client.wait(job, timeout_s=_PATIENCE_S)
        if not over.succeeded:
            raise RuntimeError(f"{over}")
        to_run.append(_read(stamp) - begun_s)
        started = [event.time_s for event in client.job_events(job) if event.type == "JobStarted"]
        to_told.append((started[0] or 0.0) - begun_s)
    rows = [
        ("subprocess.Popen to its first instruction", *_figures(bare), times(1.0)),
        ("submit to answer (durable)", *_figures(to_answer), times(_ratio(to_answer, bare))),
        (
            "submit to the job's first instruction",
            *_figures(to_run, RUNNING_BAR_S),
            times(_ratio(to_run, bare)),
        ),
        ("submit to RUNNING in the journal", *_figures(to_told, RUNNING_BAR_S), times(_ratio(to_told, bare))),
    ]
    columns = ("way", "median (ms)", "slowest", "ratio")
    title = f"A job that fits, {JOBS} times in turns; bar {RUNNING_BAR_S * 1e3:g} ms for the median"
    show(title, columns, rows)


def _show_dense(client: Client, server: Started) -> None:
    """All of them queued, eight at a time, each over at once."""
    before = client.cluster().cycle.engine_cpu_s or 0.0
    before_all, begun = _cpu_s(server.pid), time.perf_counter()
    jobs = [client.submit({"run": "true", "resources": {"accelerators": 1}}) for _ in range(DENSE_JOBS)]
    client.wait(jobs[-1], timeout_s=_PATIENCE_S)
    while client.jobs(active=True):
        time.sleep(0.05)
    wall_s = time.perf_counter() - begun
    engine_s = (client.cluster().cycle.engine_cpu_s or 0.0) - before
    whole_s = _cpu_s(server.pid) - before_all
    rows = [
        ("engine thread", engine_s / DENSE_JOBS * 1e3, f"{100 * engine_s / wall_s:.0f} %"),
        ("whole server, requests included", whole_s / DENSE_JOBS * 1e3, f"{100 * whole_s / wall_s:.0f} %"),
    ]
    title = f"{DENSE_JOBS} jobs that do nothing, {DENSE_JOBS / wall_s:.0f} per second"
    show(title, ("who", "CPU per job (ms)", "of a core"), rows)


def _figures(taken_s: list[float], bar_s: float | None = None) -> tuple[str, str]:
    median_s = statistics.median(taken_s)
    missed = " !" if bar_s is not None and median_s >= bar_s else ""
    return f"{median_s * 1e3:.0f}{missed}", f"{max(taken_s) * 1e3:.0f}"


def _ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(over) / statistics.median(under)


def _read(stamp: Path) -> float:
    text = stamp.read_text()
    stamp.unlink()
    return float(text)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
