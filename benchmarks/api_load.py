"""500 clients on the stream of events and 200 requests/s with 5,000 living jobs: latency, CPU time and memory.

The server of `api_latency` in a process of its own, with all jobs alive; two processes of clients on loopback,
one for the streams and one for the requests, which begin at fixed times. The submits among the requests make
the events. Told are latencies, the server's CPU time for a request and for a client of the stream (from two
runs of the same requests, without streams and with them), how late events come, and the server's memory over time.
Bars: p99 below 100 ms, memory flat, every client gets every event. Where other programs keep the machine
busy, the CPU times say more. BATUTA_BENCH_SECONDS sets how long, BATUTA_BENCH_STREAMS how many clients,
BATUTA_BENCH_RATE how many requests a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.api_latency import JOBS, MIX, RATE, Ask, BareClient, cpu_ms, load, percentile, row
from benchmarks.measure import REPO, show

SECONDS = float(os.environ.get("BATUTA_BENCH_SECONDS", "20"))
STREAMS = int(os.environ.get("BATUTA_BENCH_STREAMS", "500"))
BAR_MS, MOST_GROWTH_MIB, ETA_BAR_S = 100.0, 16.0, 2.0
LOOK_EVERY_S = 0.5
MORE = (
    Ask("GET /jobs/{id}/events", 3, lambda c: ("GET", f"/api/v1/jobs/{c.randint(1, JOBS)}/events", None)),
    Ask("GET /queues", 3, lambda _: ("GET", "/api/v1/queues", None)),
    Ask("GET /metrics", 1, lambda _: ("GET", "/metrics", None)),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the requests has shown."""

    all_ms: dict[str, list[float]]
    spent_ms: float
    memory_mib: list[float]
    client_ms: float  # CPU of the clients that ask


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-load-") as folder:
        command = [sys.executable, "-m", "benchmarks.api_latency", "serve", folder, "alive"]
        server = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        streams: subprocess.Popen[str] | None = None
        try:
            assert server.stdout is not None
            place = json.loads(server.stdout.readline())
            eta_s = first_eta_s(place)
            asyncio.run(read_all_jobs(place))
            alone = asyncio.run(measured(place, server.pid))
            streams = start_streams(place)
            together = asyncio.run(measured(place, server.pid))
            seen = stop_streams(streams)
        finally:
            for process in (streams, server):
                if process is not None:
                    process.terminate()
                    process.wait(20)
    tell(alone, together, seen, eta_s)


def first_eta_s(place: dict[str, str]) -> float:
    """How long the first question for all ETAs takes, when no forecast is ready."""
    begun = time.perf_counter()
    answer = httpx2.get(f"{place['url']}/api/v1/eta", headers=bearer(place), timeout=60)
    taken_s = time.perf_counter() - begun
    # The fine forecast goes on in a process of its own; what follows is measured without it.
    httpx2.get(f"{place['url']}/api/v1/eta?within_s=60", headers=bearer(place), timeout=90)
    assert len(answer.json()["jobs"]) >= JOBS
    return taken_s


async def read_all_jobs(place: dict[str, str]) -> None:
    """Have the server keep a view of every job, as it has sooner or later: they are no growth then."""
    client = BareClient(place["url"], bearer(place))
    for number in range(1, JOBS + 1):
        await client.request("GET", f"/api/v1/jobs/{number}", None)


def bearer(place: dict[str, str]) -> dict[str, str]:
    return {"Authorization": f"Bearer {place['token']}"}


async def measured(place: dict[str, str], pid: int) -> Run:
    before_ms, memory, is_over = cpu_ms(place["empty"]), list[float](), asyncio.Event()

    async def watch() -> None:
        while not is_over.is_set():
            memory.append(resident_mib(pid))
            await asyncio.sleep(LOOK_EVERY_S)

    watcher = asyncio.create_task(watch())
    begun_s = time.process_time()
    found = await load(place["url"], bearer(place), (*MIX, *MORE), SECONDS)
    is_over.set()
    await watcher
    client_ms = (time.process_time() - begun_s) * 1000
    return Run(found, cpu_ms(place["empty"]) - before_ms, memory, client_ms)


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def tell(alone: Run, together: Run, seen: dict[str, Any], eta_s: float) -> None:
    requests = RATE * SECONDS
    rows = []
    for title, run in (("without streams", alone), (f"with {STREAMS} streams", together)):
        rows.append(row(f"all, {title}", [ms for own in run.all_ms.values() for ms in own], 1.0, BAR_MS)[:-1])
    rows += [row(name, all_ms, 1.0)[:-1] for name, all_ms in together.all_ms.items() if all_ms]
    grown_mib = max(together.memory_mib[-5:]) - max(settled(together.memory_mib)[:5])
    each_ms = (together.spent_ms - alone.spent_ms) / STREAMS / SECONDS
    complete = f"{seen['missed']} events missed !" if seen["missed"] else "none missed an event"
    late = seen["late_ms"]
    show(
        f"{RATE:.0f} requests/s for {SECONDS:.0f} s, {JOBS:,} living jobs, {STREAMS} clients of the stream",
        ("request", "count", "p50 (ms)", "p99 (ms)", "worst (ms)"),
        rows,
        [
            f"load of the machine: {os.getloadavg()[0]:.1f}; "
            f"CPU of the clients that ask: {together.client_ms / requests:.2f} ms a request",
            f"CPU of the server: {alone.spent_ms / requests:.2f} ms a request without streams, "
            f"{together.spent_ms / requests:.2f} ms with them; {each_ms:.2f} ms a second for each client of the stream",
            f"streams: {seen['clients']} clients, {complete} ({seen['most']}); an event comes "
            f"{percentile(late, 50):.0f} ms (p50), {percentile(late, 99):.0f} ms (p99) after its time",
            f"memory of the server: {together.memory_mib[-1]:.0f} MiB, grown by {grown_mib:.1f} MiB"
            f"{' !' if grown_mib > MOST_GROWTH_MIB else ''} since the first quarter",
            f"first GET /eta, all {JOBS:,} jobs: {eta_s:.2f} s{' !' if eta_s > ETA_BAR_S else ''}",
        ],
    )


def settled(memory_mib: Sequence[float]) -> Sequence[float]:
    """What comes after the first quarter: caches are filled by then."""
    return memory_mib[len(memory_mib) // 4 :]


# ------------------------------------------------------------------------------- the process of the streams


def start_streams(place: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.api_load", "streams", json.dumps(place)]
    process = subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "open"
    return process


def stop_streams(process: subprocess.Popen[str]) -> dict[str, Any]:
    found, _ = process.communicate("", timeout=60)
    seen: dict[str, Any] = json.loads(found)
    return seen


async def read_streams(place: dict[str, str]) -> None:
    """Open all streams, say so, and count what comes until standard input ends."""
    loop = asyncio.get_running_loop()
    counts, at, missed = [0] * STREAMS, [0] * STREAMS, [0] * STREAMS
    late_ms, opened = list[float](), asyncio.Semaphore(0)

    async def one(number: int) -> None:
        host, _, port = place["url"].removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {place['token']}\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"hello")
        opened.release()
        rest = b""
        try:
            while data := await reader.read(1 << 16):
                lines = (rest + data).split(b"\n")
                rest = lines.pop()
                for seq in (int(line[3:]) for line in lines if line.startswith(b"id:")):
                    missed[number] += max(0, seq - at[number] - 1) if at[number] else 0
                    at[number] = seq
                counts[number] += sum(line.startswith(b"event:") for line in lines)
                if number == 0:
                    now_s = time.time()
                    times = [
                        line.partition(b'"time_s":')[2].partition(b",")[0] for line in lines if b"JobSubmitted" in line
                    ]
                    late_ms.extend((now_s - float(text)) * 1000 for text in times if text)
        finally:
            writer.close()

    readers = [asyncio.create_task(one(number)) for number in range(STREAMS)]
    for _ in readers:
        await opened.acquire()
    print("open", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    await asyncio.sleep(2)  # what is on its way
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    seen = {"clients": STREAMS, "most": max(counts), "missed": sum(missed), "late_ms": late_ms or [0.0]}
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["streams"]:
        asyncio.run(read_streams(json.loads(sys.argv[2])))
    else:
        main()
