"""Latency of the API at 200 requests/s with 5,000 jobs in the store, against an empty FastAPI endpoint.

A real uvicorn in a process of its own, on loopback; a mix of what a dashboard and a few command lines ask
for: lists, single jobs, the cluster, explanations, submits. Requests begin at fixed times, whether earlier
ones are answered or not, so a stall is seen by all that come meanwhile. Bar: p99 below 50 ms. Where other
programs keep the machine busy, the CPU time of a request and the ratio to the empty endpoint say more.
BATUTA_BENCH_SECONDS sets how long, BATUTA_BENCH_RATE how many requests a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from benchmarks.measure import REPO, show, times

JOBS, LIVING = 5_000, 1_000
RATE = float(os.environ.get("BATUTA_BENCH_RATE", "200"))
REPORTS_PER_S = 20.0
SECONDS = float(os.environ.get("BATUTA_BENCH_SECONDS", "10"))
BAR_MS = 50.0
TASK = {"run": "sleep 1", "resources": {"accelerators": "virtual:1"}, "elastic": {"max_nodes": 4}}


@dataclass(frozen=True, slots=True)
class Ask:
    """A kind of request, and how often it comes."""

    name: str
    weight: int
    make: Callable[[Random], tuple[str, str, Any]]


MIX = (
    Ask("GET /jobs?active (100)", 20, lambda _: ("GET", "/api/v1/jobs?active=true&limit=100", None)),
    Ask("GET /jobs newest (100)", 20, lambda _: ("GET", "/api/v1/jobs?order=newest&limit=100", None)),
    Ask("GET /jobs?user&state", 10, lambda _: ("GET", "/api/v1/jobs?user=u3&state=SUCCEEDED&limit=50", None)),
    Ask("GET /jobs/{id}", 25, lambda chance: ("GET", f"/api/v1/jobs/{chance.randint(1, JOBS)}", None)),
    Ask("GET /jobs/{id}/explain", 5, lambda c: ("GET", f"/api/v1/jobs/{c.randint(1, JOBS)}/explain", None)),
    Ask("GET /cluster", 10, lambda _: ("GET", "/api/v1/cluster", None)),
    Ask("GET /nodes", 5, lambda _: ("GET", "/api/v1/nodes", None)),
    Ask("POST /jobs", 5, lambda _: ("POST", "/api/v1/jobs", {"task": TASK})),
)
EMPTY = (Ask("GET /empty", 1, lambda _: ("GET", "/empty", None)),)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-api-") as folder:
        command = [sys.executable, "-m", "benchmarks.api_latency", "serve", folder]
        server = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            place = json.loads(server.stdout.readline())
            spent_ms = [cpu_ms(place["empty"])]
            empty = asyncio.run(load(place["empty"], {}, EMPTY))
            spent_ms.append(cpu_ms(place["empty"]))
            found = asyncio.run(load(place["url"], {"Authorization": f"Bearer {place['token']}"}, MIX))
            spent_ms.append(cpu_ms(place["empty"]))
        finally:
            server.terminate()
            server.wait(20)
    base = percentile([ms for all_ms in empty.values() for ms in all_ms], 99)
    together = [ms for all_ms in found.values() for ms in all_ms]
    rows = [row("empty FastAPI endpoint", empty["GET /empty"], base)]
    rows += [row(name, all_ms, base) for name, all_ms in found.items() if all_ms]
    rows.append(row("all", together, base, BAR_MS))
    each = [(after - before) / (RATE * SECONDS) for before, after in pairwise(spent_ms)]
    show(
        f"{RATE:.0f} requests/s for {SECONDS:.0f} s, {JOBS:,} jobs ({LIVING:,} alive), 5 submits in 100",
        ("request", "count", "p50 (ms)", "p99 (ms)", "worst (ms)", "p99 to empty"),
        rows,
        [
            f"CPU of the server for a request: {each[0]:.2f} ms (empty), {each[1]:.2f} ms (the mix, "
            f"with the engine's decisions): {times(each[1] / each[0])}"
        ],
    )


def cpu_ms(url: str) -> float:
    """What the server's process has used so far."""
    return float(httpx2.get(f"{url}/cpu").json()) * 1000


def row(name: str, all_ms: Sequence[float], base_ms: float, bar_ms: float | None = None) -> tuple[object, ...]:
    p99 = percentile(all_ms, 99)
    mark = " !" if bar_ms is not None and p99 >= bar_ms else ""
    median = statistics.median(all_ms)
    return (
        name,
        len(all_ms),
        f"{median:.1f}",
        f"{p99:.1f}{mark}",
        f"{max(all_ms):.1f}",
        times(p99 / base_ms),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


async def load(
    url: str, headers: dict[str, str], mix: Sequence[Ask], seconds: float = SECONDS
) -> dict[str, list[float]]:
    """Milliseconds by kind of request, each from the time at which it should have begun."""
    chance, found = Random(1), {ask.name: list[float]() for ask in mix}
    client = BareClient(url, headers)

    async def one(ask: Ask, due: float) -> None:
        await client.request(*ask.make(chance))
        found[ask.name].append((time.perf_counter() - due) * 1000)

    for _ in range(3):
        await asyncio.gather(*(one(ask, time.perf_counter()) for ask in mix))
    for all_ms in found.values():
        all_ms.clear()
    running = set()
    begun = time.perf_counter()
    for number in range(int(RATE * seconds)):
        due = begun + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        ask = chance.choices(mix, [ask.weight for ask in mix])[0]
        running.add(asyncio.create_task(one(ask, due)))
    await asyncio.gather(*running)
    return found


class BareClient:
    """As little HTTP as will do: what a client takes of the machine would be found in every latency."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._place = url.removeprefix("http://")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            # Less than uvicorn's five seconds, or it would close a connection that is just used again.
            if time.monotonic() < since + 2:
                return reader, writer
            writer.close()
        host, _, port = self._place.partition(":")
        return await asyncio.open_connection(host, int(port))

    async def request(self, method: str, path: str, body: Any) -> None:
        reader, writer = await self._connection()
        content = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {self._place}\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        assert head.startswith(b"HTTP/1.1 2"), answer
        self._idle.append((time.monotonic(), reader, writer))


# ------------------------------------------------------------------------------------- the server's process


def serve(folder: Path, living: int) -> None:
    """A server with all these jobs, until it is told to end; says where it is in one line."""
    import threading

    import uvicorn
    from fastapi import FastAPI

    from batuta.api.app import ApiServer
    from batuta.bootstrap.forecast_process import ForecastProcess
    from batuta.bootstrap.serving import listen
    from batuta.core.cluster import Node
    from batuta.engine.profile import live_cadence
    from tests.support.live_service import live_service

    bare = FastAPI()

    @bare.get("/empty")
    async def empty() -> dict[str, str]:
        return {}

    @bare.get("/cpu")
    async def cpu() -> float:
        return time.process_time()

    # An endpoint of the same kind in the same process: it has the same interpreter to itself, or not.
    nodes = [Node(f"node-{k}", 8, "virtual") for k in range(32)]
    foresight = ForecastProcess()
    given: dict[str, Any] = {"nodes": nodes, "events": past_events(living), "cadence": live_cadence()}
    with live_service(folder, **given, foresight=foresight) as live:
        other = uvicorn.Server(uvicorn.Config(bare, port=0, log_level="error", access_log=False))
        threading.Thread(target=other.run, daemon=True).start()
        if living == JOBS:
            threading.Thread(target=report_progress, args=(live,), daemon=True).start()
        server = ApiServer(live.app)
        threading.Thread(target=tell, args=(server, other, live.tokens["ana"]), daemon=True).start()
        # As `batuta up` does: the kernel keeps connections that wait, and no client has to try again after a second.
        server.run(sockets=[listen("127.0.0.1", 0, "")])
    foresight.close()


def tell(server: Any, other: Any, token: str) -> None:
    while not (server.started and other.started):
        time.sleep(0.01)
    ports = [one.servers[0].sockets[0].getsockname()[1] for one in (server, other)]
    place = {"url": f"http://127.0.0.1:{ports[0]}", "empty": f"http://127.0.0.1:{ports[1]}", "token": token}
    print(json.dumps(place), flush=True)


def report_progress(live: Any) -> None:
    """Running jobs tell how far they are, one after the other: events for the streams."""
    from batuta.core.job import Progress

    step = 0
    while live.service.running:
        for job in list(live.backend.running):
            step += 1
            live.backend.progress(job, 1000.0, Progress(step=step))
            time.sleep(1 / REPORTS_PER_S)


def past_events(living: int) -> list[Any]:
    """The first jobs are over; the last ones are alive, and most of them wait."""
    from batuta.core import event as ev
    from batuta.core.job import JobState
    from batuta.spec.task import parse_task
    from batuta.spec.task_job import task_to_job
    from batuta.spec.task_serialization import task_to_json

    task = parse_task(json.dumps(TASK), check_paths=False)
    text, events, now_s = task_to_json(task), list[Any](), time.time() - JOBS
    for number in range(1, JOBS + 1):
        job = task_to_job(task, str(number), now_s + number, user=f"u{number % 10}", sequence=number)
        events.append(ev.JobSubmitted(job.submit_s, job, task=text))
        if number <= JOBS - living:
            state = JobState.SUCCEEDED if number % 5 else JobState.FAILED
            events.append(ev.JobEnded(job.submit_s + 0.5, job.id, state, exit_code=0 if number % 5 else 1))
    return events


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), JOBS if "alive" in sys.argv[3:] else LIVING)
    else:
        main()
